"""Between bind and the last Allocate: no pod gets another pod's slice, and none waits without a reason."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tessera.kube.resources import NODES
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


def owner() -> Json:
    """A pod that stays pending: another scheduler is responsible for it."""
    return pod("owner", container("a"), schedulerName="volcano")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def set_lock(cluster: Product, text: str | None) -> None:
    await cluster.plane.client.patch(NODES.path(name="n1"), {"metadata": {"annotations": {keys.NODE_LOCK: text}}})
