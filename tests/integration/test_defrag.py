"""`defrag apply` on the sandbox: the real scheduler holds the target, and the Deployment's next pod takes it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tessera.inspect.collector import collect
from tessera.inspect.defragmentation import DefragmentationReport, plan_cards
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Setup
from tessera.kube.resources import NODES
from tessera.maintenance.defrag import ApplyOptions, MoveProgress, MoveStage, PlanRun
from tessera.wire import keys
from tests.integration.test_filter_and_bind import NODE_POLICY, node
from tests.support.product import Json, Product, gpu_pod, product

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def deployment(name: str, *, mem: int, members: int = 1, moves: bool = True) -> Json:
    """Its pods spread; several of them are a gang."""
    template = gpu_pod(name, gpu=1, mem=mem)
    template["spec"]["terminationGracePeriodSeconds"] = 0
    gang = {"tessera.io/gang": name, "tessera.io/gang-size": str(members)} if members > 1 else {}
    annotations = {NODE_POLICY: "spread", **gang, "tessera.io/preemptible": str(moves).lower()}
    metadata = {"labels": {"app": name}, "annotations": annotations}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": members,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }


def pod_of(cluster: Product, name: str) -> Json | None:
    """The running pod of a Deployment."""
    found = [pod for pod in cluster.plane.pods("default") if pod["metadata"].get("labels", {}).get("app") == name]
    running = [pod for pod in found if pod["status"].get("phase") == "Running"]
    return running[0] if len(found) == len(running) == 1 else None


async def look(cluster: Product) -> OfflineCluster:
    state = await collect(
        cluster.plane.client, source="s", now=time.time, override=lambda _setup: Setup(), namespace=None
    )
    return OfflineCluster(state)


async def spread_out(cluster: Product) -> DefragmentationReport:
    """Two Deployments on two nodes, and the plan that brings them together."""
    for name, mem in (("small", 10_000), ("large", 20_000)):
        await cluster.plane.client.create(DEPLOYMENTS, deployment(name, mem=mem))
        await cluster.until(partial(pod_of, cluster, name), what=f"{name} runs")
    plan = plan_cards(await look(cluster), most_moves=9, with_bare=False)
    assert (len(plan.moves), plan.gained) == (1, 1)
    return plan


async def apply(
    cluster: Product, plan: DefragmentationReport, *, dry_run: bool = False
) -> tuple[MoveProgress, list[str]]:
    said: list[str] = []
    run = PlanRun(
        cluster.plane.client, lambda: look(cluster), ApplyOptions(step_timeout_s=60.0), time.time, said.append
    )
    [progress] = await (run.rehearse(plan.moves) if dry_run else run.run(plan.moves))
    return progress, said


async def test_the_successor_of_a_moved_pod_goes_where_the_plan_says(tmp_path: Path) -> None:
    async with product([node("n1", 1), node("n2", 1)], tmp_path) as cluster:
        plan = await spread_out(cluster)
        [move] = plan.moves
        rehearsed, _ = await apply(cluster, plan, dry_run=True)
        assert rehearsed.stage is MoveStage.WAITING
        progress, said = await apply(cluster, plan)
        assert progress.stage is MoveStage.MOVED, said
        moved = move.controller.removeprefix("Deployment/")
        await cluster.until(lambda: pod_of(cluster, moved), what=f"{moved} runs again")
        on = {(pod_of(cluster, name) or {})["spec"]["nodeName"] for name in ("small", "large")}
        assert on == {move.target.node}
        again, _ = await apply(cluster, plan)
        assert (again.stage, again.reason) == (MoveStage.MOVED, "it is gone already")
        shown = cluster.plane.node(move.target.node) or {}
        assert not [key for key in shown["metadata"]["annotations"] if key.startswith(keys.MOVE_PREFIX)]
        assert not cluster.service.engine.cycles.moves


async def test_a_gang_moves_in_one_step_and_its_members_go_where_the_plan_says(tmp_path: Path) -> None:
    names = ("n1", "n2", "n3", "n4")
    async with product([node(name, 1) for name in names], tmp_path) as cluster:
        for name in ("one", "two"):
            await cluster.plane.client.create(DEPLOYMENTS, deployment(name, mem=30_000, moves=False))
            await cluster.until(partial(pod_of, cluster, name), what=f"{name} runs")
        await cluster.plane.client.create(DEPLOYMENTS, deployment("gang", mem=10_000, members=2))
        await cluster.until(lambda: len(running(cluster, "gang")) == 2, what="the gang runs")
        before = {pod["metadata"]["uid"] for pod in running(cluster, "gang")}
        plan = plan_cards(await look(cluster), most_moves=9, with_bare=False)
        assert [(move.step, move.controller) for move in plan.moves] == [(1, "Deployment/gang")] * 2
        said: list[str] = []
        run = PlanRun(
            cluster.plane.client, lambda: look(cluster), ApplyOptions(step_timeout_s=60.0), time.time, said.append
        )
        made = await run.run(plan.moves)
        assert {progress.stage for progress in made} == {MoveStage.MOVED}, said
        after = running(cluster, "gang")
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in after)
        assert sorted(pod["spec"]["nodeName"] for pod in after) == sorted(move.target.node for move in plan.moves)


def running(cluster: Product, name: str) -> list[Json]:
    """The running pods of a Deployment that are not about to end."""
    found = [pod for pod in cluster.plane.pods("default") if pod["metadata"].get("labels", {}).get("app") == name]
    return [pod for pod in found if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]


async def test_a_move_to_a_card_that_is_full_by_now_is_not_begun(tmp_path: Path) -> None:
    async with product([node("n1", 1), node("n2", 1)], tmp_path) as cluster:
        plan = await spread_out(cluster)
        [move] = plan.moves
        filler = gpu_pod("filler", gpu=1, mem=55_000)
        filler["spec"]["nodeSelector"] = {"kubernetes.io/hostname": move.target.node}
        shown = await cluster.plane.client.get(NODES.path(name=move.target.node), dict)
        assert shown["metadata"]["labels"]["kubernetes.io/hostname"] == move.target.node
        await cluster.plane.create_pod(filler)
        await cluster.running_pods("filler")
        before = {pod["metadata"]["uid"] for pod in cluster.plane.pods("default")}
        progress, _ = await apply(cluster, plan)
        assert progress.stage is MoveStage.STOPPED
        assert "the cards are not free any more" in progress.reason
        assert {pod["metadata"]["uid"] for pod in cluster.plane.pods("default")} == before
