"""Objects of dynamic resource allocation (resource.k8s.io/v1), as far as Tessera writes or reads them: what is asked
for in claims, templates and device classes, what is offered, and what is allocated.

A field that is not here is skipped when read and absent when written. Quantities are texts in the apiserver's own
spelling (`quantity.binary_text`), so that an object that was written compares equal to the one that is read.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from tessera.wire.keys import DRA_DRIVER
from tessera.wire.objects import Metadata, Partial, PodClaim, QuantityText

EXACT_COUNT, ALL = "ExactCount", "All"
"""allocation modes; an empty one means the first"""
EXISTS, EQUAL = "Exists", "Equal"
"""operators of tolerations; an empty one means the second"""


class CelSelector(Partial, frozen=True):
    expression: str = ""


class DeviceSelector(Partial, frozen=True):
    cel: CelSelector | None = None


class DeviceToleration(Partial, frozen=True, omit_defaults=True):
    key: str = ""
    """empty with the operator Exists: all taints"""
    operator: str = ""
    value: str = ""
    effect: str = ""
    """empty: all effects"""
    toleration_seconds: int | None = None


class CapacityRequirements(Partial, frozen=True):
    requests: dict[str, QuantityText] | None = None


class ExactRequest(Partial, frozen=True):
    """Devices of one class; one alternative of a prioritised list has a name too."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] | None = None
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(Partial, frozen=True):
    """Either `exactly` or `first_available`."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] | None = None


class DeviceConstraint(Partial, frozen=True):
    """All devices of the named requests (no names: of all) have one value of an attribute, or different ones."""

    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceConfiguration(Partial, frozen=True, omit_defaults=True):
    """Settings for a driver. `source` is written in allocations only; the API stores `opaque` as it is."""

    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: dict[str, Any] | None = None


class DeviceClaim(Partial, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] | None = None
    config: tuple[DeviceConfiguration, ...] | None = None


class ClaimSpec(Partial, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceClassSpec(Partial, frozen=True):
    selectors: tuple[DeviceSelector, ...] | None = None
    config: tuple[DeviceConfiguration, ...] | None = None


class DeviceClass(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class TemplateSpec(Partial, frozen=True):
    metadata: Metadata = Metadata()
    """labels and annotations of the claims that are made"""
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: TemplateSpec = TemplateSpec()


class NodeRequirement(msgspec.Struct, frozen=True):
    """A requirement on a node's labels or fields, as allocations write it."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    match_expressions: tuple[NodeRequirement, ...] | None = None
    match_fields: tuple[NodeRequirement, ...] | None = None


class NodeSelector(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = field(default=())


def on_node(name: str) -> NodeSelector:
    """Selects one node by its name, as kube-scheduler writes it for devices of a node."""
    requirement = NodeRequirement("metadata.name", "In", (name,))
    return NodeSelector((NodeSelectorTerm(match_fields=(requirement,)),))


API_VERSION = "resource.k8s.io/v1"
DRIVER = DRA_DRIVER

MEMORY, CORES, SHARES = "memory", "cores", "shares"
"""capacities of a card: bytes, per cent, and how many allocations may share it"""

UNHEALTHY, CORDONED, HELD = f"{DRIVER}/unhealthy", f"{DRIVER}/cordoned", f"{DRIVER}/held"
"""taints: a card that takes no work, one that an operator closed, and one that pods without claims still hold"""
MANAGED = f"{DRIVER}/managed"
"""taint of every device that Tessera's scheduler allocates, so that kube-scheduler does not"""
MANAGED_BY_TESSERA = "tessera"
"""value of that taint"""
NO_SCHEDULE = "NoSchedule"

MAX_DEVICES = 64
"""in one ResourceSlice whose devices have taints or consume counters; 128 otherwise"""
MAX_COUNTER_SETS = 8
"""in one ResourceSlice"""


class _Written(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, repr_omit_defaults=True
): ...


class Attribute(_Written, frozen=True):
    """A value of exactly one type."""

    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class RequestRange(_Written, frozen=True):
    min: QuantityText | None = None
    max: QuantityText | None = None
    step: QuantityText | None = None


class RequestPolicy(_Written, frozen=True):
    """How much of a capacity a request may take; `default` is for requests that do not say."""

    default: QuantityText | None = None
    valid_values: tuple[QuantityText, ...] | None = None
    valid_range: RequestRange | None = None


class Capacity(_Written, frozen=True):
    value: QuantityText
    request_policy: RequestPolicy | None = None


class Counter(_Written, frozen=True):
    value: QuantityText


class CounterSet(_Written, frozen=True):
    """What several devices take their parts of."""

    name: str
    counters: dict[str, Counter]


class CounterConsumption(_Written, frozen=True):
    counter_set: str
    counters: dict[str, Counter]


class Taint(_Written, frozen=True):
    key: str
    effect: str
    value: str = ""


class SliceDevice(_Written, frozen=True):
    """One device of a pool."""

    name: str
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, Capacity] | None = None
    consumes_counters: tuple[CounterConsumption, ...] | None = None
    taints: tuple[Taint, ...] | None = None
    allow_multiple_allocations: bool | None = None


