"""Simulated nodes: what they register, what containers get to see, and what happens when something breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.core.model.devices import Device
from tessera.kube.resources import NODES
from tessera.vendors.base import Switches
from tessera.vendors.node_reader import node_facts
from tessera.vendors.registry import build_vendors
from tessera.wire import keys
from tessera.wire.objects import Node, decode_object
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera_lab.sandbox.api.faults import Fail, Hold
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.allocation import card_of
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.nodes.node import HANDSHAKE, REGISTER, SimulatedNode, gpu_cards
from tests.support.event_loops import in_fake_time, in_real_time

Json = dict[str, Any]
Slices = list[list[tuple[int, int]]]
"""by container: memory and cores of each device"""

TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
CARDS = gpu_cards("n", 4, slots=40)


@asynccontextmanager
async def one_node(
    agent: str = "env", *, cards: tuple[Device, ...] = CARDS, **more: Any
) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(nodes=[SimulatedNode("n", cards, agent=agent, **more)]) as plane:
        plane.nodes["n"].pace.stop_s = 0.0
        yield plane


def container(name: str, devices: int, position: int, *, carries: bool, **more: Any) -> Json:
    """As the webhook leaves it: with references to the pod's own annotations."""
    paths = {
        "NVIDIA_VISIBLE_DEVICES": keys.visible_devices(position),
        "CUDA_DEVICE_SM_LIMIT": keys.core_limit(position),
    }
    paths |= {f"CUDA_DEVICE_MEMORY_LIMIT_{index}": keys.memory_limit(position, index) for index in range(devices)}
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}
        for name, key in paths.items()
    ]
    limits = {"limits": {"nvidia.com/gpu": str(devices)}} if devices else {}
    return {"name": name, "image": "x", "resources": limits, "env": env if carries and devices else [], **more}


def entries(slices: Slices, cards: tuple[Device, ...] = CARDS) -> list[list[DeviceEntry]]:
    return [
        [DeviceEntry(cards[index].uuid, "NVIDIA", memory, cores) for index, (memory, cores) in enumerate(devices)]
        for devices in slices
    ]


def binding(slices: Slices) -> dict[str, str]:
    """The annotations that Tessera's binding writes for these slices."""
    written = entries(slices)
    text = encode_pod_devices(written)
    annotations = {
        keys.ASSIGNED_NODE: "n",
        keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        keys.BIND_TIME: "1800000000",
        TO_ALLOCATE: text,
        "hami.io/vgpu-devices-allocated": text,
    }
    for position, devices in enumerate(written):
        if devices:
            annotations[keys.visible_devices(position)] = ",".join(each.uuid for each in devices)
            annotations[keys.core_limit(position)] = str(devices[0].cores)
            annotations |= {keys.memory_limit(position, i): f"{each.memory}m" for i, each in enumerate(devices)}
    return annotations


def expected(devices: list[tuple[int, int]]) -> dict[str, str]:
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(CARDS[index].uuid for index in range(len(devices))),
        "CUDA_DEVICE_SM_LIMIT": str(devices[0][1]),
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{memory}m" for index, (memory, _) in enumerate(devices)},
    }


async def bind(
    plane: ControlPlane,
    name: str,
    slices: Slices,
    *,
    carries: bool = True,
    annotations: Json | None = None,
    **spec: Any,
) -> str:
    """Create a pod of one container for each entry of `slices`, and bind it; its uid."""
    containers = [
        container(f"c{position}", len(devices), position, carries=carries) for position, devices in enumerate(slices)
    ]
    metadata = {"name": name, "annotations": annotations or {}}
    pod = await plane.create_pod({"metadata": metadata, "spec": {"containers": containers, **spec}})
    uid: str = pod["metadata"]["uid"]
    await plane.client.bind("default", name, uid=uid, node="n", annotations=binding(slices))
    return uid


async def lock(plane: ControlPlane, owner: str) -> None:
    value = f"2026-11-15T06:51:35Z,default,{owner}"
    await plane.client.patch(NODES.path(name="n"), {"metadata": {"annotations": {keys.NODE_LOCK: value}}})


def lock_of(plane: ControlPlane) -> str | None:
    node = plane.node("n")
    assert node is not None
    found: str | None = node["metadata"]["annotations"].get(keys.NODE_LOCK)
    return found


