"""Which nodes a pod may use by kube-scheduler's own rules, simplified: its node filters, cpu, memory and pods.

Reasons are kube-scheduler's texts. Resources that the extender manages are left to it; ports, volumes, spreading and
affinity between pods are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tessera.inspect.offline_cluster import node_traits
from tessera.scheduler.node_filters import NodeTraits, PodConstraints, pod_constraints
from tessera.wire.quantity import NotAQuantity, read
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import is_sidecar

CPU, MEMORY, PODS = "cpu", "memory", "pods"
MILLI = 1000
"""parts of a cpu that requests are counted in"""

TOO_MANY_PODS = "Too many pods"

Amounts = dict[str, int]
"""by resource: cpu in thousandths, everything else in units"""


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What a pod asks of a node."""

    amounts: Amounts
    constraints: PodConstraints = field(default_factory=PodConstraints)


@dataclass(slots=True)
class NodeCapacity:
    """A node and what its pods use of it."""

    traits: NodeTraits
    allocatable: Amounts
    used: Counter[str] = field(default_factory=Counter)

    def misfits(self, needs: PodNeeds) -> list[str]:
        """Why the pod may not use this node."""
        refusal = self.traits.refusal(needs.constraints)
        if refusal is not None:
            return [refusal]
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

    def least_allocated_score(self, needs: PodNeeds) -> float:
        """How much of cpu and memory would be left with the pod, from 0 to 1."""
        shares = [
            max(0, self.free(name) - needs.amounts.get(name, 0)) / self.allocatable[name]
            for name in (CPU, MEMORY)
            if self.allocatable.get(name)
        ]
        return sum(shares) / len(shares) if shares else 0.0


def node_capacity(node: Json) -> NodeCapacity:
    status = node.get("status", {})
    return NodeCapacity(node_traits(node), _amounts(status.get("allocatable") or status.get("capacity") or {}))


def pod_needs(pod: Json, *, ignored: frozenset[str] = frozenset()) -> PodNeeds:
    """`ignored` resources are counted by the extender."""
    amounts = {name: amount for name, amount in _effective(pod["spec"]).items() if amount and name not in ignored}
    return PodNeeds(amounts, pod_constraints(pod))


def asks_for(pod: Json, resources: frozenset[str]) -> bool:
    """Whether any container requests or limits one of these resources; then the extender is asked."""
    spec = pod["spec"]
    return any(
        not resources.isdisjoint(container.get("resources", {}).get(part) or ())
        for group in ("containers", "initContainers")
        for container in spec.get(group) or ()
        for part in ("requests", "limits")
    )


def node_signature(node: Json) -> object:
    """What kube-scheduler's filters look at. A change of anything else (heartbeats) wakes no pod."""
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
