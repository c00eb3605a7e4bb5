"""Kubernetes objects, reduced to the fields that Tessera reads.

Partial structs: unknown fields are skipped without being built, which keeps a list of 80,000 pods small and fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from tessera.wire.errors import WireError

TEMPLATE_HASH = "pod-template-hash"
"""label with which a Deployment tells its ReplicaSets apart, and ends their names"""
REPLICA_SET, DEPLOYMENT = "ReplicaSet", "Deployment"

SELECTOR_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
"""of label selectors"""

QuantityText = str | int | float
"""a quantity as JSON has it; apiservers write strings, people also write numbers"""


class Partial(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """Base of the partial structs: immutable, untracked by the garbage collector, camelCase on the wire."""


class OwnerReference(Partial, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Workload(NamedTuple):
    """The workload that a pod belongs to; kind and name are empty if no controller made the pod."""

    namespace: str
    kind: str = ""
    name: str = ""


class Metadata(Partial, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None


class ResourceRequirements(Partial, frozen=True):
    limits: dict[str, QuantityText] | None = None
    requests: dict[str, QuantityText] | None = None


class FieldRef(Partial, frozen=True):
    field_path: str = ""


class EnvSource(Partial, frozen=True):
    """Where a variable's value comes from; sources other than fields are not distinguished."""

    field_ref: FieldRef | None = None


class EnvVar(Partial, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None

    @property
    def field_path(self) -> str | None:
        """The pod field that the value comes from, if it comes from one."""
        source = self.value_from
        if source is None or source.field_ref is None or self.value:
            return None
        return source.field_ref.field_path


class SecurityContext(Partial, frozen=True):
    privileged: bool | None = None


class Container(Partial, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    env: list[EnvVar] | None = None
    restart_policy: str | None = None
    security_context: SecurityContext | None = None


class SchedulingGate(Partial, frozen=True):
    name: str = ""


class SchedulingGroup(Partial, frozen=True):
    """The pod's group, where the server has GangScheduling."""

    pod_group_name: str = ""


class PodClaim(Partial, frozen=True):
    """A ResourceClaim of a pod: one that exists, or one that is made of a template and named in the pod's status."""

    name: str = ""
    """the pod's own name for it"""
    resource_claim_name: str | None = None
    """in the status: None if the pod needs none"""
    resource_claim_template_name: str | None = None


class PodSpec(Partial, frozen=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    runtime_class_name: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None
    resource_claims: tuple[PodClaim, ...] | None = None


class Terminated(Partial, frozen=True):
    exit_code: int = 0


class ContainerState(Partial, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(Partial, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(Partial, frozen=True):
    phase: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    """where a preemption makes room for the pod"""
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: tuple[PodClaim, ...] | None = None
    """the claims that were made of templates"""


class Pod(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def workload(self) -> Workload:
        """The Deployment instead of its ReplicaSet, which every rollout replaces."""
        metadata = self.metadata
        for reference in metadata.owner_references or ():
            if reference.controller:
                template = f"-{(metadata.labels or {}).get(TEMPLATE_HASH) or ''}"
                if reference.kind == REPLICA_SET and template != "-" and reference.name.endswith(template):
                    return Workload(metadata.namespace, DEPLOYMENT, reference.name.removesuffix(template))
                return Workload(metadata.namespace, reference.kind, reference.name)
        return Workload(metadata.namespace)

    @property
    def init_containers(self) -> list[Container]:
        return self.spec.init_containers or []

    @property
    def app_containers(self) -> list[Container]:
        return self.spec.containers or []


class NodeStatus(Partial, frozen=True):
    capacity: dict[str, QuantityText] | None = None
    allocatable: dict[str, QuantityText] | None = None


class Node(Partial, frozen=True):
    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def capacity(self) -> dict[str, QuantityText]:
        return self.status.capacity or {}

    @property
    def allocatable(self) -> dict[str, QuantityText]:
        return self.status.allocatable or {}


class ResourceQuotaSpec(Partial, frozen=True):
    hard: dict[str, QuantityText] | None = None


class ResourceQuota(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class LabelRequirement(Partial, frozen=True):
    """One requirement on labels, as label selectors and node affinity have it."""

    key: str = ""
    operator: str = ""
    """In, NotIn, Exists, DoesNotExist, Gt or Lt"""
    values: frozenset[str] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        value, values = labels.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compare(value)
        return False

    def _compare(self, value: str | None) -> bool:
        """Numbers only; what is no number matches nothing."""
        try:
            label, bound = int(value or ""), int(next(iter(self.values or ()), ""))
        except ValueError:
            return False
        return label > bound if self.operator == "Gt" else label < bound


class LabelSelector(Partial, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelRequirement] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """An empty selector matches everything. So does an operator that is not known, since a budget must not be
        missed."""
        is_labelled = all(labels.get(key) == value for key, value in (self.match_labels or {}).items())
        return is_labelled and all(
            each.matches(labels) or each.operator not in SELECTOR_OPERATORS for each in self.match_expressions or ()
        )


class DisruptionBudgetSpec(Partial, frozen=True):
    selector: LabelSelector | None = None
    """None matches nothing"""


class DisruptionBudgetStatus(Partial, frozen=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


T = TypeVar("T")


def decode_object(data: bytes | str, kind: type[T]) -> T:
    """One object of `kind` from JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a valid {kind.__name__}: {error}") from error