def annotation(plane: ControlPlane, name: str, key: str) -> str | None:
    pod = plane.pod("default", name)
    assert pod is not None
    found: str | None = pod["metadata"].get("annotations", {}).get(key)
    return found


def slice_seen(plane: ControlPlane, uid: str, name: str = "c0") -> dict[str, str]:
    env = plane.nodes["n"].containers[uid, name].env
    return {key: value for key, value in env.items() if key != "CUDA_DEVICE_MEMORY_SHARED_CACHE"}


async def running(plane: ControlPlane, *names: str) -> None:
    await plane.wait_for(lambda: all(plane.phase("default", name) == "Running" for name in names), what=str(names))


async def rejected(plane: ControlPlane, name: str) -> str:
    await plane.wait_for(lambda: plane.phase("default", name) == "Failed", what=f"{name} to fail")
    status = (plane.pod("default", name) or {})["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    return str(status["message"])


# -- registration


def registered(plane: ControlPlane) -> tuple[Device, ...]:
    facts = node_facts(decode_object(json.dumps(plane.node("n")), Node), build_vendors(None, Switches()))
    assert not facts.problem
    return facts.devices


@pytest.mark.parametrize("text_registration", [False, True])
@in_real_time
async def test_what_a_node_registers_reads_back_as_its_cards(text_registration: bool) -> None:
    cards = gpu_cards("n", 4, numa_nodes=2, linked=0 if text_registration else 2)
    async with one_node(cards=cards, text_registration=text_registration) as plane:
        assert registered(plane) == cards
        status = (plane.node("n") or {})["status"]
        assert status["capacity"]["nvidia.com/gpu"] == status["allocatable"]["nvidia.com/gpu"] == "40"
        assert [(each["type"], each["status"]) for each in status["conditions"]] == [("Ready", "True")]


@pytest.mark.parametrize(("agent", "said"), [("env", "env"), ("answer", "answer"), ("hami", None)])
@in_real_time
async def test_a_node_says_which_agent_it_has(agent: str, said: str | None) -> None:
    async with one_node(agent) as plane:
        assert (plane.node("n") or {})["metadata"]["annotations"].get(keys.AGENT) == said


@in_real_time
async def test_a_node_without_cards_registers_nothing() -> None:
    async with one_node(cards=()) as plane:
        node = plane.node("n") or {}
        assert node["metadata"].get("annotations", {}) == {}
        assert "nvidia.com/gpu" not in node["status"]["capacity"]


@in_real_time
async def test_an_unhealthy_card_is_registered_as_such_and_no_longer_offered() -> None:
    async with one_node() as plane:
        await plane.nodes["n"].set_health(CARDS[1].uuid, False)
        assert [card.healthy for card in registered(plane)] == [True, False, True, True]
        status = (plane.node("n") or {})["status"]
        assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == ("160", "120")
        await plane.nodes["n"].set_health(CARDS[1].uuid, True)
        assert (plane.node("n") or {})["status"]["allocatable"]["nvidia.com/gpu"] == "160"


@in_real_time
async def test_a_node_object_that_is_there_already_is_brought_up_to_date() -> None:
    async with ControlPlane() as plane:
        await plane.client.create(NODES.path(), {"metadata": {"name": "n", "annotations": {"kept": "yes"}}})
        await plane.fleet.add(SimulatedNode("n", CARDS))
        assert registered(plane) == CARDS
        assert (plane.node("n") or {})["metadata"]["annotations"]["kept"] == "yes"


@in_fake_time
async def test_an_old_plugin_answers_the_handshake_every_30_seconds() -> None:
    async with one_node(handshake=True) as plane:
        for _ in range(3):
            asked = {HANDSHAKE: "Requesting_2026-11-15 06:51:35"}
            await plane.client.patch(NODES.path(name="n"), {"metadata": {"annotations": asked}})
            before = asyncio.get_running_loop().time()
            node = await plane.wait_for(
                lambda: (
                    (node := plane.node("n") or {})["metadata"]["annotations"][HANDSHAKE].startswith("Reported")
                    and node
                ),
                timeout=60,
            )
            assert node
            assert asyncio.get_running_loop().time() - before <= 30.001
        await plane.nodes["n"].stop_plugin()
        await plane.client.patch(NODES.path(name="n"), {"metadata": {"annotations": asked}})
        await asyncio.sleep(100)
        assert (plane.node("n") or {})["metadata"]["annotations"][HANDSHAKE].startswith("Requesting")


# -- env agents: the pod's own annotations decide


@in_real_time
async def test_every_container_sees_exactly_its_own_slice_in_whatever_order_pods_are_admitted() -> None:
    shapes: list[Slices] = [
        [[(1000 + number, number % 100)]]
        if number % 3
        else [[(2000 + number, 5), (3000 + number, 5)], [], [(number, 7)]]
        for number in range(40)
    ]
    async with one_node(shuffled=True, seed=3) as plane:
        node = plane.nodes["n"]
        node.kubelet.pause()
        uids = [await bind(plane, f"p{number}", slices) for number, slices in enumerate(shapes)]
        await plane.wait_for(lambda: len(list(node.kubelet.waiting_pods())) == len(uids))
        node.kubelet.resume()
        await running(plane, *(f"p{number}" for number in range(40)))
        assert list(dict.fromkeys(uid for uid, _ in node.containers)) != uids
        for uid, slices in zip(uids, shapes, strict=True):
            for position, devices in enumerate(slices):
                view = node.containers[uid, f"c{position}"]
                assert slice_seen(plane, uid, f"c{position}") == (expected(devices) if devices else {})
                assert len(view.device_ids) == len(devices)
        held = [replica for view in node.containers.values() for replica in view.device_ids]
        assert len(held) == len(set(held))


@in_real_time
async def test_the_handover_of_a_pod_ends_in_success_with_nothing_left_to_allocate() -> None:
    async with one_node() as plane:
        await bind(plane, "p", [[(1000, 10)], [(2000, 20)]])
        await running(plane, "p")
        assert annotation(plane, "p", keys.BIND_PHASE) == "success"
        assert annotation(plane, "p", TO_ALLOCATE) == ";;"


@in_real_time
async def test_kubelet_is_steered_to_the_planned_card() -> None:
    async with one_node() as plane:
        uid = await bind(plane, "p", [[(1000, 10), (1000, 10)]])
        await running(plane, "p")
        ids = plane.nodes["n"].containers[uid, "c0"].device_ids
        assert [card_of(each) for each in ids] == [CARDS[0].uuid, CARDS[1].uuid]


@in_real_time
async def test_without_its_annotations_a_container_that_refers_to_them_sees_no_device() -> None:
    async with one_node() as plane:
        spec = {"containers": [container("c0", 1, 0, carries=True)]}
        pod = await plane.create_pod({"metadata": {"name": "p"}, "spec": spec})
        written = {key: text for key, text in binding([[(1, 1)]]).items() if not key.startswith("tessera.io/")}
        uid = pod["metadata"]["uid"]
        await plane.client.bind("default", "p", uid=uid, node="n", annotations=written)
        await running(plane, "p")
        assert slice_seen(plane, uid)["NVIDIA_VISIBLE_DEVICES"] == ""


# -- HAMi's plugin


@in_real_time
async def test_hamis_plugin_finds_its_pod_by_the_lock_and_releases_it() -> None:
    async with one_node("hami") as plane:
        plane.nodes["n"].kubelet.pause()
        await lock(plane, "p")
        uid = await bind(plane, "p", [[(1000, 1)], [], [(2000, 2), (3000, 2)]], carries=False)
        assert lock_of(plane) is not None
        plane.nodes["n"].kubelet.resume()
        await running(plane, "p")
        assert lock_of(plane) is None
        assert annotation(plane, "p", keys.BIND_PHASE) == "success"
        assert annotation(plane, "p", TO_ALLOCATE) == ";;;;;"
        assert slice_seen(plane, uid) == expected([(1000, 1)])
        assert slice_seen(plane, uid, "c2") == expected([(2000, 2), (3000, 2)])


@pytest.mark.parametrize(
    ("slices", "asked", "text"),
    [
        ([[(1000, 1)]], 2, "device number not matched"),
        ([[]], 1, "no pending device allocation found"),
    ],
)
@in_real_time
async def test_hamis_plugin_says_failed_and_releases_the_lock(slices: Slices, asked: int, text: str) -> None:
    async with one_node("hami") as plane:
        await lock(plane, "p")
        pod = await plane.create_pod(
            {"metadata": {"name": "p"}, "spec": {"containers": [container("c0", asked, 0, carries=False)]}}
        )
        await plane.client.bind("default", "p", uid=pod["metadata"]["uid"], node="n", annotations=binding(slices))
        assert text in await rejected(plane, "p")
        await plane.wait_for(lambda: lock_of(plane) is None)
        assert annotation(plane, "p", keys.BIND_PHASE) == "failed"


@pytest.mark.parametrize(
    ("annotations", "text"), [({}, "device request not found"), ({TO_ALLOCATE: "GPU-a,NVIDIA:;"}, "missing fields")]
)
@in_real_time
async def test_hamis_plugin_fails_pods_whose_devices_it_cannot_read(annotations: dict[str, str], text: str) -> None:
    async with one_node("hami") as plane:
        await lock(plane, "p")
        spec = {"nodeName": "n", "containers": [container("c0", 1, 0, carries=False)]}
        await plane.create_pod({"metadata": {"name": "p", "annotations": annotations}, "spec": spec})
        assert text in await rejected(plane, "p")
        await plane.wait_for(lambda: lock_of(plane) is None)


# -- kubelet


@in_fake_time
async def test_a_pod_with_a_running_time_succeeds_after_it_and_frees_its_devices() -> None:
    async with one_node(cards=gpu_cards("n", 1, slots=1)) as plane:
        started = asyncio.get_running_loop().time()
        await bind(plane, "p", [[(1000, 1)]], annotations={RUN_FOR: "90"})
        await plane.wait_for(lambda: plane.phase("default", "p") == "Succeeded", timeout=600)
        assert asyncio.get_running_loop().time() - started == pytest.approx(90, abs=0.01)
        await bind(plane, "q", [[(1000, 1)]], annotations={RUN_FOR: "nonsense"})
        await running(plane, "q")


@in_fake_time
async def test_a_deleted_pod_is_gone_after_its_time_and_its_devices_are_free() -> None:
    async with one_node(cards=gpu_cards("n", 1, slots=1)) as plane:
        plane.nodes["n"].pace.stop_s = 5.0
        await bind(plane, "p", [[(1000, 1)]])
        await running(plane, "p")
        began = asyncio.get_running_loop().time()
        await plane.delete_pod("default", "p")
        assert "deletionTimestamp" in (plane.pod("default", "p") or {})["metadata"]
        await bind(plane, "early", [[(1000, 1)]])
        assert "Requested: 1, Available: 0" in await rejected(plane, "early")
        await plane.wait_for(lambda: plane.pod("default", "p") is None, timeout=60)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.01)
        await bind(plane, "q", [[(1000, 1)]])
        await running(plane, "q")


