"""The plugin beside a scripted kubelet, through everything that happens to either on a node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from tessera.kube.backoff import Backoff
from tessera.node.fleet import Fleet
from tessera.node.kubelet import plugin as plugin_module
from tessera.node.kubelet.endpoint import SocketState, SocketWatch, file_id
from tessera.node.kubelet.plugin import Plugin, PluginTiming, RegistrationError, register, socket_path
from tessera.node.settings import AgentSettings, Paths
from tessera.node.watched_value import WatchedValue
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.node_config import NodeSettings
from tests.support.event_loops import on_uvloop
from tests.support.kubelet import ScriptedAllocator, ScriptedKubelet, fleet, settings_in, uuid
from tests.support.logs import Logs, captured
from tests.support.scheduler_process import until

NEVER_S = 3600.0
AT_ONCE = PluginTiming(backoff=Backoff(NEVER_S, NEVER_S, NEVER_S), look_every=0.001, listen=NEVER_S)
"""no retry in a test's life: whatever happens, a change of the sockets brought it about"""
PATIENT = PluginTiming(backoff=Backoff(0.001, 0.001, 0.001), look_every=0.001, listen=NEVER_S)
"""retries, hardly waiting"""

REQUEST = messages.RegisterRequest(version="v1beta1", endpoint="nvidia-gpu.sock", resource_name="nvidia.com/gpu")


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with captured() as taken:
        yield taken


@asynccontextmanager
async def running(
    settings: AgentSettings, cards: WatchedValue[Fleet] | None = None, *, timing: PluginTiming = AT_ONCE
) -> AsyncIterator[Plugin]:
    plugin = Plugin(settings, cards or WatchedValue(fleet(2)), ScriptedAllocator(), timing=timing)
    async with running_plugin(plugin):
        yield plugin


@asynccontextmanager
async def running_plugin(plugin: Plugin) -> AsyncIterator[None]:
    task = asyncio.create_task(plugin.run())
    try:
        yield
    finally:
        assert not task.done(), "the plugin ended by itself"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def own(folder: Path) -> Path:
    return folder / "nvidia-gpu.sock"


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


# -- registering


@pytest.mark.parametrize("preferred", [True, False])
@on_uvloop
async def test_kubelet_learns_the_same_options_from_the_registration_and_from_the_call(
    folder: Path, preferred: bool
) -> None:
    settings = settings_in(folder, NodeSettings(split_count=2, preferred_allocation=preferred))
    async with ScriptedKubelet(folder) as kubelet, running(settings):
        request = await kubelet.registered()
        assert (request.version, request.endpoint) == ("v1beta1", "nvidia-gpu.sock")
        assert request.resource_name == "nvidia.com/gpu"
        assert request.options == kubelet.options[0]
        assert request.options.get_preferred_allocation_available is preferred
        assert len(await kubelet.listed()) == 4


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("nvidia.com/gpu", "nvidia-gpu.sock"),
        ("example.com/shared/gpu", "nvidia-gpu.sock"),
        ("vgpu", "nvidia-vgpu.sock"),
    ],
)
def test_the_socket_is_named_after_the_resource(folder: Path, resource: str, name: str) -> None:
    assert socket_path(settings_in(folder, resource=resource)) == folder / name


@on_uvloop
async def test_a_registered_plugin_is_of_use(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder)) as plugin:
        assert plugin.problem == "not started"
        await kubelet.listed()
        answer = await kubelet.allocate([f"{uuid(0)}-3"])
        assert dict(answer.container_responses[0].envs) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)}-3"}
        assert await kubelet.prefer([f"{uuid(0)}-3"], size=1) == [[]]
        await until(lambda: plugin.problem == "")


@on_uvloop
async def test_a_plugin_that_is_not_to_register_only_serves(folder: Path) -> None:
    settings = AgentSettings(node_name="node-a", paths=Paths(plugins=folder, kubelet_socket=None))
    async with ScriptedKubelet(folder) as kubelet, running(settings) as plugin:
        await until(lambda: plugin.problem == "")
        assert own(folder).is_socket()
        assert kubelet.registrations == []


# -- kubelet comes and goes


@on_uvloop
async def test_a_kubelet_that_was_absent_is_told_as_soon_as_it_comes(folder: Path) -> None:
    async with running(settings_in(folder)) as plugin:
        await until(lambda: plugin.problem.startswith("kubelet is not running"))
        async with ScriptedKubelet(folder) as kubelet:
            await kubelet.listed()


