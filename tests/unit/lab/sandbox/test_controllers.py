"""Controllers of the sandbox: workloads get their pods, change them in order, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tessera_lab.sandbox.api.api_state import RequestContext
from tessera_lab.sandbox.api.kinds import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    KINDS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    ResourceKind,
)
from tessera_lab.sandbox.api.requests import RequestTarget
from tessera_lab.sandbox.api.shapes import DeleteOptions
from tessera_lab.sandbox.api.store import StoreChange
from tessera_lab.sandbox.api.verbs import MERGE_PATCH
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.controllers.workloads import RUN_S, active_pods, is_ready, owner_reference, template_hash
from tessera_lab.sandbox.nodes.kubelet import EXIT_CODE, RUN_FOR
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tessera_lab.sandbox.objects import condition_of, name_of, phase_of
from tests.support.event_loops import in_fake_time

Json = dict[str, Any]

BY_KIND = {kind.kind: kind for kind in KINDS}


class Cluster:
    """A control plane, spoken to without HTTP."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.verbs = plane.server.verbs
        self.store = plane.server.cluster.store

    async def apply(self, content: Json) -> Json:
        made = await self.verbs.create(RequestTarget(BY_KIND[content["kind"]], "default"), content, RequestContext())
        assert not isinstance(made, dict)
        return made.object

    async def patch(self, kind: ResourceKind, name: str, patch: Json, *, namespace: str = "default") -> None:
        await self.verbs.patch(RequestTarget(kind, namespace, name), MERGE_PATCH, patch, RequestContext())

    async def delete(
        self, kind: ResourceKind, name: str, policy: str | None = None, *, namespace: str = "default"
    ) -> None:
        options = DeleteOptions(propagation_policy=policy)
        await self.verbs.delete(RequestTarget(kind, namespace, name), options, RequestContext())

    def get(self, kind: ResourceKind, name: str) -> Json:
        stored = self.store.get(kind, "default", name)
        return stored.object if stored is not None else {}

    def all(self, kind: ResourceKind) -> list[Json]:
        return [stored.object for stored in self.store.list(kind, "default")]

    def names(self, kind: ResourceKind) -> list[str]:
        return [name_of(each) for each in self.all(kind)]

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.all(PODS)]

    def reasons(self, name: str) -> set[str]:
        return {each["reason"] for each in self.all(EVENTS) if each["involvedObject"]["name"] == name}

    def has_pods(self, count: int) -> bool:
        return len(self.all(PODS)) == count

    async def until(self, predicate: Callable[[], object]) -> None:
        await self.plane.wait_for(predicate, 600.0)

    async def settle(self) -> None:
        """Waits until nothing changes for a long time."""
        before = -1
        while before != self.store.touched(PODS):
            before = self.store.touched(PODS)
            await asyncio.sleep(60.0)

    def is_done(self, kind: ResourceKind, name: str) -> bool:
        """As `kubectl rollout status` judges it."""
        found = self.get(kind, name)
        status, wanted = found.get("status", {}), found["spec"]["replicas"]
        seen = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
        return bool(status.get("observedGeneration") == found["metadata"]["generation"] and seen == [wanted] * 3)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with ControlPlane(nodes=[SimulatedNode("n")]) as plane:
        await plane.start_scheduling()
        yield Cluster(plane)


def workload(kind: ResourceKind, name: str = "w", *, annotations: Json | None = None, **spec: Any) -> Json:
    labels = {"app": name}
    pod = {"containers": [{"name": "c", "image": "x:1"}]} | ({"restartPolicy": "Never"} if kind is JOBS else {})
    own: Json = {"template": {"metadata": {"labels": labels, "annotations": annotations or {}}, "spec": pod}}
    if kind is not JOBS:
        own["selector"] = {"matchLabels": labels}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": own | spec}


NEW_IMAGE = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x:2"}]}}}}
OLD_IMAGE = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x:1"}]}}}}


class Census:
    """The fewest ready and the most active pods since it began."""

    def __init__(self, on: Cluster) -> None:
        self.fewest_ready = self.most_active = len(on.all(PODS))
        self._cluster = on
        on.store.listen(self._count)

    def _count(self, change: StoreChange) -> None:
        active = active_pods(self._cluster.all(PODS))
        self.most_active = max(self.most_active, len(active))
        self.fewest_ready = min(self.fewest_ready, sum(is_ready(pod) for pod in active))


