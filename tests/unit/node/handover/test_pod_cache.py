from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES, PODS
from tessera.node.handover.assignments import ALLOCATED, TO_ALLOCATE, ObjectKey
from tessera.node.handover.pod_cache import KubeCluster, PodCache
from tessera.wire import keys
from tessera.wire.objects import Node, Pod, decode_object
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.objects import uid_of
from tests.support.handover_node import NODE, Api, bound, entry
from tests.support.logs import captured

A = "a/3000/50"


def node(lock: str | None) -> Node:
    annotations = "{}" if lock is None else f'{{"{keys.NODE_LOCK}":"{lock}"}}'
    return decode_object(f'{{"metadata":{{"name":"{NODE}","annotations":{annotations}}}}}', Node)


def cache(gone: list[str] | None = None) -> PodCache:
    return PodCache(NODE, Api(), time=lambda: 0.0, on_gone=([] if gone is None else gone).append)


def put(pods: PodCache, *many: Pod) -> None:
    for pod in many:
        pods.put(f"default/{pod.metadata.name}", pod)


async def test_pods_are_known_in_order_by_uid_and_by_name() -> None:
    pods = cache()
    put(pods, bound("late", A, at=9), bound("early", A))
    assert [pod.key.name for pod in pods.all()] == ["early", "late"]
    found = pods.named("default", "late")
    assert found is not None
    assert pods.get("uid-late") is found
    assert (pods.get("nobody"), pods.named("default", "nobody")) == (None, None)


async def test_a_pod_that_was_replaced_under_its_name_is_another() -> None:
    gone: list[str] = []
    pods = cache(gone)
    put(pods, bound("p", A, uid="old"), bound("p", A, uid="new"))
    assert gone == ["old"]
    assert pods.get("old") is None
    assert pods.get("new") is not None


def at_version(pod: Pod, version: str) -> Pod:
    return structs.replace(pod, metadata=structs.replace(pod.metadata, resource_version=version))


@pytest.mark.parametrize(("version", "is_read_again"), [("1", False), ("2", True), ("", True)])
async def test_only_another_version_of_a_pod_is_read_again(version: str, is_read_again: bool) -> None:
    pods = cache()
    put(pods, at_version(bound("p", A), version and "1"))
    # No API changes a pod and keeps its version; it shows here whether the pod was read.
    put(pods, at_version(bound("p", "b/3000/50"), version))
    [found] = pods.all()
    assert (found.assignments[0].slices[0].uuid == "GPU-b") is is_read_again


async def test_a_pod_of_another_uid_is_read_even_at_the_same_version() -> None:
    pods = cache()
    put(pods, at_version(bound("p", A, uid="old"), "1"), at_version(bound("p", A, uid="new"), "1"))
    assert [pod.key.uid for pod in pods.all()] == ["new"]


async def test_a_pod_that_loses_its_annotations_or_vanishes_is_gone() -> None:
    gone: list[str] = []
    pods = cache(gone)
    put(pods, bound("p", A), bound("q", A))
    put(pods, bound("p", A, annotations={TO_ALLOCATE: None, ALLOCATED: None, keys.ASSIGNED_NODE: None}))
    pods.drop("default/q")
    pods.drop("default/never-there")
    assert gone == ["uid-p", "uid-q"]
    assert pods.all() == []


async def test_the_pods_of_the_first_list_are_inherited() -> None:
    pods = cache()
    put(pods, bound("p", A))
    pods.synced()
    put(pods, bound("q", A))
    pods.synced()
    assert pods.inherited == {"uid-p"}
    assert pods.ready.is_set()


async def test_a_waiting_reader_hears_of_changes_and_of_those_that_came_before() -> None:
    pods = cache()
    before = pods.version.value
    waiting = asyncio.create_task(pods.version.other_than(before))
    await asyncio.sleep(0)
    put(pods, bound("p", A))
    await waiting
    await pods.version.other_than(before)
    same = pods.version.value
    put(pods, bound("p", A))
    assert pods.version.value == same
    pods.node_view.put(NODE, node("2026-01-01T00:00:00Z,default,p"))
    assert pods.version.value > same


