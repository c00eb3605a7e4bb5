"""Deletes objects: at once, after a kubelet has stopped the pod, or after the last finalizer is gone.

    bound pod, grace > 0      -> deletionTimestamp is set; the node deletes again with grace 0
    object with finalizers    -> deletionTimestamp is set; the update that removes the last one removes the object
    everything else           -> removed

A namespace is removed after its content. Dependents are left to the garbage collector (`controllers`): a request that
says what happens to them (`propagationPolicy`) adds the finalizer that the collector acts on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tessera_lab.sandbox.api.admission import Attributes
from tessera_lab.sandbox.api.api_state import ApiState, RequestContext
from tessera_lab.sandbox.api.errors import forbidden, not_found
from tessera_lab.sandbox.api.kinds import KINDS, NAMESPACES, PODS, Json, ResourceKind
from tessera_lab.sandbox.api.shapes import DeleteOptions
from tessera_lab.sandbox.api.store import Stored, make_stored
from tessera_lab.sandbox.api.writes import check_precondition

KEPT_NAMESPACES = ("default", "kube-system", "kube-public")
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
"""finalizers that keep an object until its dependents are freed of it, or are gone"""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The object after the request: `gone`, or still being deleted."""

    stored: Stored
    gone: bool


async def delete(
    cluster: ApiState, kind: ResourceKind, namespace: str, name: str, *, options: DeleteOptions, call: RequestContext
) -> Deletion:
    """Deletes one object."""
    current = cluster.store.get(kind, namespace, name)
    if current is None:
        raise not_found(kind, name)
    if kind is NAMESPACES and name in KEPT_NAMESPACES:
        raise forbidden(kind, name, "this namespace may not be deleted")
    check_precondition(current, uid=options.preconditions.uid, version=options.preconditions.resource_version)
    attributes = Attributes(
        "DELETE", kind, namespace, name, None, old=current.object, dry_run=call.dry_run, user=call.user
    )
    await cluster.admit(attributes, call)
    current = cluster.store.get(kind, namespace, name)
    if current is None:
        raise not_found(kind, name)
    check_precondition(current, uid=options.preconditions.uid, version=options.preconditions.resource_version)
    return remove(cluster, current, options, dry_run=call.dry_run)


def remove(cluster: ApiState, current: Stored, options: DeleteOptions, *, dry_run: bool = False) -> Deletion:
    """Removes the object, or marks it if that has to wait."""
    if current.kind is NAMESPACES:
        return _remove_namespace(cluster, current, dry_run=dry_run)
    grace = _grace_s(current, options)
    finalizers = _finalizers(current, options)
    marked = _marked(cluster, current, grace, finalizers)
    if grace == 0 and not finalizers:
        if dry_run:
            return Deletion(current, gone=True)
        if current.kind is PODS and marked is not None:
            # kube-apiserver marks a pod before it removes it: watchers see both writes.
            current = cluster.store.put(PODS, marked)
        return Deletion(cluster.store.remove(current), gone=True)
    if marked is None:
        return Deletion(current, gone=False)
    if dry_run:
        return Deletion(make_stored(current.kind, marked, current.version), gone=False)
    return Deletion(cluster.store.put(current.kind, marked), gone=False)


def _grace_s(current: Stored, options: DeleteOptions) -> int:
    """Seconds that the pod may still run; what no kubelet runs is removed at once."""
    spec, status = current.object.get("spec", {}), current.object.get("status", {})
    if current.kind is not PODS or not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.grace_period_seconds
    if asked is None:
        pending: int | None = current.object["metadata"].get("deletionGracePeriodSeconds")
        asked = pending if pending is not None else spec.get("terminationGracePeriodSeconds", 30)
    return asked if asked >= 0 else 1


def _finalizers(current: Stored, options: DeleteOptions) -> list[str]:
    """The finalizers for this deletion: what it says about dependents replaces what was said before."""
    held: list[str] = current.object["metadata"].get("finalizers", [])
    policy = options.propagation_policy
    if policy is None:
        orphans = current.kind.orphans_by_default and "deletionTimestamp" not in current.object["metadata"]
        return [*held, ORPHAN] if orphans and not {ORPHAN, FOREGROUND} & set(held) else held
    added = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(policy, [])
    return [each for each in held if each not in (ORPHAN, FOREGROUND)] + added


def _marked(cluster: ApiState, current: Stored, grace: int, finalizers: list[str]) -> Json | None:
    """The object with a deletion timestamp; None if that changes nothing."""
    pending = current.object["metadata"].get("deletionGracePeriodSeconds")
    if pending is not None and pending <= grace and finalizers == current.object["metadata"].get("finalizers", []):
        return None
    marked = current.copy()
    metadata = marked["metadata"]
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    if pending is not None and pending <= grace:
        return marked
    if pending is None:
        metadata["deletionTimestamp"] = cluster.identities.timestamp(after_s=grace)
    else:
        asked = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp() - pending
        metadata["deletionTimestamp"] = datetime.fromtimestamp(asked + grace, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata["deletionGracePeriodSeconds"] = grace
    if "generation" in metadata:
        metadata["generation"] += 1
    return marked


def _remove_namespace(cluster: ApiState, current: Stored, *, dry_run: bool) -> Deletion:
    marked = current.copy()
    if "deletionTimestamp" not in marked["metadata"]:
        marked["metadata"]["deletionTimestamp"] = cluster.identities.timestamp()
        marked["status"] = {"phase": "Terminating"}
    if dry_run:
        return Deletion(make_stored(NAMESPACES, marked, current.version), gone=False)
    stored = cluster.store.put(NAMESPACES, marked)
    for kind in KINDS:
        if kind.namespaced:
            for held in cluster.store.list(kind, current.name):
                remove(cluster, held, DeleteOptions(propagation_policy="Background"))
    return Deletion(stored, gone=cluster.store.get(NAMESPACES, "", current.name) is None)
