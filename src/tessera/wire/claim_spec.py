"""What is asked for in dynamic resource allocation (resource.k8s.io/v1): specs of claims, templates and device classes.

Partial structs: only the fields that Tessera reads or hands on. What was allocated is in `resource_api`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from tessera.wire.objects import Metadata, Partial, QuantityText

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
