"""Refused pods are bound soon after capacity is freed, and a backlog that does not fit costs almost nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera.kube.resources import PODS, RESOURCE_QUOTAS
from tessera_lab.sandbox.api.faults import Fail, Hold
from tessera_lab.sandbox.api.kinds import PODS as POD_KIND
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import Product, gpu_pod, product

US = "tessera-scheduler"
GATES = [{"name": "example.org/gate"}]
"""of pods that kube-scheduler does not ask for"""
QUOTA = {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}}}


def node(name: str = "n1", count: int = 1, **more: str) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), **more)


async def refuse(cluster: Product, name: str = "waiting", **amounts: Any) -> None:
    await cluster.plane.create_pod(gpu_pod(name, **(amounts or {"gpu": 1})))
    await cluster.refused(name)


async def run(cluster: Product, name: str = "running", **amounts: Any) -> None:
    await cluster.plane.create_pod(gpu_pod(name, **(amounts or {"gpu": 1})))
    await cluster.running_pods(name)
    await cluster.at_rest()


def wakings(cluster: Product) -> list[str]:
    """Pods that were patched, in order."""
    return [seen.path.rpartition("/")[2] for seen in cluster.writes() if seen.method == "PATCH" and "pods" in seen.path]


def asleep(cluster: Product) -> int:
    return len(cluster.service.engine.unschedulable)


# -- what makes room


async def test_a_pod_is_bound_when_a_running_one_is_deleted(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await run(cluster)
        await refuse(cluster)
        await cluster.plane.delete_pod("default", "running")
        await cluster.running_pods("waiting")
        await cluster.at_rest()
        assert asleep(cluster) == 0


@pytest.mark.parametrize("change", ["raised", "deleted"])
async def test_a_pod_is_bound_when_its_quota_allows_it(tmp_path: Path, change: str) -> None:
    """kube-scheduler knows nothing of these quotas: without being told it would sleep for minutes."""
    async with product([node()], tmp_path) as cluster:
        client = cluster.plane.client
        await client.create(RESOURCE_QUOTAS.path("default"), QUOTA)
        await cluster.at_rest()
        # Together beyond the quota, each one within it: admission lets both in.
        for name in ("first", "second"):
            await cluster.plane.create_pod(gpu_pod(name, gpu=1, mem=600))
        await cluster.plane.wait_for(lambda: len(ran(cluster, "first", "second")) == 1)
        (waiting,) = {"first", "second"} - set(ran(cluster, "first", "second"))
        assert "ResourceQuotaNotFit" in await cluster.refused(waiting)
        if change == "raised":
            more = {"spec": {"hard": {"limits.nvidia.com/gpumem": "1200"}}}
            await client.patch(RESOURCE_QUOTAS.path("default", "gpus"), more)
        else:
            await client.delete(RESOURCE_QUOTAS.path("default", "gpus"))
        await cluster.running_pods(waiting)
        await cluster.at_rest()
        assert wakings(cluster) == [waiting]


# -- races


async def test_a_pod_refused_because_our_watch_lagged_is_woken_when_the_news_come(tmp_path: Path) -> None:
    """kube-scheduler has seen the end of a pod and asks; we have not: refused, and it would sleep on."""
    async with product([node()], tmp_path) as cluster:
        plane = cluster.plane
        await run(cluster)
        release = plane.server.faults.hold_watches(POD_KIND, agent=US)
        await plane.delete_pod("default", "running", grace_s=0)
        await refuse(cluster)
        assert wakings(cluster) == []
        release()
        await cluster.running_pods("waiting")
        await cluster.at_rest()
        assert wakings(cluster) == ["waiting"]


async def test_a_pod_that_could_not_be_woken_is_tried_again(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        plane = cluster.plane
        await run(cluster)
        release = plane.server.faults.hold_watches(POD_KIND, agent=US)
        await plane.delete_pod("default", "running", grace_s=0)
        await refuse(cluster)
        plane.server.faults.next(Fail(500), method="PATCH", path="/pods/waiting$", agent=US)
        release()
        await cluster.until(lambda: wakings(cluster) == ["waiting"])
        await cluster.running_pods("waiting")
        await cluster.at_rest()


async def test_room_gained_while_everything_is_read_again_is_not_overlooked(tmp_path: Path) -> None:
    held = Hold(asyncio.Event(), asyncio.Event())
    async with product([node()], tmp_path) as cluster:
        plane, service = cluster.plane, cluster.service
        await plane.client.create(RESOURCE_QUOTAS.path("default"), QUOTA)
        await cluster.at_rest()
        # Admitted before the quota leaves too little for it, and refused after the last thing that kube-scheduler sees.
        waiting = gpu_pod("waiting", gpu=1, mem=600)
        waiting["spec"]["schedulingGates"] = GATES
        await plane.create_pod(waiting)
        await run(cluster, gpu=1, mem=600)
        await plane.client.patch(PODS.path("default", "waiting"), {"spec": {"schedulingGates": []}})
        assert "ResourceQuotaNotFit" in await cluster.refused("waiting")

        plane.server.faults.next(held, method="GET", path="/api/v1/pods$", agent=US)
        service.replace_vendors(dict(service.engine.vendors), service.settings)
        await held.reached.wait()
        await plane.client.delete(RESOURCE_QUOTAS.path("default", "gpus"))
        await cluster.until(lambda: service.unsynced() == "the first list of pods is not complete")
        await cluster.until(lambda: service.ledger.quotas.limit("default", "nvidia.com/gpumem") is None)
        held.release.set()
        await cluster.running_pods("waiting")
        await cluster.at_rest()


# -- cost


async def test_a_backlog_that_does_not_fit_costs_few_writes(tmp_path: Path) -> None:
    count = 60
    cards = tuple(replace(card, slots=20) for card in gpu_cards("n1", 2))
    async with product([SimulatedNode("n1", cards)], tmp_path) as cluster:
        plane = cluster.plane
        for name in ("a", "b"):
            await run(cluster, name)
        names = [f"p{number:03}" for number in range(count)]
        for name in names:
            await plane.create_pod(gpu_pod(name, gpu=1, mem=80000))
        await cluster.until(lambda: asleep(cluster) == count)
        for name in names:
            await cluster.refused(name)
        plane.server.journal.clear()
        await plane.delete_pod("default", "a")
        await plane.wait_for(lambda: len(ran(cluster, *names)) == 1)
        await cluster.at_rest()
        await cluster.until(lambda: asleep(cluster) == count - 1)
        assert len(wakings(cluster)) <= 8
        # The wake-up changes the pod; a Binding for the version before it is refused and sent again.
        assert [seen.status for seen in cluster.writes() if "binding" in seen.path] in ([201], [409, 201])


def ran(cluster: Product, *names: str) -> list[str]:
    return [name for name in names if cluster.plane.phase("default", name) == "Running"]
