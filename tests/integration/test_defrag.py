"""`defrag apply` on the sandbox: the real scheduler holds the target, and the Deployment's next pod takes it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tessera.inspect.collector import collect
from tessera.inspect.defragmentation import DefragmentationReport, plan_cards, plan_copies
from tessera.inspect.installation import MOVES, at_url
from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Setup
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.credentials import FixedHeaders, bearer
from tessera.kube.resources import NODES
from tessera.maintenance.defrag import MoveProgress, make_moves, moves_request
from tessera.wire import keys
from tessera.wire.moves import MoveStage
from tessera.wire.pod_devices import decode_mig_allocations
from tessera_lab.demo.machines import Machine, make_node
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
    plan = plan_cards(await look(cluster), max_moves=9, with_bare=False)
    assert (len(plan.moves), plan.gained) == (1, 1)
    return plan


async def apply(
    cluster: Product, plan: DefragmentationReport, *, dry_run: bool = False
) -> tuple[MoveProgress, list[str]]:
    [progress], said = await apply_all(cluster, plan, dry_run=dry_run)
    return progress, said


async def apply_all(
    cluster: Product, plan: DefragmentationReport, *, dry_run: bool = False
) -> tuple[list[MoveProgress], list[str]]:
    """As the command does at the end of a port-forward."""
    said: list[str] = []
    request = moves_request(plan.moves, interval_s=0.0, step_timeout_s=60.0, dry_run=dry_run)
    url = cluster.scheduler.extender_url
    async with KubeClient(Access(url, credentials=FixedHeaders(bearer("t", "test")))) as client:
        return await make_moves(client, at_url(url, MOVES), plan.moves, request, said.append), said


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
        assert (again.stage, again.reason) == (MoveStage.MOVED, "it is gone already, or leaves")
        assert not cluster.service.engine.ledger.holds.has_moves


async def test_a_gang_moves_in_one_step_and_its_members_go_where_the_plan_says(tmp_path: Path) -> None:
    names = ("n1", "n2", "n3", "n4")
    async with product([node(name, 1) for name in names], tmp_path) as cluster:
        for name in ("one", "two"):
            await cluster.plane.client.create(DEPLOYMENTS, deployment(name, mem=30_000, moves=False))
            await cluster.until(partial(pod_of, cluster, name), what=f"{name} runs")
        await cluster.plane.client.create(DEPLOYMENTS, deployment("gang", mem=10_000, members=2))
        await cluster.until(lambda: len(running(cluster, "gang")) == 2, what="the gang runs")
        before = {pod["metadata"]["uid"] for pod in running(cluster, "gang")}
        plan = plan_cards(await look(cluster), max_moves=9, with_bare=False)
        assert [(move.step, move.controller) for move in plan.moves] == [(1, "Deployment/gang")] * 2
        made, said = await apply_all(cluster, plan)
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


# -- cards in MIG mode

MIG = {"nvidia.com/vgpu-mode": "mig"}


def mig_deployment(name: str, *, mem: int, moves: bool = True) -> Json:
    manifest = deployment(name, mem=mem, moves=moves)
    manifest["spec"]["template"]["metadata"]["annotations"].update(MIG)
    return manifest


def place_of(cluster: Product, name: str) -> tuple[str, str, int]:
    """The node of a Deployment's pod, its instance's profile, and where that begins."""
    pod = pod_of(cluster, name)
    assert pod is not None
    [allocation] = decode_mig_allocations(pod["metadata"]["annotations"][keys.MIG_ALLOCATIONS])
    return pod["spec"]["nodeName"], allocation.slot.profile, allocation.slot.placement.start


async def mig_pod(cluster: Product, name: str, *, mem: int, moves: bool = True) -> None:
    await cluster.plane.client.create(DEPLOYMENTS, mig_deployment(name, mem=mem, moves=moves))
    await cluster.until(partial(pod_of, cluster, name), what=f"{name} runs")


async def test_an_instance_moves_to_the_card_of_another_node(tmp_path: Path) -> None:
    """The agents are real, and make the instances on simulated cards."""
    machines = [Machine(name, ({"model": "A100-SXM4-80GB", "mig": True},), mode="mig") for name in ("n1", "n2")]
    async with product([make_node(each, tmp_path / each.name) for each in machines], tmp_path) as cluster:
        for name, mem in (("small", 9_000), ("large", 19_000)):
            await mig_pod(cluster, name, mem=mem)
        assert {place_of(cluster, name)[0] for name in ("small", "large")} == {"n1", "n2"}
        plan = plan_cards(await look(cluster), max_moves=9, with_bare=False)
        [move] = plan.moves
        assert plan.gained == 1
        moving = move.controller.removeprefix("Deployment/")
        progress, said = await apply(cluster, plan)
        assert progress.stage is MoveStage.MOVED, said
        await cluster.until(lambda: pod_of(cluster, moving), what=f"{moving} runs again")
        [held] = move.target.held
        assert place_of(cluster, moving) == (move.target.node, held.mig[0].profile, held.mig[0].start)


async def test_an_instance_moves_to_another_place_of_its_card_and_not_back_to_its_own(tmp_path: Path) -> None:
    """The plain rule would give the successor the place that its predecessor has left: the last one of the card."""
    machine = Machine("n1", ({"model": "A100-SXM4-80GB", "mig": True},), mode="mig")
    async with product([make_node(machine, tmp_path / "n1")], tmp_path) as cluster:
        for name in ("last", "gone-1", "gone-2", "fixed"):
            await mig_pod(cluster, name, mem=9_000, moves=name == "last")
        for name in ("gone-1", "gone-2"):
            await cluster.plane.client.delete(f"{DEPLOYMENTS}/{name}")
        await cluster.until(lambda: len(cluster.plane.pods("default")) == 2, what="two pods left")
        assert [place_of(cluster, name)[2] for name in ("last", "fixed")] == [6, 3]
        half = gpu_pod("half", gpu=1, mem=39_000)
        half["metadata"]["annotations"] = MIG
        manifest = Manifest("default", "half", half, 1)
        plan = plan_copies(await look(cluster), manifest, max_moves=9, with_bare=False)
        progress, said = await apply(cluster, plan)
        assert progress.stage is MoveStage.MOVED, said
        await cluster.until(lambda: pod_of(cluster, "last"), what="it runs again")
        assert place_of(cluster, "last")[2] == 2
        await cluster.plane.create_pod(half)
        await cluster.running_pods("half")
