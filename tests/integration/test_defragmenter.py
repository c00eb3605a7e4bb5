"""`defrag run` on the sandbox: for a pod that waits the fewest pods move, and it gets what they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp

from tessera.kube.resources import LEASES
from tessera.maintenance.defragmenter.eviction_budget import ANNOTATION
from tessera.maintenance.defragmenter.process import DefragmenterProcess
from tessera.maintenance.defragmenter.settings import DefragmenterSettings
from tessera.services.addresses import Address
from tessera.wire import keys
from tests.integration.test_defrag import DEPLOYMENTS, deployment, pod_of
from tests.integration.test_filter_and_bind import node
from tests.support.product import Product, gpu_pod, product

SETTINGS = DefragmenterSettings(
    interval=0.2,
    patience=0.0,
    evictions_per_hour=5,
    step_timeout=60.0,
    lease_duration=60.0,
    metrics=Address("127.0.0.1", 0),
)


@asynccontextmanager
async def defragmenter(cluster: Product, settings: DefragmenterSettings) -> AsyncIterator[DefragmenterProcess]:
    process = DefragmenterProcess(settings, cluster.plane.client)
    running = asyncio.create_task(process.run())
    try:
        await process.listening.wait()
        yield process
    finally:
        process.stopping.set()
        assert await running == 0


async def fragment(cluster: Product) -> None:
    """One Deployment on each of two nodes with one card, and a pod that wants a whole one."""
    for name, mem in (("small", 10_000), ("large", 20_000)):
        await cluster.plane.client.create(DEPLOYMENTS, deployment(name, mem=mem))
        await cluster.until(partial(pod_of, cluster, name), what=f"{name} runs")
    await cluster.plane.create_pod(gpu_pod("waiting", gpu=1, cores=100))
    await cluster.refused("waiting")


def uid_of(cluster: Product, name: str) -> str:
    found = pod_of(cluster, name)
    return str(found["metadata"]["uid"]) if found is not None else ""


def holds(cluster: Product, names: Sequence[str] = ("n1", "n2")) -> list[str]:
    nodes = [cluster.plane.node(name) or {} for name in names]
    return [key for each in nodes for key in each["metadata"]["annotations"] if key.startswith(keys.MOVE_PREFIX)]


async def test_a_waiting_pod_gets_the_card_that_one_move_frees(tmp_path: Path) -> None:
    async with product([node("n1", 1), node("n2", 1)], tmp_path) as cluster:
        await fragment(cluster)
        before = {uid_of(cluster, name) for name in ("small", "large")}
        async with defragmenter(cluster, SETTINGS) as process:
            await cluster.running_pods("waiting")
            await cluster.until(lambda: not holds(cluster), what="no place is held any more")
            assert process.address is not None
            async with aiohttp.ClientSession() as session, session.get(f"http://{process.address}/metrics") as answer:
                shown = await answer.text()
        after = {uid_of(cluster, name) for name in ("small", "large")}
        assert len(before & after) == 1, "the newer one of them moves, or the smaller one"
        assert "tessera_defrag_moves_total 1.0" in shown
        assert "tessera_defrag_evictions_left 4.0" in shown
        assert not cluster.service.engine.ledger.holds.has_moves
        lease = await cluster.plane.client.get(LEASES.path("default", SETTINGS.lease_name), dict)
        assert lease["spec"]["holderIdentity"] == "", "the next process need not wait"


async def test_the_budget_holds_over_a_restart(tmp_path: Path) -> None:
    async with product([node("n1", 1), node("n2", 1)], tmp_path) as cluster:
        await fragment(cluster)
        before = uid_of(cluster, "small"), uid_of(cluster, "large")
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": ""}}
        spent = {"name": SETTINGS.lease_name, "annotations": {ANNOTATION: f"[{2**40}]"}}
        await cluster.plane.client.create(LEASES.path("default"), {**lease, "metadata": spent})
        async with defragmenter(cluster, replace(SETTINGS, evictions_per_hour=1)) as process:
            await cluster.until(lambda: sum(process.rounds.values()) > 1, what="two rounds")
        assert (uid_of(cluster, "small"), uid_of(cluster, "large")) == before


async def test_a_process_that_loses_its_lease_makes_no_more_rounds(tmp_path: Path) -> None:
    async with (
        product([node("n1", 1), node("n2", 1)], tmp_path) as cluster,
        defragmenter(cluster, replace(SETTINGS, lease_duration=3.0)) as process,
    ):
        await cluster.until(lambda: sum(process.rounds.values()) > 1, what="two rounds")
        taken = {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}}
        await cluster.plane.client.patch(LEASES.path("default", SETTINGS.lease_name), taken)
        await cluster.until(lambda: not process.is_leading, what="the end of its rounds")
        made = sum(process.rounds.values())
        await fragment(cluster)
        assert sum(process.rounds.values()) == made
        lease = await cluster.plane.client.get(LEASES.path("default", SETTINGS.lease_name), dict)
        assert lease["spec"]["holderIdentity"] == "another"


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async with product([node("n1", 1), node("n2", 1)], tmp_path) as cluster:
        await fragment(cluster)
        before = uid_of(cluster, "small"), uid_of(cluster, "large")
        async with defragmenter(cluster, replace(SETTINGS, dry_run=True)) as process:
            await cluster.until(lambda: sum(process.rounds.values()) > 1, what="two rounds")
            assert process.defragmenter.figures.plans > 1
        assert (uid_of(cluster, "small"), uid_of(cluster, "large")) == before
        assert (await cluster.plane.client.list(LEASES.path("default"), dict)).items == []


async def test_another_pod_does_not_take_the_card_that_one_member_of_the_gang_needs_no_move_for(tmp_path: Path) -> None:
    names = ("n1", "n2", "n3")
    async with product([node(name, 1) for name in names], tmp_path) as cluster:
        for number in range(len(names)):
            await cluster.plane.client.create(DEPLOYMENTS, deployment(f"d{number}", mem=20_000 + number))
            await cluster.until(partial(pod_of, cluster, f"d{number}"), what=f"d{number} runs")
        await cluster.plane.client.delete(f"{DEPLOYMENTS}/d2")
        await cluster.until(lambda: pod_of(cluster, "d2") is None, what="a free card")
        for number in range(2):
            member = gpu_pod(f"m{number}", gpu=1, cores=100)
            member["metadata"]["annotations"] = {"tessera.io/gang": "g", "tessera.io/gang-size": "2"}
            await cluster.plane.create_pod(member)
        await cluster.refused("m0")
        await cluster.refused("m1")
        async with defragmenter(cluster, SETTINGS) as process:
            await cluster.until(lambda: len(holds(cluster, names)) > 1, what="places are held for both members")
            await cluster.plane.create_pod(gpu_pod("other", gpu=1, cores=100))
            await cluster.running_pods("m0", "m1")
            await cluster.until(lambda: not holds(cluster, names), what="no place is held any more")
            assert process.defragmenter.figures.moves == 1
        await cluster.refused("other")


async def test_a_waiting_gang_gets_the_cards_that_two_moves_free(tmp_path: Path) -> None:
    names = ("n1", "n2", "n3", "n4")
    async with product([node(name, 1) for name in names], tmp_path) as cluster:
        for number in range(len(names)):
            await cluster.plane.client.create(DEPLOYMENTS, deployment(f"d{number}", mem=20_000 + number))
            await cluster.until(partial(pod_of, cluster, f"d{number}"), what=f"d{number} runs")
        for number in range(2):
            member = gpu_pod(f"m{number}", gpu=1, cores=100)
            member["metadata"]["annotations"] = {"tessera.io/gang": "g", "tessera.io/gang-size": "2"}
            await cluster.plane.create_pod(member)
        await cluster.refused("m0")
        await cluster.refused("m1")
        async with defragmenter(cluster, SETTINGS) as process:
            await cluster.running_pods("m0", "m1")
            await cluster.until(lambda: not holds(cluster, names), what="no place is held any more")
            assert process.defragmenter.figures.moves == 2
        assert not cluster.service.engine.ledger.holds.has_moves