@on_uvloop
async def test_a_dead_socket_of_kubelet_is_not_waited_upon(folder: Path) -> None:
    dead_socket(folder / "kubelet.sock")
    async with running(settings_in(folder)) as plugin:
        await until(lambda: "UNAVAILABLE" in plugin.problem)
        async with ScriptedKubelet(folder) as kubelet:
            await kubelet.listed()


@on_uvloop
async def test_a_kubelet_that_restarts_and_deletes_all_sockets_is_served_and_told_again(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder)):
        for times in range(1, 4):
            await kubelet.registered(times)
            await kubelet.until(lambda times=times: len(kubelet.lists) >= times)  # type: ignore[misc]
            await kubelet.restart()
        await kubelet.registered(4)
        assert own(folder).is_socket()
        assert await kubelet.allocate([f"{uuid(0)}-0"])


@on_uvloop
async def test_that_kubelet_is_new_is_known_before_it_hears_of_the_plugin(folder: Path) -> None:
    heard: list[int] = []
    async with ScriptedKubelet(folder) as kubelet:
        plugin = Plugin(
            settings_in(folder),
            WatchedValue(fleet(2)),
            ScriptedAllocator(),
            timing=AT_ONCE,
            on_new_kubelet=lambda: heard.append(len(kubelet.registrations)),
        )
        async with running_plugin(plugin):
            await kubelet.registered(1)
            await kubelet.restart()
            await kubelet.registered(2)
    assert {0, 1} <= set(heard)
    assert heard[0] == 0


@on_uvloop
async def test_a_kubelet_that_was_killed_is_told_when_it_is_back(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder), timing=PATIENT) as plugin:
        await kubelet.listed()
        await kubelet.stop(leaving_socket=True)
        await until(lambda: "UNAVAILABLE" in plugin.problem)
        await kubelet.start()
        await kubelet.registered(2)
        assert await kubelet.allocate([f"{uuid(0)}-0"])


@on_uvloop
async def test_a_registration_that_kubelet_refuses_is_tried_again_and_complained_of_once(
    folder: Path, logs: Logs
) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder), timing=PATIENT):
        kubelet.refusals = ["not now"] * 7
        await kubelet.restart()
        await kubelet.registered(2 if kubelet.registrations else 1)
        complaints = [each["problem"] for each in logs.of("kubelet cannot use the plugin")]
        assert sum("not now" in each for each in complaints) == 1


@on_uvloop
async def test_a_kubelet_that_listens_is_told_once_however_often_the_plugin_looks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    class Restless(SocketWatch):
        async def other_than(self, seen: SocketState, *, within: float) -> SocketState:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0)
            return self.look()

    monkeypatch.setattr(plugin_module, "SocketWatch", Restless)
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder)):
        await kubelet.listed()
        so_far = looks
        await until(lambda: looks > so_far + 20)
        assert len(kubelet.registrations) == 1


@on_uvloop
async def test_a_kubelet_that_stops_listening_is_told_again(folder: Path) -> None:
    timing = PluginTiming(backoff=Backoff(0.001, 0.001, 0.001), look_every=0.001, listen=0.05)
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder), timing=timing):
        await kubelet.listed()
        lists = len(kubelet.lists)
        await kubelet.hang_up()
        await kubelet.until(lambda: len(kubelet.lists) > lists)


@on_uvloop
async def test_a_kubelet_that_never_listens_is_a_problem(folder: Path) -> None:
    timing = PluginTiming(backoff=Backoff(0.001, 0.001, 0.001), look_every=0.001, listen=0.01)
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder), timing=timing) as plugin:
        kubelet.listens = False
        await kubelet.registered(3)
        await until(lambda: "kubelet does not listen" in plugin.problem)
        kubelet.listens = True
        await kubelet.listed()


# -- the own socket


@on_uvloop
async def test_an_own_socket_that_vanished_is_made_again_and_kubelet_told(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder)):
        await kubelet.listed()
        own(folder).unlink()
        await kubelet.registered(2)
        assert await kubelet.allocate([f"{uuid(0)}-0"])


@on_uvloop
async def test_a_dead_socket_in_the_place_of_the_own_one_is_replaced(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder)):
        await kubelet.listed()
        dead_socket(folder / "dead")
        (folder / "dead").rename(own(folder))
        await kubelet.registered(2)
        assert await kubelet.allocate([f"{uuid(0)}-0"])


