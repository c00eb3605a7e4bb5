"""API server, scheduling loop and nodes together: a cluster that starts quickly, works, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES
from tessera.wire import keys
from tessera_lab.sandbox.api.faults import Fail
from tessera_lab.sandbox.api.server import ServerOptions
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.scheduling.loop import SchedulingLoop
from tests.support.event_loops import in_fake_time, in_real_time
from tests.unit.lab.sandbox.scripted_extender import Json, ScriptedExtender

CARD = gpu_cards("n", 1)[0]


def nodes(count: int) -> list[SimulatedNode]:
    return [SimulatedNode(f"n{number}", gpu_cards(f"n{number}", 8)) for number in range(count)]


def plain_pod(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}}


def gpu_pod(name: str) -> Json:
    """As the webhook leaves it."""
    paths = {
        "NVIDIA_VISIBLE_DEVICES": keys.visible_devices(0),
        "CUDA_DEVICE_MEMORY_LIMIT_0": keys.memory_limit(0, 0),
        "CUDA_DEVICE_SM_LIMIT": keys.core_limit(0),
    }
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}
        for name, key in paths.items()
    ]
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}, "env": env}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "hami-scheduler", "containers": [container]}}


def slice_of(name: str) -> dict[str, str]:
    """What the scripted extender's binding writes."""
    memory = 1000 + int(name.removeprefix("p"))
    text = f"{CARD.uuid},NVIDIA,{memory},1:;"
    return {
        keys.ASSIGNED_NODE: "n",
        keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        keys.BIND_TIME: "1800000000",
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
        keys.visible_devices(0): CARD.uuid,
        keys.memory_limit(0, 0): f"{memory}m",
        keys.core_limit(0): "1",
    }


@in_real_time
async def test_six_nodes_are_there_within_a_second() -> None:
    began = time.perf_counter()
    async with ControlPlane(nodes=nodes(6)) as plane:
        await plane.start_scheduling()
        assert time.perf_counter() - began < 1.0
        assert len((await plane.client.list(NODES.path(), dict[str, Any])).items) == 6


@pytest.mark.parametrize("tls", [False, True])
@in_real_time
async def test_the_kubeconfig_lets_others_in_and_goes_with_the_cluster(tls: bool) -> None:
    async with ControlPlane(nodes=nodes(1), server=ServerOptions(tls=tls, token="secret")) as plane:
        path = plane.kubeconfig
        async with KubeClient(load_access(kubeconfig=str(path), environ={})) as client:
            assert [each["metadata"]["name"] for each in (await client.list(NODES.path(), dict[str, Any])).items] == [
                "n0"
            ]
    assert not path.exists()


@in_real_time
async def test_nothing_is_left_running_afterwards() -> None:
    before = asyncio.all_tasks()
    async with (
        ScriptedExtender() as extender,
        ControlPlane(nodes=nodes(2)) as plane,
    ):
        await plane.start_scheduling(extender.url)
        extender.client = plane.client
        await plane.create_pod(plain_pod("p"))
        await plane.wait_for(lambda: plane.phase("default", "p") == "Running")
        await plane.delete_pod("default", "p")
    for _ in range(5):
        await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


@in_real_time
async def test_a_test_that_fails_inside_shows_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ControlPlane(nodes=nodes(1)):
            raise ZeroDivisionError


@in_fake_time
async def test_waiting_for_what_does_not_happen_says_so() -> None:
    async with ControlPlane() as plane:
        with pytest.raises(TimeoutError, match="waited 30 s for a miracle"):
            await plane.wait_for(lambda: False, 30, what="a miracle")
        with pytest.raises(TimeoutError, match="waited 60 s for a condition that never became true"):
            await plane.wait_for(lambda: None)


@in_real_time
async def test_a_cluster_that_cannot_start_says_why() -> None:
    plane = ControlPlane(nodes=nodes(1))
    plane.server.faults.next(Fail(403, message="not today"), method="POST", path="nodes")
    with pytest.raises(ExceptionGroup) as caught:
        async with plane:
            pass
    assert "not today" in str(caught.value.exceptions[0])


@in_real_time
async def test_waits_end_when_a_part_of_the_cluster_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(loop: SchedulingLoop) -> bool:
        raise ZeroDivisionError

    async def use(plane: ControlPlane) -> None:
        async with plane:
            monkeypatch.setattr(SchedulingLoop, "step", broken)
            await plane.start_scheduling()
            await plane.wait_for(lambda: False)

    with pytest.raises(ExceptionGroup):
        await use(ControlPlane(nodes=nodes(1)))


async def test_two_nodes_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="there are two nodes n0"):
        async with ControlPlane(nodes=[*nodes(1), *nodes(1)]):
            pass


def test_a_cluster_that_does_not_run_has_nothing_to_show() -> None:
    plane = ControlPlane()
    for name in ("client", "kubeconfig", "nodes"):
        with pytest.raises(RuntimeError, match="not running"):
            getattr(plane, name)
    assert plane.pod("default", "p") is None
    assert plane.phase("default", "p") == ""
    assert plane.node("n") is None


@in_real_time
async def test_nodes_join_and_die() -> None:
    async with ControlPlane() as plane:
        await plane.start_scheduling()
        await plane.create_pod(plain_pod("p"))
        await plane.fleet.add(nodes(1)[0])
        await plane.wait_for(lambda: plane.phase("default", "p") == "Running")
        await plane.fleet.remove("n0")
        assert plane.node("n0") is not None
        await plane.create_pod(plain_pod("q"))
        await plane.wait_for(lambda: (plane.pod("default", "q") or {})["spec"].get("nodeName") == "n0")
        assert plane.phase("default", "q") == "Pending"
        await plane.delete_pod("default", "q", grace_s=0)


@in_real_time
async def test_the_extender_can_be_named_later_and_changed() -> None:
    async with ControlPlane(nodes=nodes(1)) as plane, ScriptedExtender() as one, ScriptedExtender() as other:
        one.client = other.client = plane.client
        one.annotations = other.annotations = slice_of
        await plane.create_pod(gpu_pod("p1"))
        await plane.start_scheduling(one.url)
        await plane.wait_for(lambda: (plane.pod("default", "p1") or {})["spec"].get("nodeName"))
        await plane.start_scheduling(other.url)
        await plane.create_pod(gpu_pod("p2"))
        await plane.wait_for(lambda: (plane.pod("default", "p2") or {})["spec"].get("nodeName"))
    assert (one.asked, other.asked) == (["p1"], ["p2"])
