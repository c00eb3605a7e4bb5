"""A pod's request in plain values, with what the defaults added and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.core.requests import Constraint, PodRequest, Request, Role, Weights
from tessera.vendors.base import Vendor
from tessera.wire import keys


@dataclass(frozen=True, slots=True)
class Asked:
    """What one container asks of one vendor; amounts are per card."""

    container: str
    role: str
    vendor: str
    resource: str
    cards: int
    memory_mib: int
    memory_percent: int
    cores: int

    @property
    def text(self) -> str:
        memory = f"{self.memory_mib} MiB" if self.memory_mib else f"{self.memory_percent} % of the memory"
        parts = [memory] if self.memory_mib or self.memory_percent else []
        parts += [f"{self.cores} % of the cores"] if self.cores else []
        each = (" of it" if self.cards == 1 else " of each") if parts else ""
        kind = "" if self.role == Role.APP.value else f" ({self.role} container)"
        cards = "1 card" if self.cards == 1 else f"{self.cards} cards"
        amounts = f": {' and '.join(parts)}{each}" if parts else ""
        return f"container {self.container}{kind}: {cards} of {self.vendor}{amounts}"


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that narrows or orders the choice."""

    what: str
    value: str
    default: bool = False
    """nobody wrote it: the scheduler's default holds"""

    @property
    def text(self) -> str:
        return f"{self.what}: {self.value}{' (default)' if self.default else ''}"


@dataclass(frozen=True, slots=True)
class Understood:
    """A pod's request as placement sees it."""

    asked: tuple[Asked, ...]
    wishes: tuple[Wish, ...]


def understood(request: PodRequest, annotations: Mapping[str, str], vendors: Mapping[str, Vendor]) -> Understood:
    asked = tuple(
        _asked(container.name, container.role, one, vendors)
        for container in request.containers
        for one in container.requests
    )
    return Understood(asked, tuple(_wishes(request, annotations)))


def _asked(container: str, role: Role, request: Request, vendors: Mapping[str, Vendor]) -> Asked:
    resource = vendors[request.vendor].names.count
    return Asked(
        container, role.value, request.vendor, resource, request.count, request.memory, request.percent, request.cores
    )


def _wishes(request: PodRequest, annotations: Mapping[str, str]) -> Iterator[Wish]:
    yield Wish("node policy", request.node_policy, keys.NODE_POLICY not in annotations)
    yield Wish("card policy", request.device_policy, keys.DEVICE_POLICY not in annotations)
    if request.numa_bind:
        yield Wish("NUMA", "all cards of a container on one NUMA node")
    if request.weights != Weights():
        weights = request.weights
        yield Wish("weights", f"slot={weights.slot},core={weights.core},memory={weights.memory}")
    for vendor, constraint in request.constraints:
        yield from _constraint(vendor, constraint)


def _constraint(vendor: str, constraint: Constraint) -> Iterator[Wish]:
    listed = (
        ("models", constraint.use_models),
        ("not models", constraint.avoid_models),
        ("only cards", constraint.use_uuids),
        ("not cards", constraint.avoid_uuids),
    )
    for what, values in listed:
        if values:
            yield Wish(f"{vendor} {what}", ", ".join(values))
    if constraint.mode is not None:
        yield Wish(f"{vendor} modes", constraint.mode or "none that is left")
    for name, value in constraint.extra:
        yield Wish(name, value)