@in_real_time
async def test_a_pod_deleted_while_it_waits_for_admission_is_never_admitted() -> None:
    async with one_node() as plane:
        node = plane.nodes["n"]
        node.kubelet.pause()
        uid = await bind(plane, "p", [[(1000, 1)]])
        await plane.wait_for(lambda: list(node.kubelet.waiting_pods()))
        await plane.delete_pod("default", "p")
        await plane.wait_for(lambda: plane.pod("default", "p") is None)
        node.kubelet.resume()
        await bind(plane, "q", [[(1000, 1)]])
        await running(plane, "q")
        assert (uid, "c0") not in node.containers


@pytest.mark.parametrize("grace_s", [0, 30])
@pytest.mark.parametrize("succeeds", [True, False])
@in_real_time
async def test_a_pod_deleted_during_its_allocate_holds_no_devices_afterwards(grace_s: int, succeeds: bool) -> None:
    async with one_node("hami", cards=gpu_cards("n", 1, slots=1)) as plane:
        hold = Hold(asyncio.Event(), asyncio.Event())
        plane.server.faults.next(hold, method="PATCH", path="pods/p$")
        uid = await bind(plane, "p", [[(1000, 1)]] if succeeds else [[(1000, 1)], [(1, 1), (2, 2)]], carries=False)
        await hold.reached.wait()
        await plane.delete_pod("default", "p", grace_s=grace_s)
        await plane.wait_for(lambda: plane.pod("default", "p") is None)
        kubelet = plane.nodes["n"].kubelet
        await plane.wait_for(lambda: uid not in {pod["metadata"]["uid"] for pod in kubelet.pods()})
        hold.release.set()
        await bind(plane, "q", [[(1000, 1)]], carries=False)
        await running(plane, "q")