@on_uvloop
async def test_of_two_agents_the_newer_serves_and_the_older_takes_over_when_it_is_gone(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder)) as older:
        await kubelet.registered()
        async with running(settings_in(folder)) as newer:
            await kubelet.registered(2)
            await until(lambda: "another agent serves" in older.problem)
            served = file_id(own(folder))
            await until(lambda: newer.problem == "")
            assert file_id(own(folder)) == served
        await kubelet.registered(3)
        assert await kubelet.allocate([f"{uuid(0)}-0"])


@on_uvloop
async def test_a_folder_that_is_missing_at_first_is_waited_for(folder: Path) -> None:
    plugins = folder / "device-plugins"
    async with running(settings_in(plugins), timing=PATIENT) as plugin:
        await until(lambda: plugin.problem.startswith("cannot serve on"))
        plugins.mkdir()
        async with ScriptedKubelet(plugins) as kubelet:
            await kubelet.listed()


@on_uvloop
async def test_any_number_of_failures_to_serve_does_not_end_the_agent(folder: Path, logs: Logs) -> None:
    own(folder).mkdir()
    failures = 0

    class Counted(Backoff):
        def delay(self, failed: int) -> float:
            nonlocal failures
            failures = failed
            return 0.001

    timing = PluginTiming(backoff=Counted(), look_every=0.001, listen=NEVER_S)
    async with ScriptedKubelet(folder) as kubelet, running(settings_in(folder), timing=timing) as plugin:
        await until(lambda: failures > 6)
        assert plugin.problem.startswith("cannot serve on")
        own(folder).rmdir()
        await kubelet.listed()
        assert await kubelet.allocate([f"{uuid(0)}-0"])
    assert len(logs.of("kubelet cannot use the plugin")) == 1


# -- stopping


@on_uvloop
async def test_a_stop_ends_the_stream_well_and_removes_the_socket(folder: Path) -> None:
    async with ScriptedKubelet(folder) as kubelet:
        async with running(settings_in(folder)):
            await kubelet.listed()
        await kubelet.until(lambda: kubelet.ended)
        assert kubelet.ended == [grpc.StatusCode.OK]
        assert sorted(path.name for path in folder.iterdir()) == ["kubelet.sock"]


@on_uvloop
async def test_a_stop_at_any_moment_leaves_no_socket(folder: Path) -> None:
    async with ScriptedKubelet(folder):
        for turns in range(0, 60, 4):
            async with running(settings_in(folder)):
                for _ in range(turns):
                    await asyncio.sleep(0)
            assert sorted(path.name for path in folder.iterdir()) == ["kubelet.sock"]


# -- what exactly reaches kubelet, and every way in which it may not


@pytest.fixture
def kubelet_socket(folder: Path) -> Path:
    return folder / "kubelet.sock"


@on_uvloop
async def test_kubelet_is_addressed_as_localhost(kubelet_socket: Path) -> None:
    sent = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An empty SETTINGS frame: gRPC sends its request only after that.
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        data = b""
        while b"Register" not in data or b"localhost" not in data:
            if not (more := await reader.read(65536)):
                break
            data += more
        writer.close()
        await writer.wait_closed()
        sent.set_result(data)

    async with await asyncio.start_unix_server(take, kubelet_socket):
        with pytest.raises(RegistrationError):
            await register(kubelet_socket, REQUEST)
        data = await sent
    assert b"/v1beta1.Registration/Register" in data
    assert b":authority\x09localhost" in data


@on_uvloop
async def test_a_kubelet_that_never_answers_is_given_up(kubelet_socket: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(kubelet_socket))
        silent.listen()
        with pytest.raises(RegistrationError, match="DEADLINE_EXCEEDED"):
            await register(kubelet_socket, REQUEST, deadline=0.05)


@on_uvloop
async def test_a_kubelet_that_is_not_there_is_a_typed_error(kubelet_socket: Path) -> None:
    with pytest.raises(RegistrationError, match=rf"kubelet at {kubelet_socket}: UNAVAILABLE"):
        await register(kubelet_socket, REQUEST)


@on_uvloop
async def test_a_refusal_says_why(kubelet_socket: Path) -> None:
    async with ScriptedKubelet(kubelet_socket.parent) as kubelet:
        kubelet.refusals = ["the endpoint is not supported"]
        with pytest.raises(RegistrationError, match="UNKNOWN: the endpoint is not supported"):
            await register(kubelet_socket, REQUEST)