class Pool(_Written, frozen=True):
    name: str
    generation: int
    resource_slice_count: int


class SliceSpec(_Written, frozen=True):
    """Either `devices` or `shared_counters`."""

    driver: str
    pool: Pool
    node_name: str | None = None
    devices: tuple[SliceDevice, ...] | None = None
    shared_counters: tuple[CounterSet, ...] | None = None


class ResourceSlice(Partial, frozen=True):
    spec: SliceSpec
    metadata: Metadata = Metadata()


class AllocatedDevice(Partial, frozen=True, omit_defaults=True):
    """One device that was given to a request of a claim."""

    request: str = ""
    """`NAME`, or `NAME/ALTERNATIVE` where the request lists alternatives"""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, QuantityText] | None = None
    tolerations: tuple[DeviceToleration, ...] | None = None

    @property
    def request_name(self) -> str:
        return self.request.partition("/")[0]


class AllocatedDevices(Partial, frozen=True, omit_defaults=True):
    results: tuple[AllocatedDevice, ...] | None = None
    config: tuple[DeviceConfiguration, ...] | None = None


class Allocation(Partial, frozen=True, omit_defaults=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class Consumer(Partial, frozen=True):
    """What a claim is reserved for."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Partial, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] | None = None


class ResourceClaim(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    def devices_of(self, driver: str) -> tuple[AllocatedDevice, ...]:
        """What is allocated of one driver's devices."""
        allocation = self.status.allocation
        results = () if allocation is None else allocation.devices.results or ()
        return tuple(each for each in results if each.driver == driver)


class ClaimReference(Partial, frozen=True):
    """A claim that a container uses, by the pod's own name for it; an empty `request` means all of its requests."""

    name: str = ""
    request: str = ""

    def names(self, request: str) -> bool:
        return self.request in ("", request)


class ClaimResources(Partial, frozen=True):
    claims: tuple[ClaimReference, ...] | None = None


class ClaimingContainer(Partial, frozen=True):
    name: str = ""
    resources: ClaimResources = ClaimResources()


class ClaimingPodSpec(Partial, frozen=True):
    containers: tuple[ClaimingContainer, ...] = ()
    init_containers: tuple[ClaimingContainer, ...] | None = None
    resource_claims: tuple[PodClaim, ...] | None = None


class ClaimingPodStatus(Partial, frozen=True):
    resource_claim_statuses: tuple[PodClaim, ...] | None = None


class ClaimingPod(Partial, frozen=True):
    """A pod as far as its claims are concerned."""

    metadata: Metadata = Metadata()
    spec: ClaimingPodSpec = ClaimingPodSpec()
    status: ClaimingPodStatus = ClaimingPodStatus()

    @property
    def claim_names(self) -> dict[str, str]:
        """The names of its ResourceClaims, by its own names for them."""
        every = (*(self.spec.resource_claims or ()), *(self.status.resource_claim_statuses or ()))
        return {each.name: each.resource_claim_name for each in every if each.resource_claim_name}

    @property
    def all_containers(self) -> tuple[ClaimingContainer, ...]:
        return (*(self.spec.init_containers or ()), *self.spec.containers)