# -- deployments


@in_fake_time
async def test_a_deployment_runs_its_pods_and_follows_its_replicas() -> None:
    async with cluster() as on:
        await on.apply(workload(DEPLOYMENTS, replicas=3))
        await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
        (replica_set,) = on.all(REPLICA_SETS)
        deployment = on.get(DEPLOYMENTS, "w")
        assert name_of(replica_set) == f"w-{template_hash(deployment)}"
        assert replica_set["metadata"]["ownerReferences"] == [owner_reference(deployment)]
        for pod in on.all(PODS):
            assert name_of(pod).startswith(f"{name_of(replica_set)}-")
            assert pod["metadata"]["ownerReferences"] == [owner_reference(replica_set)]
            assert pod["metadata"]["labels"] == replica_set["spec"]["selector"]["matchLabels"]
        assert (condition_of(deployment, "Available") or {})["status"] == "True"
        for size in (5, 0, 1):
            await on.patch(DEPLOYMENTS, "w", {"spec": {"replicas": size}})
            await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
            await on.until(partial(on.has_pods, size))
        await on.delete(PODS, on.names(PODS)[0])
        await on.until(lambda: len(active_pods(on.all(PODS))) == 1 and on.is_done(DEPLOYMENTS, "w"))


@in_fake_time
async def test_a_rollback_uses_the_old_replica_set_again_as_the_newest_revision() -> None:
    async with cluster() as on:
        await on.apply(workload(DEPLOYMENTS, replicas=2))
        await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
        (first,) = on.names(REPLICA_SETS)
        for image, count in ((NEW_IMAGE, 2), (OLD_IMAGE, 2), (NEW_IMAGE, 2)):
            await on.patch(DEPLOYMENTS, "w", image)
            await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
            assert len(on.names(REPLICA_SETS)) == count
        key = "deployment.kubernetes.io/revision"
        assert on.get(REPLICA_SETS, first)["metadata"]["annotations"][key] == "3"
        await on.until(lambda: on.get(DEPLOYMENTS, "w")["metadata"]["annotations"][key] == "4")


@in_fake_time
async def test_pods_that_are_refused_are_reported_and_tried_again() -> None:
    async with cluster() as on:
        refused = workload(DEPLOYMENTS, replicas=2)
        refused["spec"]["template"]["spec"]["serviceAccountName"] = "late"
        await on.apply(refused)
        await on.until(lambda: (condition_of(on.get(DEPLOYMENTS, "w"), "ReplicaFailure") or {}).get("status") == "True")
        (replica_set,) = on.names(REPLICA_SETS)
        failure = condition_of(on.get(REPLICA_SETS, replica_set), "ReplicaFailure") or {}
        assert 'serviceaccount "late" not found' in failure["message"]
        assert "FailedCreate" in on.reasons(replica_set)
        await on.settle()
        (event,) = [each for each in on.all(EVENTS) if each["reason"] == "FailedCreate"]
        assert (event["type"], event["count"] > 1) == ("Warning", True)
        await on.apply({"apiVersion": "v1", "kind": SERVICE_ACCOUNTS.kind, "metadata": {"name": "late"}})
        await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
        assert condition_of(on.get(DEPLOYMENTS, "w"), "ReplicaFailure") is None


# -- jobs


@in_fake_time
async def test_a_job_runs_so_many_pods_at_a_time_until_enough_have_succeeded() -> None:
    async with cluster() as on:
        census = Census(on)
        began = asyncio.get_running_loop().time()
        await on.apply(workload(JOBS, completions=5, parallelism=2))
        await on.until(lambda: condition_of(on.get(JOBS, "w"), "Complete"))
        status = on.get(JOBS, "w")["status"]
        assert (status["succeeded"], status.get("active"), census.most_active) == (5, None, 2)
        assert {"startTime", "completionTime"} <= status.keys()
        assert asyncio.get_running_loop().time() - began >= 3 * RUN_S
        await on.settle()
        assert [phase_of(pod) for pod in on.all(PODS)] == ["Succeeded"] * 5
        assert "Completed" in on.reasons("w")


