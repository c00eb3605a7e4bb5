"""Moves on a schedule, on the sandbox: for a pod that waits the fewest pods move, and it gets what they leave."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp

from tessera.kube.resources import LEASES
from tessera.scheduler.features.moves.rounds import ANNOTATION, LEASE, RoundFigures
from tessera.scheduler.settings import DefragSettings
from tests.integration.test_defrag import DEPLOYMENTS, deployment, pod_of
from tests.integration.test_filter_and_bind import node
from tests.support.product import Product, gpu_pod, product
from tests.support.stepwise_scheduler import moves_of

SETTINGS = DefragSettings(
    lease_namespace=None,
    enabled=True,
    interval_s=0.2,
    patience_s=0.0,
    evictions_per_hour=5,
    max_moves=5,
    step_timeout_s=60.0,
    dry_run=False,
)


def figures(cluster: Product) -> RoundFigures:
    return moves_of(cluster.service.engine).rounds.figures


def has_holds(cluster: Product) -> bool:
    return cluster.service.ledger.holds.has_moves


async def deploy(cluster: Product, name: str, *, mem: int) -> None:
    await cluster.plane.client.create(DEPLOYMENTS, deployment(name, mem=mem))
    await cluster.until(partial(pod_of, cluster, name), what=f"{name} runs")


async def fragment(cluster: Product) -> tuple[str, str]:
    """One Deployment on each of two nodes with one card, and a pod that wants a whole one; the uids of their pods."""
    await deploy(cluster, "small", mem=10_000)
    await deploy(cluster, "large", mem=20_000)
    found = uid_of(cluster, "small"), uid_of(cluster, "large")
    await cluster.plane.create_pod(gpu_pod("waiting", gpu=1, cores=100))
    return found


def uid_of(cluster: Product, name: str) -> str:
    found = pod_of(cluster, name)
    return str(found["metadata"]["uid"]) if found is not None else ""


async def test_a_waiting_pod_gets_the_card_that_one_move_frees(tmp_path: Path) -> None:
    async with product([node("n1", 1), node("n2", 1)], tmp_path, defrag=SETTINGS) as cluster:
        before = await fragment(cluster)
        await cluster.running_pods("waiting")
        await cluster.until(lambda: not has_holds(cluster), what="no place is held any more")
        await cluster.until(lambda: figures(cluster).moves, what="the end of the round")
        after = {uid_of(cluster, name) for name in ("small", "large")}
        assert len(set(before) & after) == 1, "the newer one of them moves, or the smaller one"
        url = f"http://{cluster.running.listeners['metrics'].address}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            shown = await answer.text()
        assert "tessera_defrag_moves_total 1.0" in shown
        assert "tessera_defrag_evictions_left 4.0" in shown
        lease = await cluster.plane.client.get(LEASES.path("default", LEASE), dict)
        assert lease["metadata"]["annotations"][ANNOTATION].count(",") == 0, "one eviction is recorded"


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    settings = replace(SETTINGS, dry_run=True)
    async with product([node("n1", 1), node("n2", 1)], tmp_path, defrag=settings) as cluster:
        before = await fragment(cluster)
        await cluster.until(lambda: figures(cluster).plans > 1, what="two plans")
        assert (uid_of(cluster, "small"), uid_of(cluster, "large")) == before
        assert (await cluster.plane.client.list(LEASES.path("default"), dict)).items == []


async def test_another_pod_does_not_take_the_card_that_one_member_of_the_gang_needs_no_move_for(tmp_path: Path) -> None:
    names = ("n1", "n2", "n3")
    async with product([node(name, 1) for name in names], tmp_path, defrag=SETTINGS) as cluster:
        for number in range(len(names)):
            await deploy(cluster, f"d{number}", mem=20_000 + number)
        await cluster.plane.client.delete(f"{DEPLOYMENTS}/d2")
        await cluster.until(lambda: pod_of(cluster, "d2") is None, what="a free card")
        await create_gang(cluster)
        await cluster.until(lambda: len(cluster.ledger.holds.of_moves()) > 1, what="places are held for both members")
        await cluster.plane.create_pod(gpu_pod("other", gpu=1, cores=100))
        await cluster.running_pods("m0", "m1")
        await cluster.until(lambda: figures(cluster).moves, what="the end of the round")
        assert figures(cluster).moves == 1
        await cluster.refused("other")


async def create_gang(cluster: Product) -> None:
    for number in range(2):
        member = gpu_pod(f"m{number}", gpu=1, cores=100)
        member["metadata"]["annotations"] = {"tessera.io/gang": "g", "tessera.io/gang-size": "2"}
        await cluster.plane.create_pod(member)
