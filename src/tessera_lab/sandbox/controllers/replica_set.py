"""ReplicaSets: as many pods of one template as asked for. Pods that fit the selector are not adopted."""

from __future__ import annotations

from collections.abc import Sequence

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.controllers.plan import Plan, active_pods, counts, is_ready, new_pod
from tessera_lab.sandbox.objects import node_of, phase_of


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