@in_fake_time
async def test_a_job_fails_when_more_pods_failed_than_its_limit() -> None:
    async with cluster() as on:
        await on.apply(workload(JOBS, backoffLimit=2, annotations={EXIT_CODE: "3", RUN_FOR: "0"}))
        await on.until(lambda: condition_of(on.get(JOBS, "w"), "Failed"))
        await on.settle()
        assert (condition_of(on.get(JOBS, "w"), "Failed") or {})["reason"] == "BackoffLimitExceeded"
        assert [phase_of(pod) for pod in on.all(PODS)] == ["Failed"] * 3
        ended = on.all(PODS)[0]["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (3, "Error")


@in_fake_time
async def test_workers_without_a_number_of_completions_end_together() -> None:
    async with cluster() as on:
        await on.apply(workload(JOBS, parallelism=3))
        await on.until(lambda: condition_of(on.get(JOBS, "w"), "Complete"))
        assert on.get(JOBS, "w")["status"]["succeeded"] == 3


# -- what is left of a deleted owner


@pytest.mark.parametrize("policy", [None, "Background", "Foreground"])
@in_fake_time
async def test_everything_of_a_deleted_deployment_goes(policy: str | None) -> None:
    async with cluster() as on:
        await on.apply(workload(DEPLOYMENTS, replicas=2))
        await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
        order: list[str] = []
        on.store.listen(lambda change: order.append(change.new.kind.kind) if change.removed else None)
        await on.delete(DEPLOYMENTS, "w", policy)
        await on.until(lambda: not on.all(DEPLOYMENTS) and not on.all(REPLICA_SETS) and not on.all(PODS))
        downwards = ["Deployment", "ReplicaSet", "Pod", "Pod"]
        assert order == (downwards[::-1] if policy == "Foreground" else downwards)


@in_fake_time
async def test_orphans_stay() -> None:
    async with cluster() as on:
        await on.apply(workload(DEPLOYMENTS, replicas=2))
        await on.until(lambda: on.is_done(DEPLOYMENTS, "w"))
        pods = on.names(PODS)
        await on.delete(DEPLOYMENTS, "w", "Orphan")
        await on.until(lambda: not on.all(DEPLOYMENTS))
        await on.settle()
        (replica_set,) = on.all(REPLICA_SETS)
        assert "ownerReferences" not in replica_set["metadata"]
        assert on.names(PODS) == pods


@in_fake_time
async def test_an_object_goes_with_its_last_owner() -> None:
    async with cluster() as on:
        references = []
        for name in ("a", "b"):
            made = await on.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
            references.append(owner_reference(made) | {"controller": False})
        unknown = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "never-there"}
        kinds = {"shared": references, "strange": [unknown]}
        for name, owners in kinds.items():
            await on.apply(
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "ownerReferences": owners}}
            )
        secrets, maps = BY_KIND["Secret"], BY_KIND["ConfigMap"]
        await on.delete(maps, "a")
        await on.until(lambda: len(on.get(secrets, "shared")["metadata"]["ownerReferences"]) == 1)
        await on.delete(maps, "b")
        await on.until(lambda: on.names(secrets) == ["strange"])


@in_fake_time
async def test_a_pod_that_is_made_while_its_owner_is_deleted_goes_too() -> None:
    async with cluster() as on:
        await on.apply(workload(REPLICA_SETS, replicas=0))
        create = on.verbs.create

        async def slow(target: RequestTarget, body: Any, call: RequestContext) -> Any:
            if target.kind is PODS:
                await on.delete(REPLICA_SETS, "w")
            return await create(target, body, call)

        on.verbs.create = slow  # type: ignore[method-assign]
        made: list[str] = []
        on.store.listen(lambda change: made.append(change.new.name) if change.new.kind is PODS else None)
        await on.patch(REPLICA_SETS, "w", {"spec": {"replicas": 1}})
        await on.until(lambda: made and not on.all(PODS))


@in_fake_time
async def test_a_namespace_goes_with_its_workloads() -> None:
    async with cluster() as on:
        await on.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        for kind in (DEPLOYMENTS, JOBS):
            target = RequestTarget(kind, "team")
            await on.verbs.create(target, workload(kind, kind.plural), RequestContext())
        await on.until(lambda: len(on.store.list(PODS, "team")) == 2)
        await on.delete(NAMESPACES, "team", namespace="")
        await on.until(lambda: on.store.get(NAMESPACES, "", "team") is None)
        await on.settle()
        assert on.store.namespace_is_empty("team")