@in_real_time
async def test_a_pod_recreated_under_its_name_is_another_pod() -> None:
    async with one_node() as plane:
        first = await bind(plane, "p", [[(1000, 1)]])
        await running(plane, "p")
        await plane.delete_pod("default", "p", grace_s=0)
        second = await bind(plane, "p", [[(2000, 2)]])
        await running(plane, "p")
        assert slice_seen(plane, first) == expected([(1000, 1)])
        assert slice_seen(plane, second) == expected([(2000, 2)])


@in_real_time
async def test_pods_are_admitted_in_the_order_of_binding() -> None:
    async with one_node() as plane:
        node = plane.nodes["n"]
        node.kubelet.pause()
        made = [await plane.create_pod(_one_container(f"p{number}")) for number in range(5)]
        uids = [pod["metadata"]["uid"] for pod in reversed(made)]
        for pod in reversed(made):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            await plane.client.bind("default", name, uid=uid, node="n", annotations=binding([[(1, 1)]]))
        await plane.wait_for(lambda: len(list(node.kubelet.waiting_pods())) == 5)
        node.kubelet.resume()
        await running(plane, *(f"p{number}" for number in range(5)))
        assert [uid for uid, _ in node.containers] == uids


def _one_container(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [container("c0", 1, 0, carries=True)]}}