async def test_live_assignments_are_those_of_all_pods_that_have_not_ended() -> None:
    pods = cache()
    put(
        pods,
        bound("running", A, status="Running", phase="success", annotations={TO_ALLOCATE: ";"}),
        bound("leaving", A, at=1, deleted="2026-01-01T00:00:00Z"),
        bound("over", A, at=2, status="Succeeded"),
    )
    claims = pods.live_assignments()
    assert claims is not None
    assert [claim.pod.name for claim in claims] == ["running", "leaving"]


async def test_if_one_pod_cannot_be_read_it_is_unknown_what_is_live() -> None:
    pods = cache()
    put(pods, bound("good", A), bound("bad", A, annotations={ALLOCATED: "a,b:;"}))
    assert pods.live_assignments() is None


async def test_a_problem_is_logged_once() -> None:
    pods = cache()
    bad = bound("bad", A, annotations={TO_ALLOCATE: "a,b:;"})
    with captured() as logs:
        put(pods, bad, bad)
        put(pods, bound("held", A, phase="success", annotations={ALLOCATED: "a,b:;"}))
        put(pods, bound("ended", A, status="Failed", annotations={ALLOCATED: "a,b:;"}))
    assert [event["pod"] for event in logs.of("pod cannot be handed its devices")] == ["default/bad", "default/held"]


@pytest.mark.parametrize(
    ("text", "owner", "concerns"),
    [
        (None, None, False),
        ("2026-01-01T00:00:00Z,default,p", ("default", "p"), True),
        ("2026-01-01T00:00:00Z,default,other", ("default", "other"), False),
        ("2026-01-01T00:00:00Z", None, True),
        ("a,b,c,d", None, False),
    ],
)
async def test_the_lock_tells_which_pod_it_concerns(
    text: str | None, owner: tuple[str, str] | None, concerns: bool
) -> None:
    pods = cache()
    pods.node_view.put(NODE, node(text))
    pods.node_view.synced()
    assert pods.node_view.lock_owner == owner
    assert pods.node_view.lock_concerns(("default", "p")) is concerns
    pods.node_view.drop(NODE)
    assert pods.node_view.lock_text is None


# -- against the embedded API server


async def create_bound(plane: ControlPlane, devices: str) -> ObjectKey:
    """The pod p, bound as a scheduler of ours does it."""
    uid = uid_of(
        await plane.create_pod({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    )
    annotations = {keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: keys.PHASE_ALLOCATING, TO_ALLOCATE: entry(devices)}
    await plane.client.bind("default", "p", uid=uid, node=NODE, annotations=annotations)
    return ObjectKey("default", "p", uid)


async def test_only_pods_of_the_node_are_listed_and_a_later_one_of_the_same_name_is_never_written(
    tmp_path: Path,
) -> None:
    async with ControlPlane(folder=tmp_path) as plane:
        await plane.client.create(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        cluster = KubeCluster(plane.client)
        old = await create_bound(plane, A)
        assert [pod.metadata.uid for pod in await cluster.list_pods(NODE)] == [old.uid]
        assert await cluster.list_pods("elsewhere") == []
        await plane.client.delete(PODS.path("default", "p"), grace_s=0)
        await create_bound(plane, "b/4000/60")
        with pytest.raises(ApiError) as refusal:
            await cluster.annotate_pod(old, {keys.BIND_PHASE: "failed"})
        assert refusal.value.status == 422
        assert (await cluster.get_pod("default", "p")).annotations[keys.BIND_PHASE] == "allocating"


async def test_a_lock_is_taken_off_the_node_that_was_read(tmp_path: Path) -> None:
    async with ControlPlane(folder=tmp_path) as plane:
        metadata = {"name": NODE, "annotations": {keys.NODE_LOCK: "2026-01-01T00:00:00Z,default,p"}}
        await plane.client.create(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        cluster = KubeCluster(plane.client)
        read = await cluster.get_node(NODE)
        version = read.metadata.resource_version
        await cluster.annotate_node(NODE, {keys.NODE_LOCK: None}, resource_version=version)
        assert keys.NODE_LOCK not in (await cluster.get_node(NODE)).annotations
        with pytest.raises(ApiError) as refusal:
            await cluster.annotate_node(NODE, {keys.NODE_LOCK: "mine"}, resource_version=version)
        assert refusal.value.status == 409
