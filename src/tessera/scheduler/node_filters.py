"""The filters of kube-scheduler that need one node and one pod only: NodeUnschedulable, TaintToleration, NodeAffinity.

They decide which nodes Tessera is asked about. Reasons are kube-scheduler's own texts. Resources, ports, volumes,
spreading and affinity between pods are left out: they depend on the other pods of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tessera.wire.objects import LabelRequirement

Json = dict[str, Any]

UNSCHEDULABLE = "node(s) were unschedulable"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"
TAINTS = "node(s) had untolerated taint(s)"

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_KEEPS_OUT = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What a pod's spec says about the nodes that it may use."""

    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[Json, ...] | None = None
    """alternatives, one of which must hold; None if the pod has no required node affinity"""
    tolerations: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """What of a node these filters look at."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    is_cordoned: bool

    def refusal(self, pod: PodConstraints) -> str | None:
        """Why the pod may not use this node; the first filter that refuses it decides, as in kube-scheduler."""
        if self.is_cordoned and not _is_tolerated(_CORDON, pod.tolerations):
            return UNSCHEDULABLE
        if any(not _is_tolerated(taint, pod.tolerations) for taint in self.taints):
            return TAINTS
        return None if self._is_selected(pod) else SELECTOR

    def _is_selected(self, pod: PodConstraints) -> bool:
        if any(self.labels.get(key) != value for key, value in pod.selector.items()):
            return False
        return pod.affinity is None or any(self._matches(term) for term in pod.affinity)

    def _matches(self, term: Json) -> bool:
        expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        # An empty alternative matches no node.
        return bool(expressions or fields) and (
            all(_requirement(each).matches(self.labels) for each in expressions)
            and all(_requirement(each).matches({"metadata.name": self.name}) for each in fields)
        )


class NodeSpec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None
    unschedulable: bool | None = None


class NodeMetadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None


class FilteredNode(msgspec.Struct):
    """A node, reduced to what these filters look at."""

    metadata: NodeMetadata
    spec: NodeSpec | None = None

    @property
    def traits(self) -> NodeTraits:
        spec = self.spec or NodeSpec()
        return NodeTraits(
            name=self.metadata.name,
            labels=self.metadata.labels or {},
            taints=tuple(taint for taint in spec.taints or () if taint.get("effect") in _KEEPS_OUT),
            is_cordoned=bool(spec.unschedulable),
        )


def pod_constraints(pod: Json) -> PodConstraints:
    spec = pod["spec"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return PodConstraints(
        selector=spec.get("nodeSelector") or {},
        affinity=tuple(required.get("nodeSelectorTerms") or ()) if required else None,
        tolerations=tuple(spec.get("tolerations") or ()),
    )


def _is_tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def _requirement(expression: Json) -> LabelRequirement:
    values = frozenset(expression.get("values") or ("",))
    return LabelRequirement(expression.get("key", ""), expression.get("operator", ""), values)
