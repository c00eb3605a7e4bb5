"""Between bind and the last Allocate: no pod gets another pod's slice, and none waits without a reason."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tessera.kube.resources import NODES
from tessera.scheduler.settings import NodeLockMode
from tessera.wire import keys
from tessera_lab.sandbox.api.store import StoreChange
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import annotations_of
from tests.support.ledger_replay import wrong_slices
from tests.support.product import Json, Product, container, gpu_pod, mixed_pods, pod, product


def names(pods: Iterable[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in pods]


async def run_all(cluster: Product, pods: list[Json]) -> None:
    for each in pods:
        await cluster.plane.create_pod(each)
    await cluster.running_pods(*names(pods))
    await cluster.at_rest()


def lock_of(cluster: Product, node: str) -> str | None:
    found = cluster.plane.node(node)
    assert found is not None
    return annotations_of(found).get(keys.NODE_LOCK)


@pytest.mark.parametrize(
    ("agent", "injects"), [("answer", True), ("env", False)], ids=["answers itself", "without the downward API"]
)
async def test_pods_that_depend_on_allocate_take_turns(tmp_path: Path, agent: str, injects: bool) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 8, slots=64), agent=agent, shuffled=True)
    async with product([node], tmp_path, injects_downward_api=injects) as cluster:
        await run_all(cluster, mixed_pods(24))
        assert list(wrong_slices(cluster.plane)) == []
        assert len(cluster.writes()) == 24


async def test_pods_that_use_the_downward_api_need_no_turn(tmp_path: Path) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent="env")
    async with product([node], tmp_path) as cluster:
        node.kubelet.pause()
        pods = [gpu_pod(f"p{number}", gpu=1, mem=100) for number in range(5)]
        for each in pods:
            await cluster.plane.create_pod(each)
        await cluster.until(lambda: cluster.service.engine.queue.active == 5, what="five pods in hand at once")
        node.kubelet.resume()
        await cluster.running_pods(*names(pods))
        await cluster.at_rest()


async def test_dependent_pods_are_bound_one_after_the_other(tmp_path: Path) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent="answer")
    async with product([node], tmp_path) as cluster:
        node.kubelet.pause()
        pods = [gpu_pod(f"p{number}", gpu=1, mem=100) for number in range(4)]
        for each in pods:
            await cluster.plane.create_pod(each)
        queue = cluster.service.engine.queue

        def bound() -> list[str]:
            return [name for name in names(pods) if (cluster.plane.pod("default", name) or {})["spec"].get("nodeName")]

        # The others may wait before the first one's binding is written.
        await cluster.until(lambda: queue.waiting == 3 and bound() != [], what="one pod bound, and three to wait")
        assert bound() == ["p0"]
        assert queue.active == 1
        node.kubelet.resume()
        await cluster.running_pods(*names(pods))
        await cluster.at_rest()
        assert list(wrong_slices(cluster.plane)) == []


async def test_twenty_pods_through_hamis_plugin_each_under_its_lock(tmp_path: Path) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 4), agent="hami")
    owners: list[str] = []
    async with product([node], tmp_path, injects_downward_api=False) as cluster:
        plane = cluster.plane

        def note(_change: StoreChange) -> None:
            text = lock_of(cluster, "n1")
            if text is not None and text not in owners[-1:]:
                owners.append(text)

        plane.server.cluster.store.listen(note)
        pods = mixed_pods(20)
        await run_all(cluster, pods)
        assert list(wrong_slices(plane)) == []
        assert sorted(text.split(",")[2] for text in owners) == names(pods)
        await plane.wait_for(lambda: lock_of(cluster, "n1") is None, what="the last lock to go")


async def test_only_a_pods_init_container_needs_devices_and_still_has_the_lock(tmp_path: Path) -> None:
    """HAMi looks at app containers only."""
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent="hami")
    async with product([node], tmp_path) as cluster:
        node.kubelet.pause()
        await cluster.plane.create_pod(pod("p", container("a"), init=[container("i", gpu=1, mem=100)]))
        text = await cluster.plane.wait_for(lambda: lock_of(cluster, "n1"), what="the lock")
        assert text is not None
        assert text.endswith(",default,p")
        node.kubelet.resume()
        await cluster.running_pods("p")
        await cluster.at_rest()


async def test_a_foreign_lock_is_respected_until_it_is_released(tmp_path: Path) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent="hami")
    async with product([node], tmp_path) as cluster:
        plane = cluster.plane
        await plane.create_pod(owner())
        await set_lock(cluster, f"{now()},default,owner")
        await plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.until(lambda: cluster.service.engine.queue.active == 1, what="the pod's turn")
        await cluster.until(lambda: any(seen.path.endswith("/pods/owner") for seen in cluster.requests()))
        assert plane.phase("default", "p") == "Pending"
        await set_lock(cluster, None)
        await cluster.running_pods("p")
        await cluster.at_rest()


@pytest.mark.parametrize("lock", ["2020-01-01T00:00:00Z,default,owner", "{now},default,missing"], ids=["old", "orphan"])
async def test_a_forgotten_lock_is_taken_over(tmp_path: Path, lock: str) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 1), agent="hami")], tmp_path) as cluster:
        await cluster.plane.create_pod(owner())
        await set_lock(cluster, lock.format(now=now()))
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.running_pods("p")
        await cluster.at_rest()


@pytest.mark.parametrize("lock", ["{now},default,owner", "{now}"], ids=["with an owner", "of old plugins"])
async def test_waiting_for_a_lock_is_bounded_and_a_failed_bind_leaves_the_others_lock_alone(
    tmp_path: Path, lock: str
) -> None:
    """HAMi removes any lock that names no owner."""
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent="hami")
    async with product([node], tmp_path, turn_s=0.1) as cluster:
        plane = cluster.plane
        await plane.create_pod(owner())
        text = lock.format(now=now())
        await set_lock(cluster, text)
        await plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        assert "node n1 has been locked within 5m0s: node lock contention" in await cluster.refused("p")
        assert lock_of(cluster, "n1") == text
        await set_lock(cluster, None)
        await cluster.running_pods("p")
        await cluster.at_rest()


async def test_waiting_for_a_turn_is_bounded(tmp_path: Path) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent="answer")
    async with product([node], tmp_path, turn_s=0.05) as cluster:
        node.kubelet.pause()
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.plane.create_pod(gpu_pod("q", gpu=1, mem=200))
        refused = await cluster.plane.wait_for(
            lambda: [
                event
                for name in ("p", "q")
                for event in cluster.plane.events("default", name)
                if event["reason"] == "BindingFailed"
            ],
            what="a bind that gave up",
        )
        assert refused[0]["message"] == "node n1 is still handing devices to another pod"
        node.kubelet.resume()
        await cluster.running_pods("p", "q")
        await cluster.at_rest()


@pytest.mark.parametrize("mode", [NodeLockMode.NEVER, NodeLockMode.ALWAYS])
async def test_the_administrator_decides_about_locks(tmp_path: Path, mode: NodeLockMode) -> None:
    agent = "hami" if mode is NodeLockMode.NEVER else "env"
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent=agent)
    async with product([node], tmp_path, node_lock=mode) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.running_pods("p")
        locked = [seen for seen in cluster.writes() if seen.path == NODES.path(name="n1")]
        assert bool(locked) is (mode is NodeLockMode.ALWAYS)


@pytest.mark.parametrize("agent", ["env", "answer", "hami"])
async def test_a_pod_that_fails_in_allocate_frees_its_turn_and_its_cards(tmp_path: Path, agent: str) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent=agent)
    async with product([node], tmp_path) as cluster:
        plane = cluster.plane
        node.faults.allocate_errors = 1
        await plane.create_pod(gpu_pod("p", gpu=1))
        await plane.wait_for(lambda: plane.phase("default", "p") == "Failed", what="the pod to fail")
        await cluster.at_rest()
        await plane.create_pod(gpu_pod("q", gpu=1))
        await cluster.running_pods("q")
        await cluster.at_rest()


@pytest.mark.parametrize("agent", ["answer", "hami"])
async def test_a_pod_deleted_in_handover_frees_its_turn(tmp_path: Path, agent: str) -> None:
    node = SimulatedNode("n1", gpu_cards("n1", 1), agent=agent)
    async with product([node], tmp_path) as cluster:
        plane = cluster.plane
        node.kubelet.pause()
        await plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.until(lambda: cluster.service.engine.queue.active == 1)
        await plane.create_pod(gpu_pod("q", gpu=1, mem=200))
        await cluster.until(lambda: cluster.service.engine.queue.waiting == 1)
        await plane.delete_pod("default", "p", grace_s=0)
        node.kubelet.resume()
        await cluster.running_pods("q")
        await cluster.at_rest()


async def test_a_node_that_is_slow_to_hand_over_does_not_delay_other_nodes(tmp_path: Path) -> None:
    slow = SimulatedNode("n1", gpu_cards("n1", 1), agent="hami", labels={"speed": "slow"})
    fast = SimulatedNode("n2", gpu_cards("n2", 1), agent="hami", labels={"speed": "fast"})
    async with product([slow, fast], tmp_path) as cluster:
        slow.kubelet.pause()
        for number in range(3):
            for speed in ("slow", "fast"):
                await cluster.plane.create_pod(
                    pod(f"{speed}{number}", container("a", gpu=1, mem=100 + number), nodeSelector={"speed": speed})
                )
        await cluster.running_pods("fast0", "fast1", "fast2")
        assert cluster.service.engine.queue.waiting == 2
        slow.kubelet.resume()
        await cluster.running_pods("slow0", "slow1", "slow2")
        await cluster.at_rest()


def owner() -> Json:
    """A pod that stays pending: another scheduler is responsible for it."""
    return pod("owner", container("a"), schedulerName="volcano")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def set_lock(cluster: Product, text: str | None) -> None:
    await cluster.plane.client.patch(NODES.path(name="n1"), {"metadata": {"annotations": {keys.NODE_LOCK: text}}})
