"""Handover against the embedded API server, over its real watches and patches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES, PODS
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.assignments import ALLOCATED, TO_ALLOCATE, ObjectKey
from tessera.node.handover.checkpoint import FILE
from tessera.node.handover.pod_cache import KubeCluster
from tessera.node.settings import AgentSettings, Paths
from tessera.services.exposition import Registry
from tessera.wire import keys
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.objects import annotations_of, uid_of
from tests.support.handover_node import NODE, Mode, Resources, entry

A, B = "a/3000/50", "b/4000/60"


async def create_bound(plane: ControlPlane, name: str, *containers: str) -> ObjectKey:
    """A pod with devices, bound as a scheduler of ours does it."""
    made = [{"name": f"c{number}", "image": "i"} for number in range(len(containers))]
    created = await plane.create_pod(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": made}}
    )
    text = "".join(entry(each) for each in containers)
    annotations = {
        keys.ASSIGNED_NODE: NODE,
        keys.BIND_TIME: "1",
        keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        TO_ALLOCATE: text,
        ALLOCATED: text,
    }
    await plane.client.bind("default", name, uid=uid_of(created), node=NODE, annotations=annotations)
    return ObjectKey("default", name, uid_of(created))


async def create_node(plane: ControlPlane, lock: str | None = None) -> None:
    annotations = {keys.NODE_LOCK: lock} if lock is not None else {}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "annotations": annotations}}
    await plane.client.create(NODES.path(), body)


@pytest.mark.parametrize("locked", [True, False], ids=["lock", "no lock"])
async def test_a_bound_pod_is_handed_over(tmp_path: Path, locked: bool) -> None:
    async with ControlPlane(folder=tmp_path) as plane:
        await create_node(plane, "2026-01-01T00:00:00Z,default,p" if locked else None)
        handover = NodeHandover(
            AgentSettings(node_name=NODE, paths=Paths(state=tmp_path / "state")),
            Mode(),
            cluster=KubeCluster(plane.client),
            resources=Resources(),
            report=lambda *_: None,
            registry=Registry(),
        )
        running = asyncio.create_task(handover.run(plane.client))
        await create_bound(plane, "p", A, B)
        answers = await handover.allocator.allocate([["GPU-a-0"], ["GPU-b-0"]])
        assert [answer.env["container"] for answer in answers] == ["c0", "c1"]
        await plane.wait_for(lambda: annotations_of(plane.pod("default", "p") or {})[keys.BIND_PHASE] == "success")
        await plane.wait_for(lambda: keys.NODE_LOCK not in annotations_of(plane.node(NODE) or {}))
        assert annotations_of(plane.pod("default", "p") or {})[TO_ALLOCATE] == ";;"
        assert await handover.flush(5.0) == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (tmp_path / "state" / FILE).exists()


async def test_a_later_pod_of_the_same_name_is_never_written(tmp_path: Path) -> None:
    async with ControlPlane(folder=tmp_path) as plane:
        await create_node(plane)
        old = await create_bound(plane, "p", A)
        await plane.client.delete(PODS.path("default", "p"), grace_s=0)
        await create_bound(plane, "p", B)
        cluster = KubeCluster(plane.client)
        with pytest.raises(ApiError) as refusal:
            await cluster.annotate_pod(old, {keys.BIND_PHASE: "failed"})
        assert refusal.value.status == 422
        assert (await cluster.get_pod("default", "p")).annotations[keys.BIND_PHASE] == "allocating"


async def test_only_the_pods_of_the_node_are_listed(tmp_path: Path) -> None:
    async with ControlPlane(folder=tmp_path) as plane:
        await create_node(plane)
        here = await create_bound(plane, "p", A)
        cluster = KubeCluster(plane.client)
        assert [pod.metadata.uid for pod in await cluster.list_pods(NODE)] == [here.uid]
        assert await cluster.list_pods("elsewhere") == []
