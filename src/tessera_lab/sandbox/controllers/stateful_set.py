"""StatefulSets: pods with numbers that keep their names, made and replaced one after the other.

With `podManagementPolicy: Parallel` they are made and removed at once; templates are always rolled out one by one, from
the last number to the partition. Claims for volumes and older templates are not kept: a pod is always made of the
newest template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.shapes import WorkloadSpec
from tessera_lab.sandbox.controllers.plan import Plan, active_pods, counts, is_ready, new_pod, template_hash
from tessera_lab.sandbox.objects import has_ended, is_being_deleted, name_of

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
