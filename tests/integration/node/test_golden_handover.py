"""Golden cases 8 to 11 and 15 to 22: which container gets what, and what is written about it.

Where the table has the cards `GPU-a` and `GPU-b`, these are the node's two cards: an agent knows its own cards only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tessera.node.handover import allocator, assembly, verifier
from tessera.wire.keys import BIND_PHASE, NODE_LOCK
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices
from tessera_lab.sandbox.api.faults import Fail, Hold
from tests.support.agent import (
    NODE,
    TO_ALLOCATE,
    AgentNode,
    agent_node,
    bound,
    lock,
    registered,
    take_lock,
    unlocked,
    writes,
)

POD = r"/pods/p$"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of pods is never behind, so no call needs to wait for it."""
    monkeypatch.setattr(allocator, "WATCH_LAG_S", 0.02)


def both(node: AgentNode) -> list[list[DeviceEntry]]:
    return [[node.slice(0, memory=3000, cores=50)], [node.slice(1, memory=4000, cores=60)]]


def ids(node: AgentNode, card: int, *numbers: int) -> list[str]:
    return [f"{node.card(card).uuid}-{number}" for number in numbers]


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing looks at the pods in the middle of a call; a sweep or a check would write what it sees."""
    monkeypatch.setattr(assembly, "SWEEP_S", 3600.0)
    monkeypatch.setattr(verifier, "GATHER_S", 3600.0)


async def test_golden_8_two_containers_get_their_slices_one_call_after_the_other(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await bound(node, "p", both(node))
        held = await lock(node, "p")
        first = (await node.kubelet.allocate(ids(node, 0, 0))).container_responses[0].envs
        assert (first["CUDA_DEVICE_MEMORY_LIMIT_0"], first["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "50")
        left = [each for each in decode_pod_devices(node.annotations("p")[TO_ALLOCATE]) if each]
        assert left == [[node.slice(1, memory=4000, cores=60)]]
        assert node.annotations("p")[BIND_PHASE] == "allocating"
        assert node.annotations()[NODE_LOCK] == held
        second = (await node.kubelet.allocate(ids(node, 1, 0))).container_responses[0].envs
        assert (second["CUDA_DEVICE_MEMORY_LIMIT_0"], second["CUDA_DEVICE_SM_LIMIT"]) == ("4000m", "60")
        assert node.annotations("p")[BIND_PHASE] == "success"
        assert NODE_LOCK not in node.annotations()


@pytest.mark.parametrize("locked", [True, False])
async def test_golden_9_both_containers_in_one_call_are_one_patch(
    tmp_path: Path, undisturbed: None, locked: bool
) -> None:
    async with agent_node(tmp_path) as node:
        await bound(node, "p", both(node))
        if locked:
            await lock(node, "p")
        answers = (await node.kubelet.allocate(ids(node, 0, 0), ids(node, 1, 0))).container_responses
        assert [each.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] for each in answers] == ["3000m", "4000m"]
        await node.phase_is("p", "success")
        assert writes(node, "/pods/p") == [("PATCH", "/api/v1/namespaces/default/pods/p")]


async def test_golden_10_two_devices_of_a_container_are_numbered_and_the_first_limits_its_cores(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=3000, cores=50), node.slice(1, memory=4000, cores=60)]])
        envs = (await node.allocate(2)).envs
        assert (envs["CUDA_DEVICE_MEMORY_LIMIT_0"], envs["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ("3000m", "4000m")
        assert envs["CUDA_DEVICE_SM_LIMIT"] == "50"
        assert envs["NVIDIA_VISIBLE_DEVICES"] == f"{node.card(0).uuid},{node.card(1).uuid}"


async def test_golden_11_the_init_container_comes_first_and_gets_a_folder_of_its_own_name(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        pod = await bound(node, "p", both(node), inits=1)
        (init,) = pod["spec"]["initContainers"]
        answer = (await node.kubelet.allocate(ids(node, 0, 0))).container_responses[0]
        (folder,) = (each.host_path for each in answer.mounts if each.container_path == f"{tmp_path}/hook/vgpu")
        assert folder == f"{tmp_path}/hook/vgpu/containers/{pod['metadata']['uid']}_{init['name']}"
        assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"


async def test_golden_15_a_request_of_another_number_fails_the_pod_that_the_lock_names(
    tmp_path: Path, impatient: None
) -> None:
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        await lock(node, "p")
        with pytest.raises(grpc.aio.AioRpcError, match="device number not matched") as caught:
            await node.kubelet.allocate(ids(node, 0, 0, 1))
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert node.annotations("p")[BIND_PHASE] == "failed"
        assert NODE_LOCK not in node.annotations()


async def test_golden_16_where_nobody_waits_the_request_is_refused_and_nothing_is_written(
    tmp_path: Path, impatient: None
) -> None:
    async with agent_node(tmp_path) as node:
        await registered(node)
        before = writes(node)
        with pytest.raises(grpc.aio.AioRpcError, match=f"no binding pod found on node {NODE}"):
            await node.kubelet.allocate(ids(node, 0, 0))
        assert writes(node) == before


async def test_golden_17_a_lock_that_became_another_pods_meanwhile_stays(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await node.plane.create_pod({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "c", "image": "x"}]}})
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        await lock(node, "p")
        hold = Hold(asyncio.Event(), asyncio.Event())
        node.plane.server.faults.next(hold, method="PATCH", path=POD)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node.kubelet.allocate(ids(node, 0, 0)))
            await hold.reached.wait()
            foreign = await take_lock(node, "q")
            hold.release.set()
        assert node.annotations("p")[BIND_PHASE] == "success"
        assert node.annotations()[NODE_LOCK] == foreign


async def test_golden_18_the_lock_is_released_though_the_phase_could_not_be_written(
    tmp_path: Path, impatient: None
) -> None:
    """Of a pod that failed: here the phase `success` and the erasing are one patch, which is case 19. The phase is made
    up for as soon as the API takes it."""
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        await lock(node, "p")
        node.plane.server.faults.next(Fail(500), method="PATCH", path=POD)
        with pytest.raises(grpc.aio.AioRpcError, match="device number not matched"):
            await node.kubelet.allocate(ids(node, 0, 0, 1))
        assert NODE_LOCK not in node.annotations()
        await node.phase_is("p", "failed")


async def test_golden_19_an_erase_that_fails_fails_the_pod(tmp_path: Path, undisturbed: None) -> None:
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        await lock(node, "p")
        node.plane.server.faults.next(Fail(500), method="PATCH", path=POD)
        with pytest.raises(grpc.aio.AioRpcError, match="patch of the annotations of default/p failed"):
            await node.kubelet.allocate(ids(node, 0, 0))
        assert node.annotations("p")[BIND_PHASE] == "failed"
        await unlocked(node)


async def test_golden_19_without_a_lock_nobody_waits_for_the_erase_and_it_is_made_up_for(tmp_path: Path) -> None:
    """Not as upstream: kubelet has its answer already, so an API that is away for a moment costs no pod."""
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        node.plane.server.faults.next(Fail(500), method="PATCH", path=POD)
        await node.kubelet.allocate(ids(node, 0, 0))
        await node.phase_is("p", "success")


EIGHT = {"cards": [{"model": "A100-SXM4-80GB", "count": 8}]}


async def test_golden_20_a_preference_keeps_what_must_be_in_it_and_fills_up_from_the_planned_cards(
    tmp_path: Path,
) -> None:
    async with agent_node(tmp_path, cards=EIGHT) as node:
        await bound(node, "p", [[node.slice(card, memory=1000) for card in range(8)]])
        must = ids(node, 3, 2)
        (chosen,) = await node.kubelet.prefer(list(node.kubelet.health), size=8, must_include=must)
        others = [each for card in (0, 1, 2, 4, 5, 6, 7) for each in ids(node, card, 0)]
        assert sorted(chosen) == sorted([*must, *others])


async def test_golden_21_there_is_no_preference_where_the_planned_card_is_not_to_be_had(tmp_path: Path) -> None:
    """Not as upstream, which then leaves the answer out so that later ones move up: here it is an empty one."""
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=1000)]])
        assert await node.kubelet.prefer(ids(node, 1, 0, 1), size=1) == [[]]


@pytest.mark.parametrize(
    "named",
    [lambda uuid: f"{uuid}-10", lambda uuid: f"{uuid}::replica-1", lambda uuid: uuid],
    ids=["a replica", "a replica as NVIDIA's plugin writes it", "the card itself"],
)
async def test_golden_22_an_id_means_its_card_however_it_is_written(
    tmp_path: Path, named: Callable[[str], str]
) -> None:
    async with agent_node(tmp_path, yaml="nvidia: {deviceSplitCount: 11}") as node:
        assert node.card(1).uuid.count("-") == 5
        await bound(node, "p", [[node.slice(1, memory=1000)]])
        available = [named(node.card(card).uuid) for card in (0, 1)]
        assert await node.kubelet.prefer(available, size=1) == [[named(node.card(1).uuid)]]
