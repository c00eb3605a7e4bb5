"""Which pods and gangs wait for devices, and for how long: the highest priority first, then the longest wait.

Left out are pods that other means are about to help: those that preemption has nominated for a node, and gangs of which
some members are missing, gated or bound. Members of a gang that is planned for must be alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tessera.core.requests import PodRequest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.scheduler.engine_view import GangView
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.wire.objects import Pod

SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod, or a gang of pods that are alike."""

    name: str
    keys: tuple[str, ...]
    """namespace/name of the pods that must fit together"""
    priority: int
    since: float
    """unix seconds"""
    request: PodRequest
    """of each of the pods"""


def waiting_demand(cluster: OfflineCluster, *, patience_s: float) -> list[Demand]:
    """What waits for longer than `patience_s` at the time of the cluster's state."""
    found = [*_single_pods(cluster), *_gangs(cluster)]
    patient = (each for each in found if each.since + patience_s <= cluster.state.taken)
    return sorted(patient, key=lambda each: (-each.priority, each.since, each.name))


def _single_pods(cluster: OfflineCluster) -> Iterator[Demand]:
    members = {member.request.uid for gang in cluster.view.gangs() for member in gang.members}
    for key, pod in cluster.pods.items():
        prepared = cluster.prepare(pod) if _waits(cluster, pod) and pod.metadata.uid not in members else None
        if isinstance(prepared, PreparedRequest) and prepared.request.asks_for_devices:
            yield _demand(cluster, key, [key], prepared.request)


def _gangs(cluster: OfflineCluster) -> Iterator[Demand]:
    keys = {pod.metadata.uid: key for key, pod in cluster.pods.items()}
    for gang in cluster.view.gangs():
        members = gang.pending
        is_alike = len({request.shape for request in members}) == 1
        if _is_complete(gang) and is_alike and all(_waits(cluster, cluster.pods[keys[each.uid]]) for each in members):
            name = f"gang {gang.namespace}/{gang.group.name}"
            yield _demand(cluster, name, [keys[each.uid] for each in members[: gang.required]], members[0])


def _is_complete(gang: GangView) -> bool:
    others = gang.bound + gang.gated
    return gang.group.is_sized and not others and len(gang.pending) >= gang.required > 0


def _waits(cluster: OfflineCluster, pod: Pod) -> bool:
    return (
        not pod.spec.node_name
        and not pod.spec.scheduling_gates
        and not pod.metadata.deletion_timestamp
        and not pod.status.nominated_node_name
        and pod.status.phase in ("", "Pending")
        and pod.spec.scheduler_name == cluster.settings.scheduler_name
    )


def _demand(cluster: OfflineCluster, name: str, keys: list[str], request: PodRequest) -> Demand:
    """It waits since its last pod was refused first."""
    pods = [cluster.pods[key] for key in keys]
    priority = min(pod.spec.priority or 0 for pod in pods)
    since = max(_refused_at(cluster.documents[key]) or cluster.state.taken for key in keys)
    return Demand(name, tuple(keys), priority, since, request)


def _refused_at(document: Json) -> float | None:
    """When kube-scheduler reported first that the pod has no node; None if it has not."""
    for condition in (document.get("status") or {}).get("conditions") or ():
        if condition.get("type") == SCHEDULED and condition.get("status") == "False":
            try:
                return datetime.fromisoformat(str(condition.get("lastTransitionTime"))).timestamp()
            except ValueError:
                return None
    return None
