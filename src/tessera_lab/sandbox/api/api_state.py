"""The state that every verb needs: the store, its watches, admission, budgets, and a source of uids and names.

The status of a budget is brought up to date with every change of a pod or a budget, so it is never behind. The number
of pods that it expects is the number that its selector matches; kube-controller-manager asks their controllers instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tessera.wire.objects import LabelSelector
from tessera_lab.sandbox.api.admission import Admission, Admitted, ApiUser, Attributes, WebhookClient
from tessera_lab.sandbox.api.defaults import IdentitySource
from tessera_lab.sandbox.api.errors import StatusError, forbidden, internal, not_found
from tessera_lab.sandbox.api.kinds import NAMESPACES, POD_DISRUPTION_BUDGETS, PODS, SERVICE_ACCOUNTS, Json, ResourceKind
from tessera_lab.sandbox.api.lists_and_watches import WatchHub
from tessera_lab.sandbox.api.store import Store, StoreChange, Stored
from tessera_lab.sandbox.api.subresources import ReadLog, no_logs

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


FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(slots=True)
class RequestContext:
    """One request: its user, whether it is a dry run, and the warnings of its response."""

    user: ApiUser = field(default_factory=ApiUser)
    dry_run: bool = False
    options: Json = field(default_factory=dict)
    """of the verb, as webhooks see them"""
    warnings: list[str] = field(default_factory=list)


class ApiState:
    """Gives namespaces their service account, and removes terminating namespaces once they are empty."""

    def __init__(self, *, now: Callable[[], float], seed: int | None = None) -> None:
        self.store = Store()
        self.hub = WatchHub(self.store)
        self.identities = IdentitySource(now=now, seed=seed)
        self.caller = WebhookClient()
        self.now = now
        self.budgets = DisruptionBudgets(self.store)
        self.read_log: ReadLog = no_logs
        """set by whatever runs the containers"""
        self.services: dict[str, str] = {}
        """URLs behind services/proxy, by `namespace/name:port`; set by whatever serves them"""
        self._admission = Admission(self.store, self.caller)
        self.store.listen(self._follow_namespaces)
        for name in FIRST_NAMESPACES:
            self.store.put(NAMESPACES, self._new_namespace(name))

    async def admit(self, attributes: Attributes, call: RequestContext) -> Json | None:
        """The object after admission. Raises if it is refused."""
        admitted: Admitted = await self._admission.admit(attributes, uid=self.identities.uid())
        call.warnings += admitted.warnings
        return admitted.content

    def check_namespace(self, kind: ResourceKind, namespace: str, name: str) -> None:
        """Refuses new objects if their namespace is missing or terminating."""
        if not kind.namespaced:
            return
        held = self.store.get(NAMESPACES, "", namespace)
        if held is None:
            raise not_found(NAMESPACES, namespace)
        if "deletionTimestamp" in held.object["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(kind, name, why)

    def _follow_namespaces(self, change: StoreChange) -> None:
        changed = change.new
        if changed.kind is NAMESPACES and change.old is None:
            self.store.put(SERVICE_ACCOUNTS, self._new_service_account(changed.name))
        elif changed.kind.namespaced and change.removed:
            space = self.store.get(NAMESPACES, "", changed.namespace)
            terminating = space is not None and "deletionTimestamp" in space.object["metadata"]
            if space is not None and terminating and self.store.namespace_is_empty(changed.namespace):
                self.store.remove(space)

    def _new_namespace(self, name: str) -> Json:
        metadata = self._identity(name) | {"labels": {"kubernetes.io/metadata.name": name}}
        return {"metadata": metadata, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}

    def _new_service_account(self, namespace: str) -> Json:
        return {"metadata": self._identity("default") | {"namespace": namespace}}

    def _identity(self, name: str) -> Json:
        return {
            "name": name,
            "uid": self.identities.uid(),
            "creationTimestamp": self.identities.timestamp(),
        }
