"""The five calls over a real socket, as kubelet makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from grpc import aio

from tessera.node.fleet import Fleet, Replica
from tessera.node.kubelet import service
from tessera.node.kubelet.endpoint import Endpoint, open_channel, unary
from tessera.node.kubelet.service import DevicePluginService
from tessera.node.modes.base import AllocationRefused, ContainerResponse, DeviceNode, HostMount
from tessera.node.watched_value import WatchedValue
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet import methods
from tessera.wire.node_config import NodeSettings
from tests.support.event_loops import on_uvloop
from tests.support.kubelet import Script, ScriptedAllocator, fleet, plugins_folder, settings_in, streaming, uuid
from tests.support.logs import captured

A, B = uuid(0), uuid(1)
WAIT_S = 20.0


class Served:
    """A service that is being served, with a client."""

    def __init__(self, folder: Path, node: NodeSettings) -> None:
        self.fleet = WatchedValue(fleet(2))
        self.allocator = ScriptedAllocator()
        self.service = DevicePluginService(settings_in(folder, node), self.fleet, self.allocator)
        self.endpoint = Endpoint(folder / "nvidia-gpu.sock", self.service)
        self.channel = open_channel(self.endpoint.path)

    async def allocate(self, *containers: list[str]) -> list[messages.ContainerAllocateResponse]:
        requests = [messages.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        call = unary(self.channel, methods.ALLOCATE)
        answer = await call(messages.AllocateRequest(container_requests=requests), timeout=WAIT_S)
        return list(answer.container_responses)

    async def refused(self, *containers: list[str]) -> aio.AioRpcError:
        with pytest.raises(aio.AioRpcError) as raised:
            await self.allocate(*containers)
        return raised.value

    def stream(self) -> aio.UnaryStreamCall[messages.Empty, messages.ListAndWatchResponse]:
        return streaming(self.channel, methods.LIST_AND_WATCH)(messages.Empty(), timeout=WAIT_S)


@asynccontextmanager
async def served(node: NodeSettings | None = None) -> AsyncIterator[Served]:
    with plugins_folder() as folder:
        serving = Served(folder, node or NodeSettings(split_count=2))
        following = asyncio.create_task(serving.service.follow())
        await serving.endpoint.serve()
        try:
            yield serving
        finally:
            await serving.channel.close()
            await serving.endpoint.stop()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def next_list(stream: aio.UnaryStreamCall[messages.Empty, messages.ListAndWatchResponse]) -> dict[str, str]:
    answer = await stream.read()
    assert isinstance(answer, messages.ListAndWatchResponse)
    return {device.ID: device.health for device in answer.devices}


# -- the list


@on_uvloop
async def test_the_whole_list_comes_at_once() -> None:
    async with served(NodeSettings(split_count=3)) as serving:
        listed = await next_list(serving.stream())
        assert listed == {f"{card}-{number}": "Healthy" for card in (A, B) for number in range(3)}


@on_uvloop
async def test_every_stream_hears_of_a_card_that_falls_ill_and_of_its_recovery() -> None:
    async with served() as serving:
        streams = [serving.stream() for _ in range(3)]
        for stream in streams:
            await next_list(stream)
        for sick, health in (({1}, "Unhealthy"), (set[int](), "Healthy")):
            serving.fleet.set(fleet(2, sick=sick))
            for stream in streams:
                assert await next_list(stream) == {
                    f"{A}-0": "Healthy",
                    f"{A}-1": "Healthy",
                    f"{B}-0": health,
                    f"{B}-1": health,
                }


@on_uvloop
async def test_what_happens_while_nobody_listens_holds_nobody_up_and_is_in_the_first_list() -> None:
    async with served() as serving:
        for sick in ({0}, {0, 1}, {1}):
            serving.fleet.set(fleet(2, sick=sick))
            await asyncio.sleep(0)
        listed = await next_list(serving.stream())
        assert [listed[f"{card}-0"] for card in (A, B)] == ["Healthy", "Unhealthy"]


@on_uvloop
async def test_a_change_that_kubelet_cannot_see_is_not_sent() -> None:
    async with served() as serving:
        stream = serving.stream()
        first = await next_list(stream)
        serving.fleet.set(Fleet(serving.fleet.value.cards, problem="the driver does not answer"))
        await asyncio.sleep(0)
        serving.fleet.set(fleet(3))
        assert await next_list(stream) == first | {f"{uuid(2)}-0": "Healthy", f"{uuid(2)}-1": "Healthy"}


@on_uvloop
async def test_streams_end_well_when_the_service_stops_and_none_is_counted_any_more() -> None:
    async with served() as serving:
        streams = [serving.stream() for _ in range(2)]
        for stream in streams:
            await next_list(stream)
        assert serving.service.streams == 2
        await serving.endpoint.stop()
        for stream in streams:
            assert await stream.read() is aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
        assert serving.service.streams == 0


@on_uvloop
async def test_a_listener_that_hangs_up_is_not_counted_any_more() -> None:
    async with served() as serving:
        stream = serving.stream()
        await next_list(stream)
        stream.cancel()
        async with asyncio.timeout(WAIT_S):
            while serving.service.streams:
                await asyncio.sleep(0)


@on_uvloop
async def test_a_stopped_service_lists_nothing_to_late_changes_and_all_when_served_again() -> None:
    async with served() as serving:
        await serving.endpoint.stop()
        serving.fleet.set(fleet(1))
        await asyncio.sleep(0)
        await serving.endpoint.serve()
        assert set(await next_list(serving.stream())) == {f"{A}-0", f"{A}-1"}


# -- options and preferences


@pytest.mark.parametrize("preferred", [True, False])
@on_uvloop
async def test_the_options_are_those_that_are_configured(preferred: bool) -> None:
    async with served(NodeSettings(preferred_allocation=preferred)) as serving:
        answer = await unary(serving.channel, methods.OPTIONS)(messages.Empty(), timeout=WAIT_S)
        assert answer.get_preferred_allocation_available is preferred
        assert answer.pre_start_required is False


async def preferences(serving: Served, *available: list[str]) -> list[list[str]]:
    requests = [
        messages.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=1) for ids in available
    ]
    answer = await unary(serving.channel, methods.PREFERRED_ALLOCATION)(
        messages.PreferredAllocationRequest(container_requests=requests), timeout=WAIT_S
    )
    return [list(each.deviceIDs) for each in answer.container_responses]


@on_uvloop
async def test_every_request_for_a_preference_has_its_entry_so_that_none_gets_anothers() -> None:
    async with served() as serving:
        serving.allocator.wanted = [B]
        found = await preferences(serving, [f"{A}-0"], [f"{A}-1", f"{B}-1"], [])
        assert found == [[], [f"{B}-1"], []]


@on_uvloop
async def test_a_fault_behind_a_preference_leaves_the_choice_to_kubelet() -> None:
    async with served() as serving:
        serving.allocator.fault = KeyError("gone")
        with captured() as logs:
            assert await preferences(serving, [f"{A}-0"]) == [[]]
        assert logs.of("preferred allocation failed")


@on_uvloop
async def test_a_call_before_a_start_is_answered_with_nothing() -> None:
    async with served() as serving:
        call = unary(serving.channel, methods.PRE_START)
        answer = await call(messages.PreStartContainerRequest(devices_ids=["whatever"]), timeout=WAIT_S)
        assert answer == messages.PreStartContainerResponse()


# -- Allocate


@on_uvloop
async def test_every_container_gets_its_own_answer_in_order() -> None:
    async with served() as serving:
        answers = await serving.allocate([f"{A}-1", f"{B}-0"], [f"{A}-0"])
        assert [dict(each.envs) for each in answers] == [
            {"NVIDIA_VISIBLE_DEVICES": f"{A}-1,{B}-0"},
            {"NVIDIA_VISIBLE_DEVICES": f"{A}-0"},
        ]


PREFIX = "invalid allocation request for 'nvidia.com/gpu'"


@pytest.mark.parametrize(
    ("containers", "text"),
    [
        ([], f"{PREFIX}: no devices"),
        ([[]], f"{PREFIX}: no devices"),
        ([[f"{A}-0"], []], f"{PREFIX}: no devices"),
        ([["gpu-9"]], f"{PREFIX}: unknown device: gpu-9"),
        ([[f"{A}-2"]], f"{PREFIX}: unknown device: {A}-2"),
        ([[A]], f"{PREFIX}: unknown device: {A}"),
        ([[f"{A}-0", "\u0434\u0430"]], f"{PREFIX}: unknown device: \u0434\u0430"),
        ([[f"{A}-0", f"{A}-0"]], f"{PREFIX}: the same device twice"),
        ([[f"{A}-0"], [f"{A}-0"]], f"{PREFIX}: the same device twice"),
        ([["x" * 100_000]], f"{PREFIX}: unknown device: {'x' * 1000}"),
    ],
    ids=[
        "nothing",
        "no ids",
        "half empty",
        "foreign",
        "never listed",
        "a card",
        "not ASCII",
        "twice",
        "shared",
        "huge",
    ],
)
@on_uvloop
async def test_a_request_for_what_was_never_listed_is_refused(containers: list[list[str]], text: str) -> None:
    async with served() as serving:
        with captured():
            refusal = await serving.refused(*containers)
        assert refusal.code() is grpc.StatusCode.UNKNOWN
        told = refusal.details() or ""
        assert told == text or (told.endswith("...") and text.startswith(told[:-3]))
        # And the next one is served as ever.
        assert await serving.allocate([f"{A}-0"])


@on_uvloop
async def test_the_reason_of_a_refusal_reaches_kubelet() -> None:
    async with served() as serving:

        async def refuse(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
            raise AllocationRefused("device number not matched")

        serving.allocator.script = refuse
        with captured() as logs:
            refusal = await serving.refused([f"{A}-0"])
        assert (refusal.code(), refusal.details()) == (grpc.StatusCode.UNKNOWN, "device number not matched")
        assert logs.of("allocation refused")[0]["reason"] == "device number not matched"


async def fail(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
    raise ZeroDivisionError("secret detail")


async def answer_too_much(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
    return [ContainerResponse()] * (len(containers) + 1)


async def answer_nonsense(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
    return [ContainerResponse(env={"A": "\ud800"}) for _ in containers]


@pytest.mark.parametrize("script", [fail, answer_too_much, answer_nonsense])
@on_uvloop
async def test_a_fault_of_the_allocator_is_a_status_and_a_line_in_the_log(script: Script) -> None:
    async with served() as serving:
        serving.allocator.script = script
        with captured() as logs:
            error = await serving.refused([f"{A}-0"])
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "a fault in the node agent; its log says more"
        assert logs.of("allocation failed")


@on_uvloop
async def test_an_allocator_that_never_answers_does_not_hold_up_kubelet_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "ALLOCATE_S", 0.001)
    async with served() as serving:

        async def wait(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
            await asyncio.Event().wait()
            return []

        serving.allocator.script = wait
        with captured():
            error = await serving.refused([f"{A}-0"])
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "the node agent did not finish within 0.001 s"


@on_uvloop
async def test_bytes_that_are_no_message_do_not_end_the_service() -> None:
    async with served() as serving:
        raw: aio.UnaryUnaryMultiCallable[bytes, bytes] = serving.channel.unary_unary(methods.ALLOCATE.path)
        with pytest.raises(aio.AioRpcError):
            await raw(b"\xff\xff\xff\xff", timeout=WAIT_S)
        assert await serving.allocate([f"{A}-0"])


@on_uvloop
async def test_a_running_allocate_may_end_when_the_service_stops() -> None:
    async with served() as serving:
        entered, may_go = asyncio.Event(), asyncio.Event()

        async def slow(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
            entered.set()
            await may_go.wait()
            return [ContainerResponse(env={"LATE": "1"})]

        serving.allocator.script = slow
        asked = asyncio.create_task(serving.allocate([f"{A}-0"]))
        await entered.wait()
        stopped = asyncio.create_task(serving.endpoint.stop())
        await asyncio.sleep(0)
        may_go.set()
        (answer,) = await asked
        await stopped
        assert dict(answer.envs) == {"LATE": "1"}


def test_an_answer_arrives_whole() -> None:
    answer = ContainerResponse(
        env={"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"},
        mounts=(
            HostMount("/usr/local/vgpu", "/host/vgpu", read_only=False),
            HostMount("/etc/ld.so.preload", "/host/preload"),
        ),
        devices=(DeviceNode("/dev/nvidia0", "/dev/nvidia0"),),
        annotations={"cdi.k8s.io/x": "a=b"},
        cdi_devices=("k8s.device-plugin.nvidia.com/gpu=a",),
    )
    assert MessageToDict(
        service.allocate_response([answer, ContainerResponse()]), preserving_proto_field_name=True
    ) == {
        "container_responses": [
            {
                "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"},
                "mounts": [
                    {"container_path": "/usr/local/vgpu", "host_path": "/host/vgpu"},
                    {"container_path": "/etc/ld.so.preload", "host_path": "/host/preload", "read_only": True},
                ],
                "devices": [{"container_path": "/dev/nvidia0", "host_path": "/dev/nvidia0", "permissions": "rw"}],
                "annotations": {"cdi.k8s.io/x": "a=b"},
                "cdi_devices": [{"name": "k8s.device-plugin.nvidia.com/gpu=a"}],
            },
            {},
        ]
    }


def test_a_list_tells_numa_node_0_from_none() -> None:
    listed = service.device_list([Replica("a", True, None), Replica("b", False, 0), Replica("c", True, 1)])
    assert [(each.ID, each.health, [node.ID for node in each.topology.nodes]) for each in listed.devices] == [
        ("a", "Healthy", []),
        ("b", "Unhealthy", [0]),
        ("c", "Healthy", [1]),
    ]
    assert [each.HasField("topology") for each in listed.devices] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no room", "no room"),
        ("GPU-\u00e9", "GPU-\u00e9"),
        ("lone \ud800", "lone ?"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "..."),
    ],
    ids=["plain", "not ASCII", "not even Unicode", "just fits", "too long"],
)
def test_a_status_text_is_fit_for_a_header(text: str, told: str) -> None:
    assert service.status_text(text) == told
