"""What controllers of pods want: plans for ReplicaSets, Deployments and Jobs.

A plan is the status of the object and the changes that bring the cluster closer to its spec. It is made from the latest
state and is idempotent: the loop makes a new one after every change.

Pods that fit a selector are not adopted. A Deployment replaces its pods in one way, whatever its strategy says, and
keeps all its revisions. Simulated containers do nothing, so the pods of Jobs end by themselves after `RUN_S`; indexes,
deadlines, suspension and failure policies of Jobs are not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tessera_lab.sandbox.api.defaults import SUFFIX_LETTERS
from tessera_lab.sandbox.api.kinds import PODS, REPLICA_SETS, Json
from tessera_lab.sandbox.api.shapes import JobSpec
from tessera_lab.sandbox.api.store import DECODE
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.objects import (
    annotations_of,
    condition_of,
    has_ended,
    is_being_deleted,
    name_of,
    namespace_of,
    node_of,
    phase_of,
    uid_of,
)

HASH_LETTERS = 10

_SORTED = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A merge patch for an object, and the event that tells about it."""

    target: Json
    patch: Json
    event: PlannedEvent | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Deletions and changes come before creations."""

    status: Json
    delete: tuple[Json, ...] = ()
    change: tuple[Change, ...] = ()
    create: tuple[Json, ...] = ()
    events: tuple[PlannedEvent, ...] = ()
    """recorded if the status changes"""


Planner = Callable[[Json, Sequence[Json], str], Plan]
"""from an object, what it owns, and the time as the API writes it"""


def owner_reference(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controlled(owner: Json, kind: str, content: Json, **metadata: object) -> Json:
    """A new object that `owner` controls."""
    reference = owner_reference(owner)
    fixed = {"namespace": namespace_of(owner), "ownerReferences": [reference], **metadata}
    return {"apiVersion": "v1", "kind": kind, **content, "metadata": fixed}


def new_pod(owner: Json, annotations: Json | None = None) -> Json:
    """A pod of the owner's template."""
    template = copied(owner["spec"]["template"])
    metadata = template["metadata"]
    return controlled(
        owner,
        PODS.kind,
        {"spec": template["spec"]},
        labels=metadata.get("labels", {}),
        annotations=(annotations or {}) | metadata.get("annotations", {}),
        generateName=f"{name_of(owner)}-",
    )


def copied(part: Json) -> Json:
    found: Json = DECODE(_SORTED(part))
    return found


def template_hash(owner: Json) -> str:
    """A name for the owner's template: equal templates have equal names."""
    digest = hashlib.sha256(_SORTED(owner["spec"]["template"])).digest()
    return "".join(SUFFIX_LETTERS[byte % len(SUFFIX_LETTERS)] for byte in digest[:HASH_LETTERS])


def is_ready(pod: Json) -> bool:
    return (condition_of(pod, "Ready") or {}).get("status") == "True"


def active_pods(pods: Iterable[Json]) -> list[Json]:
    """Pods that count as replicas: neither ended nor being deleted."""
    return [pod for pod in pods if not has_ended(pod) and not is_being_deleted(pod)]


def make_condition(owner: Json, kind: str, status: bool, *, reason: str, message: str, at: str) -> Json:
    """The condition; its times change only if it does."""
    said = {"type": kind, "status": str(status), "reason": reason, "message": message}
    old = condition_of(owner, kind) or {}
    if all(old.get(key) == value for key, value in said.items()):
        return old
    since = old.get("lastTransitionTime", at) if old.get("status") == said["status"] else at
    return said | {"lastUpdateTime": at, "lastTransitionTime": since}


def counts(**numbers: int) -> Json:
    """Numbers of a status; zeros are left out, as Go does."""
    return {key: number for key, number in numbers.items() if number}


def plan_replica_set(owner: Json, pods: Sequence[Json], at: str) -> Plan:
    wanted: int = owner["spec"]["replicas"]
    active = active_pods(pods)
    ready = sum(is_ready(pod) for pod in active)
    status = {
        "replicas": len(active),
        "observedGeneration": owner["metadata"]["generation"],
        **counts(fullyLabeledReplicas=len(active), readyReplicas=ready, availableReplicas=ready),
    }
    surplus = sorted(active, key=_removal_order)[: max(0, len(active) - wanted)]
    missing = max(0, wanted - len(active))
    return Plan(status, delete=tuple(surplus), create=tuple(new_pod(owner) for _ in range(missing)))


def _removal_order(pod: Json) -> tuple[bool, bool, bool, int]:
    """Pods that do the least go first, and of equal ones the newest."""
    version = int(pod["metadata"]["resourceVersion"])
    return bool(node_of(pod)), phase_of(pod) == "Running", is_ready(pod), -version


HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def plan_deployment(owner: Json, owned: Sequence[Json], at: str) -> Plan:
    """The replica set of the newest template has all replicas at once; of the older ones as many stay as it lacks."""
    wanted: int = owner["spec"]["replicas"]
    held = sorted((each for each in owned if not is_being_deleted(each)), key=_revision)
    new = next((each for each in held if _hash_of(each) == template_hash(owner)), None)
    status = _deployment_status(owner, held, new, at)
    if new is None:
        return Plan(status, create=(_replica_set(owner, revision=_next_revision(held)),))
    old = [each for each in held if each is not new]
    changes = [] if _size(new) == wanted else [_scaled(new, wanted)]
    kept = max(0, wanted - _available(new))
    for each in reversed(old):
        size = min(_size(each), kept)
        kept -= size
        if size != _size(each):
            changes.append(_scaled(each, size))
    if any(_revision(each) > _revision(new) for each in old):
        # The template of an older revision is the newest again.
        changes.append(_revised(new, str(_next_revision(held))))
    elif annotations_of(owner).get(REVISION) != annotations_of(new)[REVISION]:
        changes.append(_revised(owner, annotations_of(new)[REVISION]))
    return Plan(status, change=tuple(changes))


