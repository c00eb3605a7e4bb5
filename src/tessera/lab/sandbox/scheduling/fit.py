"""Which nodes a pod may use at all, by kube-scheduler's own rules, simply: selectors, taints, cpu, memory, pods.

Reasons are kube-scheduler's texts. What the extender manages is left to it; ports, volumes, spreading and affinity
between pods are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tessera.lab.sandbox.api.kinds import Json
from tessera.lab.sandbox.api.selectors import LabelTerm
from tessera.lab.sandbox.objects import is_sidecar, name_of
from tessera.wire.quantity import NotAQuantity, read

CPU, MEMORY, PODS = "cpu", "memory", "pods"
MILLI = 1000
"""parts of a cpu that requests are counted in"""

UNSCHEDULABLE = "node(s) were unschedulable"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"
TAINTS = "node(s) had untolerated taint(s)"
TOO_MANY_PODS = "Too many pods"

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_KEEPS_OUT = ("NoSchedule", "NoExecute")
_OPERATORS = {"Gt": ">", "Lt": "<"}

Amounts = dict[str, int]
"""by resource: cpu in thousandths, everything else in units"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a pod wants of a node."""

    amounts: Amounts
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[Json, ...] | None = None
    """alternatives, one of which must hold; None where the pod has no such wish"""
    tolerations: tuple[Json, ...] = ()


@dataclass(slots=True)
class Room:
    """A node with what is taken of it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    cordoned: bool
    allocatable: Amounts
    used: Counter[str] = field(default_factory=Counter)

    def misfits(self, needs: Needs) -> list[str]:
        """Why the pod may not come here; the first rule that refuses it speaks, as in kube-scheduler."""
        if self.cordoned and not _tolerated(_CORDON, needs.tolerations):
            return [UNSCHEDULABLE]
        if any(not _tolerated(taint, needs.tolerations) for taint in self.taints):
            return [TAINTS]
        if not self._is_selected(needs):
            return [SELECTOR]
        missing = [TOO_MANY_PODS] if self.used[PODS] >= self.allocatable.get(PODS, 0) else []
        return missing + [f"Insufficient {name}" for name, amount in needs.amounts.items() if amount > self.free(name)]

    def free(self, resource: str) -> int:
        return self.allocatable.get(resource, 0) - self.used[resource]

    def take(self, amounts: Amounts) -> None:
        self.used.update(amounts)
        self.used[PODS] += 1

    def give_back(self, amounts: Amounts) -> None:
        self.used.subtract(amounts)
        self.used[PODS] -= 1

    def emptiness(self, needs: Needs) -> float:
        """How much of cpu and memory would be left, from 0 to 1: the rule of the least allocated node."""
        shares = [
            max(0, self.free(name) - needs.amounts.get(name, 0)) / self.allocatable[name]
            for name in (CPU, MEMORY)
            if self.allocatable.get(name)
        ]
        return sum(shares) / len(shares) if shares else 0.0

    def _is_selected(self, needs: Needs) -> bool:
        if any(self.labels.get(key) != value for key, value in needs.selector.items()):
            return False
        return needs.affinity is None or any(self._holds(term) for term in needs.affinity)

    def _holds(self, term: Json) -> bool:
        expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        # An alternative that asks for nothing holds nowhere.
        return bool(expressions or fields) and (
            all(_term(each).matches(self.labels) for each in expressions)
            and all(_term(each).matches({"metadata.name": self.name}) for each in fields)
        )


def room_of(node: Json) -> Room:
    spec, status = node.get("spec", {}), node.get("status", {})
    return Room(
        name=name_of(node),
        labels=node["metadata"].get("labels") or {},
        taints=tuple(taint for taint in spec.get("taints") or () if taint.get("effect") in _KEEPS_OUT),
        cordoned=bool(spec.get("unschedulable")),
        allocatable=_amounts(status.get("allocatable") or status.get("capacity") or {}),
    )


def needs_of(pod: Json, *, ignored: frozenset[str] = frozenset()) -> Needs:
    """`ignored` resources are somebody else's to count."""
    spec = pod["spec"]
    required = _at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return Needs(
        amounts={name: amount for name, amount in _effective(spec).items() if amount and name not in ignored},
        selector=spec.get("nodeSelector") or {},
        affinity=tuple(required.get("nodeSelectorTerms") or ()) if required else None,
        tolerations=tuple(spec.get("tolerations") or ()),
    )


def asks_for(pod: Json, resources: frozenset[str]) -> bool:
    """Whether any container names one of these, as requests or as limits: then the extender is asked."""
    spec = pod["spec"]
    return any(
        not resources.isdisjoint(container.get("resources", {}).get(part) or ())
        for group in ("containers", "initContainers")
        for container in spec.get(group) or ()
        for part in ("requests", "limits")
    )


def signature_of(node: Json) -> object:
    """What of a node kube-scheduler's filters look at: a change of anything else (heartbeats) wakes nobody."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions", ())}
    return (
        metadata.get("labels") or {},
        metadata.get("annotations") or {},
        spec.get("taints") or [],
        bool(spec.get("unschedulable")),
        status.get("allocatable") or {},
        conditions,
    )


def _effective(spec: Json) -> Counter[str]:
    """The larger of what runs together and of each init container beside the sidecars before it."""
    sidecars: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        amounts = _requests(container)
        if is_sidecar(container):
            sidecars.update(amounts)
            peak |= sidecars
        else:
            peak |= sidecars + amounts
    together = Counter(sidecars)
    for container in spec.get("containers") or ():
        together.update(_requests(container))
    return peak | together


def _requests(container: Json) -> Counter[str]:
    return Counter(_amounts(container.get("resources", {}).get("requests") or {}))


def _amounts(texts: Mapping[str, Any]) -> Amounts:
    return {name: _amount(name, text) for name, text in texts.items()}


def _amount(name: str, text: str | int | float) -> int:
    found = read(text)
    if isinstance(found, NotAQuantity):
        return 0
    value = Fraction(found.value) * (MILLI if name == CPU else 1)
    return -(-value.numerator // value.denominator)


def _tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def _term(expression: Json) -> LabelTerm:
    operator: str = expression.get("operator", "")
    values = frozenset(expression.get("values") or ("",))
    return LabelTerm(expression.get("key", ""), _OPERATORS.get(operator, operator), values)


def _at(content: Any, *steps: str) -> Any:
    for step in steps:
        content = content.get(step) if isinstance(content, dict) else None
    return content
