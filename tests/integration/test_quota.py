"""Quotas of namespaces on devices, in admission and ledger: several at once, changed, and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tessera.kube.resources import NAMESPACES, RESOURCE_QUOTAS
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import Product, container, gpu_pod, pod, product, sidecar

MEMORY, CORES = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"


def node(count: int = 2) -> SimulatedNode:
    return SimulatedNode("n1", gpu_cards("n1", count))


async def set_quota(cluster: Product, name: str, hard: dict[str, int], *, namespace: str = "default") -> None:
    body = {"metadata": {"name": name}, "spec": {"hard": {key: str(value) for key, value in hard.items()}}}
    await cluster.plane.client.create(RESOURCE_QUOTAS.path(namespace), body)
    await cluster.at_rest()


async def run(cluster: Product, name: str, *, namespace: str = "default", **amounts: Any) -> None:
    await cluster.plane.create_pod(gpu_pod(name, namespace=namespace, **amounts))
    await cluster.running_pods(name, namespace=namespace)
    await cluster.at_rest()


async def test_of_several_quotas_the_strictest_holds_and_one_that_is_deleted_holds_no_more(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await set_quota(cluster, "team", {MEMORY: 5000})
        await set_quota(cluster, "project", {MEMORY: 2000, CORES: 50})
        await set_quota(cluster, "other", {MEMORY: 1}, namespace="kube-public")
        await run(cluster, "p", gpu=1, mem=1500)
        answer = await cluster.post_pod(gpu_pod("q", gpu=1, mem=1000))
        assert answer.status == 403
        assert "leaves 500 MiB: 500 MiB too much" in answer.message
        await cluster.plane.client.delete(RESOURCE_QUOTAS.path("default", "project"))
        await cluster.at_rest()
        await run(cluster, "q", gpu=1, mem=3500)
        answer = await cluster.post_pod(gpu_pod("r", gpu=1, mem=1))
        assert "leaves 0 MiB: 1 MiB too much" in answer.message
        await cluster.plane.client.delete(RESOURCE_QUOTAS.path("default", "team"))
        await cluster.at_rest()
        await run(cluster, "r", gpu=1, mem=1)


async def test_pods_that_are_admitted_together_are_still_held_to_the_quota(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await set_quota(cluster, "team", {CORES: 100})
        for name in ("p", "q"):
            await cluster.plane.create_pod(gpu_pod(name, gpu=1, mem=100, cores=60))
        plane = cluster.plane
        running = await plane.wait_for(lambda: [n for n in ("p", "q") if plane.phase("default", n) == "Running"])
        (waiting,) = {"p", "q"} - set(running)
        assert "2/2 ResourceQuotaNotFit" in await cluster.refused(waiting)
        await plane.delete_pod("default", running[0])
        await cluster.running_pods(waiting)
        await cluster.at_rest()


async def test_a_share_in_per_cent_is_counted_as_what_it_is_on_its_card(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await set_quota(cluster, "team", {MEMORY: 30000})
        await run(cluster, "p", gpu=1, percent=25)
        await cluster.plane.create_pod(gpu_pod("q", gpu=1, percent=25))
        assert "ResourceQuotaNotFit" in await cluster.refused("q")
        answer = await cluster.post_pod(gpu_pod("r", gpu=1, mem=9521))
        assert "leaves 9520 MiB: 1 MiB too much" in answer.message


async def test_containers_that_run_together_are_added_up_and_those_that_do_not_are_not(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await set_quota(cluster, "team", {MEMORY: 8000})
        after = pod("p", container("a", gpu=1, mem=3000), init=[container("i", gpu=1, mem=8000)])
        await cluster.plane.create_pod(after)
        await cluster.running_pods("p")
        await cluster.at_rest()
        beside = pod("q", container("a", gpu=1, mem=3000), init=[sidecar("s", gpu=1, mem=3000)])
        answer = await cluster.post_pod(beside)
        assert "asks for 6000 MiB" in answer.message
        assert "leaves 5000 MiB" in answer.message


async def test_namespaces_do_not_share_a_quota(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await cluster.plane.client.create(NAMESPACES.path(), {"metadata": {"name": "team"}})
        await set_quota(cluster, "team", {MEMORY: 1000}, namespace="team")
        await run(cluster, "p", gpu=1, mem=5000)
        await run(cluster, "p", namespace="team", gpu=1, mem=1000)
        answer = await cluster.post_pod(gpu_pod("q", namespace="team", gpu=1, mem=1))
        assert answer.status == 403
        await run(cluster, "q", gpu=1, mem=1)


async def test_what_is_used_is_known_after_a_restart(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await set_quota(cluster, "team", {MEMORY: 1000})
        await run(cluster, "p", gpu=1, mem=800)
        await cluster.restart_scheduler()
        await cluster.at_rest()
        answer = await cluster.post_pod(gpu_pod("q", gpu=1, mem=300))
        assert "leaves 200 MiB: 100 MiB too much" in answer.message