def _replica_set(owner: Json, *, revision: int) -> Json:
    spec = copied({key: owner["spec"][key] for key in ("replicas", "selector", "template")})
    label = {HASH_LABEL: template_hash(owner)}
    spec["selector"]["matchLabels"] = spec["selector"].get("matchLabels", {}) | label
    labels = spec["template"]["metadata"].get("labels", {}) | label
    spec["template"]["metadata"]["labels"] = labels
    kept = {key: text for key, text in annotations_of(owner).items() if key not in (LAST_APPLIED, REVISION)}
    made = controlled(
        owner,
        REPLICA_SETS.kind,
        {"spec": spec},
        name=f"{name_of(owner)}-{template_hash(owner)}",
        labels=labels,
        annotations=kept | {REVISION: str(revision)},
    )
    return made | {"apiVersion": REPLICA_SETS.api_version}


def _deployment_status(owner: Json, held: Sequence[Json], new: Json | None, at: str) -> Json:
    wanted: int = owner["spec"]["replicas"]
    replicas, available = sum(map(_replicas, held)), sum(map(_available, held))
    enough = available >= wanted
    reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
    message = f"Deployment {'has' if enough else 'does not have'} minimum availability."
    failure = condition_of(new, "ReplicaFailure") if new is not None else None
    return {
        "observedGeneration": owner["metadata"]["generation"],
        **counts(
            replicas=replicas,
            updatedReplicas=_replicas(new) if new is not None else 0,
            readyReplicas=available,
            availableReplicas=available,
            unavailableReplicas=max(0, max(replicas, wanted) - available),
        ),
        "conditions": [
            make_condition(owner, "Available", enough, reason=reason, message=message, at=at),
            *([failure] if failure is not None else []),
        ],
    }


def _scaled(replica_set: Json, size: int) -> Change:
    before = _size(replica_set)
    direction = "up" if size > before else "down"
    message = f"Scaled {direction} replica set {name_of(replica_set)} from {before} to {size}"
    return Change(replica_set, {"spec": {"replicas": size}}, PlannedEvent("ScalingReplicaSet", message))


def _revised(target: Json, revision: str) -> Change:
    return Change(target, {"metadata": {"annotations": {REVISION: revision}}})


def _size(replica_set: Json) -> int:
    size: int = replica_set["spec"]["replicas"]
    return size


def _replicas(replica_set: Json) -> int:
    found: int = replica_set.get("status", {}).get("replicas", 0)
    return found


def _available(replica_set: Json) -> int:
    """Replicas that will stay available, even if the status is older than the spec."""
    found: int = replica_set.get("status", {}).get("availableReplicas", 0)
    return min(found, _size(replica_set))


def _revision(replica_set: Json) -> int:
    text = annotations_of(replica_set).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _next_revision(replica_sets: Sequence[Json]) -> int:
    return max(map(_revision, replica_sets), default=0) + 1


def _hash_of(replica_set: Json) -> str:
    found: str = replica_set["metadata"].get("labels", {}).get(HASH_LABEL, "")
    return found


RUN_S = 3
"""seconds that a pod of a Job runs"""
COMPLETE, FAILED = "Complete", "Failed"


def plan_job(owner: Json, pods: Sequence[Json], at: str) -> Plan:
    old: Json = owner.get("status", {})
    if any((condition_of(owner, kind) or {}).get("status") == "True" for kind in (COMPLETE, FAILED)):
        return Plan(old)
    spec = msgspec.convert(owner["spec"], JobSpec)
    active = active_pods(pods)
    succeeded = sum(phase_of(pod) == "Succeeded" for pod in pods)
    failed = sum(phase_of(pod) == "Failed" for pod in pods)
    end = _end(spec, active=len(active), succeeded=succeeded, failed=failed)
    wanted = 0 if end is not None else _wanted(spec, len(active), succeeded)
    status = {
        "startTime": old.get("startTime", at),
        **counts(active=len(active), ready=sum(is_ready(pod) for pod in active), succeeded=succeeded, failed=failed),
    }
    events: tuple[PlannedEvent, ...] = ()
    if end is not None:
        kind, reason, message = end
        status["conditions"] = [make_condition(owner, kind, True, reason=reason, message=message, at=at)]
        # What still runs is deleted below, so nothing is active from now on.
        status = {key: value for key, value in status.items() if key not in ("active", "ready")}
        if kind == COMPLETE:
            status["completionTime"] = at
        done = PlannedEvent("Completed", "Job completed")
        events = (done if kind == COMPLETE else PlannedEvent(reason, message, warning=True),)
    run = {RUN_FOR: str(RUN_S)}
    return Plan(
        status,
        delete=tuple(active[wanted:]),
        create=tuple(new_pod(owner, run) for _ in range(wanted - len(active))),
        events=events,
    )


def _wanted(spec: JobSpec, active: int, succeeded: int) -> int:
    """How many pods should run now."""
    if spec.completions is None:
        # The first success says that the work is done; the others finish what they have begun.
        return active if succeeded else spec.parallelism
    return min(spec.parallelism, max(0, spec.completions - succeeded))


def _end(spec: JobSpec, *, active: int, succeeded: int, failed: int) -> tuple[str, str, str] | None:
    """How the job ended, with reason and message; None while it has not."""
    if failed > spec.backoff_limit:
        return FAILED, "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    is_done = succeeded >= spec.completions if spec.completions is not None else bool(succeeded) and not active
    return (COMPLETE, "CompletionsReached", "Reached expected number of succeeded pods") if is_done else None
