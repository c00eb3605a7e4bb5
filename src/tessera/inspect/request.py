"""A pod's request in plain values, including what defaults added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.core.requests import (
    ASKED_FIELDS,
    Constraint,
    PodRequest,
    Request,
    Role,
    Weights,
    claim_and_request,
    container_title,
)
from tessera.inspect.slices import holder_title
from tessera.vendors.base import Vendor
from tessera.wire import keys
from tessera.wire.cel import AllOf

SAID = frozenset(
    {"containers", "constraints", "numa_bind", "node_policy", "device_policy", "weights", "matches", "limits"}
    | {"host", "forecast"}
)
"""fields of a `PodRequest` with texts of their own; the last two belong to the policy and have none"""


@dataclass(frozen=True, slots=True)
class ContainerSummary:
    """What one container requests of one vendor; amounts are per card."""

    container: str
    role: str
    vendor: str
    resource: str
    cards: int
    memory_mib: int
    memory_percent: int
    cores: int
    claim: str = ""
    """the ResourceClaim that asks for it, then `container` is the claim's request"""

    @property
    def amounts_text(self) -> str:
        memory = f"{self.memory_mib} MiB" if self.memory_mib else f"{self.memory_percent} % of the memory"
        parts = [memory] if self.memory_mib or self.memory_percent else []
        parts += [f"{self.cores} % of the cores"] if self.cores else []
        cards = f"1 {self.vendor} card" if self.cards == 1 else f"{self.cards} {self.vendor} cards"
        each = " with " if self.cards == 1 else ", each with "
        return cards + (f"{each}{' and '.join(parts)}" if parts else "")

    @property
    def text(self) -> str:
        kind = "" if self.role in (Role.APP.value, Role.CLAIM.value) else f" ({self.role} container)"
        title = holder_title("" if self.claim else self.container, self.claim, self.container)
        return f"{title}{kind}: {self.amounts_text}"


@dataclass(frozen=True, slots=True)
class PlacementWish:
    """One setting that narrows or orders the choice of cards."""

    what: str
    value: str
    default: bool = False
    """the pod does not set it; the scheduler's default applies"""

    @property
    def text(self) -> str:
        return f"{self.what}: {self.value}{' (default)' if self.default else ''}"


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A pod's request as placement sees it."""

    asked: tuple[ContainerSummary, ...]
    wishes: tuple[PlacementWish, ...]


def summarize_request(
    request: PodRequest, annotations: Mapping[str, str], vendors: Mapping[str, Vendor]
) -> RequestSummary:
    asked = tuple(
        _asked(container.name, container.role, one, vendors)
        for container in request.containers
        for one in container.requests
    )
    return RequestSummary(asked, tuple(_wishes(request, annotations)))


def _asked(container: str, role: Role, request: Request, vendors: Mapping[str, Vendor]) -> ContainerSummary:
    resource = vendors[request.vendor].names.count
    claim, name = claim_and_request(container)
    return ContainerSummary(
        name or container,
        role.value,
        request.vendor,
        "" if claim else resource,
        request.count,
        request.memory,
        request.percent,
        request.cores,
        claim,
    )


def _wishes(request: PodRequest, annotations: Mapping[str, str]) -> Iterator[PlacementWish]:
    yield PlacementWish("node policy", request.node_policy, keys.NODE_POLICY not in annotations)
    yield PlacementWish("card policy", request.device_policy, keys.DEVICE_POLICY not in annotations)
    if request.numa_bind:
        yield PlacementWish("NUMA", "all cards of a container on one NUMA node")
    if request.weights != Weights():
        weights = request.weights
        yield PlacementWish("weights", f"slot={weights.slot},core={weights.core},memory={weights.memory}")
    for vendor, constraint in request.constraints:
        yield from _constraint(vendor, constraint)
    for container in request.containers:
        for one in container.requests:
            if one.accepts is not None and isinstance(one.accepts.filter, AllOf):
                yield PlacementWish(
                    f"{container_title(container.name)} selects", " and ".join(one.accepts.filter.texts)
                )
    for match in request.matches:
        kind = "different values" if match.distinct else "one value"
        yield PlacementWish("cards of claims", f"{kind} of {match.attribute}")
    for name, limit in request.limits:
        yield PlacementWish(name, str(limit))
    for field in ASKED_FIELDS:
        if field.name not in SAID and (value := getattr(request, field.name)) != field.default:
            yield PlacementWish(field.name.replace("_", " "), str(value))


def _constraint(vendor: str, constraint: Constraint) -> Iterator[PlacementWish]:
    listed = (
        ("models", constraint.use_models),
        ("not models", constraint.avoid_models),
        ("only cards", constraint.use_uuids),
        ("not cards", constraint.avoid_uuids),
    )
    for what, values in listed:
        if values:
            yield PlacementWish(f"{vendor} {what}", ", ".join(values))
    if constraint.mode is not None:
        yield PlacementWish(f"{vendor} modes", constraint.mode or "none of those available")
    for name, value in constraint.extra:
        yield PlacementWish(name, value)
