"""Two schedulers and the lease of their kube-schedulers: only one decides, and a change of leader loses nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tessera.kube.leases import Lease
from tessera.kube.resources import DEVICE_CLASSES, LEASES, PODS, RESOURCE_SLICES
from tessera.scheduler import service
from tessera.wire.resource_api import DRIVER
from tessera_lab.sandbox.api.faults import Hold
from tessera_lab.sandbox.api.kinds import DEVICE_CLASSES as CLASS_KIND
from tessera_lab.sandbox.api.kinds import PODS as POD_KIND
from tessera_lab.sandbox.api.kinds import RESOURCE_SLICES as SLICE_KIND
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.scheduling.extender_client import ExtenderClient, ExtenderError
from tests.support.product import Product, Replica, gpu_pod, leadership, product
from tests.support.stepwise_scheduler import claims_of

LEASE = leadership("host-1")
LOOK_S = 0.02
LONG = 150
"""seconds: a lease that lasts for the whole test"""


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers look at the lease more often than once a second."""
    monkeypatch.setattr(service, "LEASE_PERIOD", LOOK_S)


def node(name: str = "n1", count: int = 1, **more: Any) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), **more)


async def lease_to(cluster: Product, holder: str, *, seconds: int = LONG) -> None:
    """Some kube-scheduler takes the lease, which another one has given up."""
    path, client = LEASES.path(LEASE.namespace, LEASE.name), cluster.plane.client
    moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": moment, "leaseTransitions": 0}
    known = await client.find(path, Lease)
    if known is None:
        await client.create(LEASES.path(LEASE.namespace), {"metadata": {"name": LEASE.name}, "spec": spec})
    else:
        await client.patch(path, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
        await client.patch(path, {"spec": spec | {"leaseTransitions": (known.spec.lease_transitions or 0) + 1}})


async def refusal(replica: Replica, pod: dict[str, Any]) -> str:
    async with ExtenderClient(replica.extender_url) as extender:
        with pytest.raises(ExtenderError) as filtered:
            await extender.filter(pod, ["n1"])
        with pytest.raises(ExtenderError) as bound:
            await extender.bind(pod, "n1")
        assert str(filtered.value) == str(bound.value)
        return str(bound.value)


async def test_only_the_holder_of_the_lease_decides_and_its_name_is_matched_exactly(tmp_path: Path) -> None:
    """HAMi compares a prefix: host-1 would match the holder host-10."""
    plugin = node(handshake=True, text_registration=True, agent="hami")
    async with product([plugin], tmp_path, scheduling=False, leadership=LEASE) as cluster:
        others = [await cluster.add_replica(host) for host in ("host", "host-10", "host-2")]
        pod = await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        for replica in (cluster.scheduler, *others):
            assert await refusal(replica, pod) == "this replica is not the leader"
        await lease_to(cluster, "host-1_3fa85f64-5717-4562-b3fc-2c963f66afa6")
        await cluster.until(lambda: cluster.service.is_leader, what="the holder to lead")
        assert [replica.process.service.is_leader for replica in others] == [False, False, False]
        await cluster.start_scheduling()
        await cluster.running_pods("p")
        await cluster.at_rest()
        for replica in others:
            assert not replica.process.service.unsynced()
            assert cluster.writes(replica.agent) == []
        await lease_to(cluster, "host-10_x")
        await cluster.until(lambda: others[1].process.service.is_leader, what="the new holder to lead")
        await cluster.until(lambda: not cluster.service.is_leader, what="the old holder to stop")


async def test_a_lease_that_is_not_renewed_ends(tmp_path: Path) -> None:
    async with product([node()], tmp_path, scheduling=False, leadership=LEASE) as cluster:
        await lease_to(cluster, "host-1_x", seconds=1)
        await cluster.until(lambda: cluster.service.is_leader)
        await cluster.until(lambda: not cluster.service.is_leader)


async def test_a_new_leader_knows_bindings_that_its_watch_has_not_shown(tmp_path: Path) -> None:
    async with product([node()], tmp_path, leadership=LEASE) as cluster:
        plane = cluster.plane
        second = await cluster.add_replica("host-2")
        await lease_to(cluster, "host-1_x")
        await cluster.until(lambda: cluster.service.is_leader)
        plane.server.faults.hold_watches(POD_KIND, agent=second.agent)
        await plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        assert second.process.service.ledger.pods() == []

        await cluster.kill_scheduler()
        await lease_to(cluster, "host-2_x")
        cluster.scheduler, cluster.others = second, []
        await cluster.start_scheduling()
        await cluster.move_webhook()
        await plane.create_pod(gpu_pod("q", gpu=1))
        await plane.wait_for(lambda: "CardInsufficientMemory" in str(plane.pod("default", "q")))
        await cluster.at_rest()
        await plane.delete_pod("default", "p")
        await cluster.running_pods("q")
        await cluster.at_rest()


async def test_a_new_leader_knows_slices_and_classes_that_its_watches_have_not_shown(tmp_path: Path) -> None:
    async with product([], tmp_path, scheduling=False, leadership=LEASE, dra=True) as cluster:
        client, claims = cluster.plane.client, claims_of(cluster.service.engine)
        for kind in (SLICE_KIND, CLASS_KIND):
            cluster.plane.server.faults.hold_watches(kind, agent=cluster.scheduler.agent)
        await client.create(DEVICE_CLASSES.path(), {"metadata": {"name": "late"}, "spec": {}})
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": []}
        await client.create(RESOURCE_SLICES.path(), {"metadata": {"name": "n1-0"}, "spec": spec})
        assert (list(claims.book.classes), list(claims.pools.by_name)) == ([], [])
        await lease_to(cluster, "host-1_x")
        await cluster.until(lambda: cluster.service.is_leader and not cluster.service.unsynced())
        assert (list(claims.book.classes), list(claims.pools.by_name)) == (["late"], ["n1"])


async def test_a_bind_that_waited_is_not_written_by_a_replica_that_no_longer_leads(tmp_path: Path) -> None:
    """The new leader has given the room to another by then."""
    slow = node(agent="answer")
    async with product([slow], tmp_path, leadership=LEASE) as cluster:
        plane = cluster.plane
        first, second = cluster.scheduler, await cluster.add_replica("host-2")
        await lease_to(cluster, "host-1_x")
        await cluster.until(lambda: cluster.service.is_leader)
        slow.kubelet.pause()
        await plane.create_pod(gpu_pod("p", gpu=1, mem=10000))
        await plane.create_pod(gpu_pod("q", gpu=1, mem=50000))
        await cluster.until(
            lambda: cluster.service.engine.queue.waiting == 1, what="the second pod to wait for its turn"
        )

        await lease_to(cluster, "host-2_x")
        await cluster.until(lambda: not first.process.service.is_leader)
        slow.kubelet.resume()
        await cluster.until(
            lambda: not first.process.service.engine.cycles.checked_out, what="the old leader's last bind to end"
        )
        await cluster.running_pods("p")
        assert plane.phase("default", "q") == "Pending"
        assert cluster.writes(first.agent)[1:] == []

        cluster.scheduler, cluster.others = second, [first]
        await cluster.start_scheduling()
        await cluster.running_pods("p", "q")
        await cluster.at_rest()


async def test_a_write_of_the_old_leader_that_lands_late_has_no_effect(tmp_path: Path) -> None:
    held = Hold(asyncio.Event(), asyncio.Event())
    async with product([node()], tmp_path, scheduling=False, leadership=LEASE) as cluster:
        plane, first, second = cluster.plane, cluster.scheduler, await cluster.add_replica("host-2")
        early, late = [await plane.create_pod(gpu_pod(name, gpu=1)) for name in ("early", "late")]
        await lease_to(cluster, "host-1_x")
        await cluster.until(lambda: not first.process.service.engine.missing(), what="the first leader to decide")
        plane.server.faults.next(held, method="POST", path="/binding$")
        async with ExtenderClient(first.extender_url) as extender:
            await extender.filter(await plane.client.get(PODS.path("default", "early"), dict), ["n1"])
            binding = asyncio.create_task(extender.bind(early, "n1"))
            await held.reached.wait()
            await lease_to(cluster, "host-2_x")
            await cluster.until(lambda: not second.process.service.engine.missing(), what="the second leader to decide")
            async with ExtenderClient(second.extender_url) as other:
                await other.filter(late, ["n1"])
                await other.bind(late, "n1")
            held.release.set()
            with pytest.raises(ExtenderError, match="another replica has taken over"):
                await binding
        await cluster.running_pods("late")
        assert plane.phase("default", "early") == "Pending"
