from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict

from tessera.node.kubelet.pod_resources import PodResourcesClient, PodResourcesError
from tessera.wire.kubelet import pod_resources_pb2 as messages
from tests.support.event_loops import on_uvloop
from tests.support.kubelet import ScriptedPodResources, serving_pod_resources

SAMPLE = Path(__file__).parents[3] / "samples" / "kubelet" / "podresources.json"


@pytest.fixture
def socket(folder: Path) -> Path:
    return folder / "pod-resources.sock"


async def asking(socket: Path | None, *, deadline: float = 20.0) -> PodResourcesClient:
    client = PodResourcesClient(deadline=deadline)
    await client.use(socket, "nvidia.com/gpu")
    return client


@on_uvloop
async def test_a_real_kubelets_answer_names_the_devices_of_every_container(socket: Path) -> None:
    script, client = ScriptedPodResources(), await asking(socket)
    script.response = ParseDict(json.loads(SAMPLE.read_text())["List"], messages.ListPodResourcesResponse())
    async with serving_pod_resources(socket, script):
        assert await client.list() == {
            ("default", "realgpu", "c1"): ("gpu-9", "gpu-8"),
            ("default", "realgpu", "c2"): ("gpu-7",),
        }
    await client.close()


@on_uvloop
async def test_other_resources_and_containers_without_devices_are_left_out(socket: Path) -> None:
    script, client = ScriptedPodResources(resource="example.com/fpga"), await asking(socket)
    script.held = {("default", "a", "c"): ["f-0"], ("default", "b", "c"): []}
    async with serving_pod_resources(socket, script):
        assert await client.list() == {}
        script.resource = "nvidia.com/gpu"
        assert await client.list() == {("default", "a", "c"): ("f-0",)}
    await client.close()


@on_uvloop
async def test_a_container_that_is_told_twice_holds_every_device_once(socket: Path) -> None:
    device = messages.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["a", "b"])
    more = messages.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["b", "c"])
    pods = [
        messages.PodResources(name="p", namespace="n", containers=[messages.ContainerResources(name="c", devices=[d])])
        for d in (device, more)
    ]
    script, client = ScriptedPodResources(), await asking(socket)
    script.response = messages.ListPodResourcesResponse(pod_resources=pods)
    async with serving_pod_resources(socket, script):
        assert await client.list() == {("n", "p", "c"): ("a", "b", "c")}
    await client.close()


@on_uvloop
async def test_a_list_longer_than_grpc_takes_by_itself_is_read(socket: Path) -> None:
    script, client = ScriptedPodResources(), await asking(socket)
    script.held = {("default", f"pod-{number}", "c"): [f"{number:0>2000}"] for number in range(3000)}
    async with serving_pod_resources(socket, script):
        assert len(await client.list()) == 3000
    await client.close()


@on_uvloop
async def test_a_kubelet_that_is_absent_is_a_typed_error_and_is_found_when_it_comes(socket: Path) -> None:
    script, client = ScriptedPodResources(), await asking(socket)
    script.held = {("default", "a", "c"): ["g-0"]}
    for _ in range(2):
        with pytest.raises(PodResourcesError, match="UNAVAILABLE"):
            await client.list()
        async with serving_pod_resources(socket, script):
            assert await client.list() == {("default", "a", "c"): ("g-0",)}
            assert await client.list() == {("default", "a", "c"): ("g-0",)}
    await client.close()
    await client.close()


@on_uvloop
async def test_a_kubelet_that_does_not_answer_is_a_typed_error(socket: Path) -> None:
    script, client = ScriptedPodResources(), await asking(socket, deadline=0.05)
    script.silent = True
    async with serving_pod_resources(socket, script):
        with pytest.raises(PodResourcesError, match="DEADLINE_EXCEEDED"):
            await client.list()
    await client.close()


@on_uvloop
async def test_two_may_ask_at_once_and_one_may_give_up(socket: Path) -> None:
    script, client = ScriptedPodResources(), await asking(socket)
    script.held = {("default", "a", "c"): ["g-0"]}
    async with serving_pod_resources(socket, script):
        first, second = await asyncio.gather(client.list(), client.list())
        assert first == second == {("default", "a", "c"): ("g-0",)}
        script.silent = True
        given_up = asyncio.create_task(client.list())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        script.silent = False
        assert await client.list() == first
    await client.close()


@on_uvloop
async def test_another_socket_and_resource_count_from_the_next_question_on(socket: Path) -> None:
    script, client = ScriptedPodResources(), await asking(None)
    script.held = {("default", "a", "c"): ["g-0"]}
    assert await client.held() is None
    async with serving_pod_resources(socket, script):
        await client.use(socket, "nvidia.com/gpu")
        assert await client.held() == [("g-0",)]
        running = asyncio.create_task(client.list())
        await asyncio.sleep(0)
        await client.use(socket.with_name("other.sock"), "nvidia.com/gpu")
        assert await running == {("default", "a", "c"): ("g-0",)}
        with pytest.raises(PodResourcesError, match=r"other\.sock"):
            await client.list()
    await client.close()
