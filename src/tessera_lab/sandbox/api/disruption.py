"""Pod disruption budgets: their status, and whether they allow an eviction.

The status is brought up to date with every change of a pod or a budget, so it is never behind. The number of pods that
a budget expects is the number that its selector matches; kube-controller-manager asks their controllers instead.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tessera.wire.objects import LabelSelector
from tessera_lab.sandbox.api.errors import StatusError, internal
from tessera_lab.sandbox.api.kinds import POD_DISRUPTION_BUDGETS, PODS, Json
from tessera_lab.sandbox.api.store import Store, StoreChange, Stored

ENDED = ("Succeeded", "Failed")


class DisruptionBudgets:
    """Follows the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listen(self._follow)

    def check_eviction(self, pod: Stored) -> None:
        """Raises a StatusError if a budget does not allow that the pod is evicted now."""
        content = pod.object
        if content.get("status", {}).get("phase") in (*ENDED, "Pending") or _is_terminating(content):
            return
        budgets = [each for each in self._store.list(POD_DISRUPTION_BUDGETS, pod.namespace) if _selects(each, content)]
        if len(budgets) > 1:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise internal(text)
        for budget in budgets:
            status = budget.object["status"]
            policy = budget.object.get("spec", {}).get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
            has_enough = status["currentHealthy"] >= status["desiredHealthy"] > 0
            if not _is_ready(content) and (policy == "AlwaysAllow" or has_enough):
                return
            if status["disruptionsAllowed"] < 1:
                raise _violation(budget)

    def _follow(self, change: StoreChange) -> None:
        if change.new.kind is PODS:
            for budget in self._store.list(POD_DISRUPTION_BUDGETS, change.new.namespace):
                self._refresh(budget)
        elif change.new.kind is POD_DISRUPTION_BUDGETS and not change.removed:
            self._refresh(change.new)

    def _refresh(self, budget: Stored) -> None:
        pods = [pod.object for pod in self._store.list(PODS, budget.namespace) if _selects(budget, pod.object)]
        expected = [pod for pod in pods if pod.get("status", {}).get("phase") not in ENDED]
        healthy = sum(_is_ready(pod) and not _is_terminating(pod) for pod in expected)
        desired = _desired_healthy(budget.object.get("spec", {}), len(expected))
        status = {
            "observedGeneration": budget.object["metadata"]["generation"],
            "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": len(expected),
        }
        if budget.object.get("status") != status:
            self._store.put(POD_DISRUPTION_BUDGETS, budget.copy() | {"status": status})


def _desired_healthy(spec: Json, expected: int) -> int:
    if "maxUnavailable" in spec:
        return max(0, expected - _scaled(spec["maxUnavailable"], expected))
    return _scaled(spec.get("minAvailable", 0), expected)


def _scaled(amount: Any, whole: int) -> int:
    """A number, or a percentage, which is rounded up."""
    if isinstance(amount, str):
        return math.ceil(int(amount.removesuffix("%")) * whole / 100)
    return int(amount)


def _selects(budget: Stored, pod: Json) -> bool:
    selector = budget.object.get("spec", {}).get("selector")
    if selector is None:
        return False
    labels = pod["metadata"].get("labels") or {}
    return msgspec.convert(selector, LabelSelector).matches(labels)


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _is_terminating(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _violation(budget: Stored) -> StatusError:
    status = budget.object["status"]
    cause = {
        "reason": "DisruptionBudget",
        "message": f"The disruption budget {budget.name} needs {status['desiredHealthy']} healthy pods and has "
        f"{status['currentHealthy']} currently",
    }
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    return StatusError(429, "TooManyRequests", text, details={"causes": [cause]})