@in_real_time
async def test_what_kubelet_reports_is_repeated_until_the_apiserver_takes_it() -> None:
    async with one_node() as plane:
        plane.server.faults.next(Fail(500), method="PATCH", path="pods/p", times=2)
        plane.server.faults.next(Fail(429, retry_after_s=0), method="PATCH", path="pods/p/status")
        await bind(plane, "p", [[(1000, 1)]])
        await running(plane, "p")
        await plane.delete_pod("default", "p")
        plane.server.faults.next(Fail(503), method="DELETE", path="pods/p")
        await plane.wait_for(lambda: plane.pod("default", "p") is None)


# -- faults


@in_real_time
async def test_an_allocate_that_fails_fails_its_pod_and_no_other() -> None:
    async with one_node() as plane:
        plane.nodes["n"].faults.allocate_errors = 1
        await bind(plane, "a", [[(1000, 1)]])
        assert "desc = injected fault, which is unexpected" in await rejected(plane, "a")
        assert annotation(plane, "a", keys.BIND_PHASE) == "failed"
        await bind(plane, "b", [[(1000, 1)]])
        await running(plane, "b")


@in_real_time
async def test_a_plugin_that_is_down_leaves_its_registration_but_no_devices() -> None:
    async with one_node() as plane:
        node = plane.nodes["n"]
        await node.stop_plugin()
        document = plane.node("n") or {}
        assert document["status"]["allocatable"]["nvidia.com/gpu"] == "0"
        assert REGISTER in document["metadata"]["annotations"]
        await bind(plane, "a", [[(1000, 1)]])
        assert await rejected(plane, "a") == (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu."
            " Requested: 1, Available: 0, which is unexpected"
        )
        await node.start_plugin()
        assert (plane.node("n") or {})["status"]["allocatable"]["nvidia.com/gpu"] == "160"
        await bind(plane, "b", [[(1000, 1)]])
        await running(plane, "b")


@in_real_time
async def test_pods_that_were_ending_before_the_kubelet_started_are_stopped() -> None:
    async with ControlPlane() as plane:
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]}
        for name in ("leaving", "staying"):
            await plane.create_pod({"metadata": {"name": name}, "spec": spec})
        await plane.delete_pod("default", "leaving")
        node = SimulatedNode("n")
        await plane.fleet.add(node)
        for pod in plane.pods():
            plane.fleet.put(f"default/{pod['metadata']['name']}", pod)
        await plane.wait_for(lambda: plane.pod("default", "leaving") is None)
        await running(plane, "staying")
