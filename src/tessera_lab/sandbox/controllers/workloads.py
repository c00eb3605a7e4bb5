"""What controllers of pods want: plans for ReplicaSets, StatefulSets and Jobs.

A plan is the status of the object and the changes that bring the cluster closer to its spec. It is made from the latest
state and is idempotent: the loop makes a new one after every change.

Pods that fit a selector are not adopted. Templates of StatefulSets are rolled out one by one, from the last number to
the partition; claims for volumes and older templates are not kept. Simulated containers do nothing, so the pods of Jobs
end by themselves after `RUN_S`; indexes, deadlines and failure policies of Jobs are not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tessera_lab.sandbox.api.defaults import SUFFIX_LETTERS
from tessera_lab.sandbox.api.kinds import PODS, Json
from tessera_lab.sandbox.api.shapes import JobSpec, WorkloadSpec
from tessera_lab.sandbox.api.store import DECODE
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.objects import (
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


def new_pod(owner: Json, *, name: str = "", labels: Json | None = None, annotations: Json | None = None) -> Json:
    """A pod of the owner's template; without a name, the apiserver makes one."""
    template = copied(owner["spec"]["template"])
    metadata = template["metadata"]
    naming = {"name": name} if name else {"generateName": f"{name_of(owner)}-"}
    return controlled(
        owner,
        PODS.kind,
        {"spec": template["spec"]},
        labels=metadata.get("labels", {}) | (labels or {}),
        annotations=(annotations or {}) | metadata.get("annotations", {}),
        **naming,
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


REVISION_LABEL = "controller-revision-hash"


def plan_stateful_set(owner: Json, pods: Sequence[Json], at: str) -> Plan:
    spec = msgspec.convert(owner["spec"], WorkloadSpec)
    revision = f"{name_of(owner)}-{template_hash(owner)}"
    held = {_number(pod): pod for pod in pods}
    create, delete = _next_changes(owner, spec, held, revision)
    return Plan(_status(owner, pods, revision), delete=tuple(delete), create=tuple(create))


def _next_changes(
    owner: Json, spec: WorkloadSpec, held: Mapping[int, Json], revision: str
) -> tuple[list[Json], list[Json]]:
    """The pods to create and to delete: numbers that are missing first, then those beyond, then old templates."""
    one_by_one = spec.pod_management_policy != "Parallel"
    ended = [pod for pod in held.values() if has_ended(pod) and not is_being_deleted(pod)]
    create: list[Json] = []
    for number in range(spec.replicas):
        if number not in held:
            create.append(_pod(owner, number, revision))
        if one_by_one and not _is_healthy(held.get(number)):
            return create, ended
    if create or ended:
        return create, ended
    surplus = [held[number] for number in sorted(held, reverse=True) if number >= spec.replicas]
    if surplus:
        return [], _next_of(surplus) if one_by_one else [pod for pod in surplus if not is_being_deleted(pod)]
    if spec.update_strategy.type != "RollingUpdate":
        return [], []
    first = spec.update_strategy.rolling_update.partition
    return [], _outdated([held[number] for number in range(first, spec.replicas)], revision)


def _next_of(surplus: Sequence[Json]) -> list[Json]:
    """The last pod, unless it is on its way out already."""
    return [] if not surplus or is_being_deleted(surplus[0]) else [surplus[0]]


def _outdated(pods: Sequence[Json], revision: str) -> list[Json]:
    """The last pod of another template, if all behind it are healthy."""
    for pod in reversed(pods):
        if not is_being_deleted(pod) and _revision_of(pod) != revision:
            return [pod]
        if not _is_healthy(pod):
            return []
    return []


def _status(owner: Json, pods: Sequence[Json], revision: str) -> Json:
    active = active_pods(pods)
    ready = sum(is_ready(pod) for pod in active)
    updated = [pod for pod in active if _revision_of(pod) == revision]
    current = owner.get("status", {}).get("currentRevision") or revision
    if len(updated) == owner["spec"]["replicas"] == ready:
        current = revision
    return {
        "observedGeneration": owner["metadata"]["generation"],
        "replicas": len(active),
        "availableReplicas": ready,
        "currentRevision": current,
        "updateRevision": revision,
        "collisionCount": 0,
        **counts(
            readyReplicas=ready,
            updatedReplicas=len(updated),
            currentReplicas=sum(_revision_of(pod) == current for pod in active),
        ),
    }


def _pod(owner: Json, number: int, revision: str) -> Json:
    name = f"{name_of(owner)}-{number}"
    labels = {
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(number),
        REVISION_LABEL: revision,
    }
    pod = new_pod(owner, name=name, labels=labels)
    pod["spec"] |= {"hostname": name, "subdomain": owner["spec"].get("serviceName", "")}
    return pod


def _number(pod: Json) -> int:
    return int(name_of(pod).rpartition("-")[2])


def _revision_of(pod: Json) -> str:
    found: str = pod["metadata"].get("labels", {}).get(REVISION_LABEL, "")
    return found


def _is_healthy(pod: Json | None) -> bool:
    return pod is not None and is_ready(pod) and not is_being_deleted(pod)


RUN_S = 3
"""seconds that a pod of a Job runs"""
COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"


def plan_job(owner: Json, pods: Sequence[Json], at: str) -> Plan:
    old: Json = owner.get("status", {})
    if any((condition_of(owner, kind) or {}).get("status") == "True" for kind in (COMPLETE, FAILED)):
        return Plan(old)
    spec = msgspec.convert(owner["spec"], JobSpec)
    active = active_pods(pods)
    succeeded = sum(phase_of(pod) == "Succeeded" for pod in pods)
    failed = sum(phase_of(pod) == "Failed" for pod in pods)
    end = _end(spec, active=len(active), succeeded=succeeded, failed=failed)
    wanted = 0 if end is not None or spec.suspend else _wanted(spec, len(active), succeeded)
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
    elif spec.suspend or condition_of(owner, SUSPENDED):
        said = "JobSuspended" if spec.suspend else "JobResumed"
        text = f"Job {'suspended' if spec.suspend else 'resumed'}"
        status["conditions"] = [make_condition(owner, SUSPENDED, spec.suspend, reason=said, message=text, at=at)]
    run = {RUN_FOR: str(RUN_S)}
    return Plan(
        status,
        delete=tuple(active[wanted:]),
        create=tuple(new_pod(owner, annotations=run) for _ in range(wanted - len(active))),
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
