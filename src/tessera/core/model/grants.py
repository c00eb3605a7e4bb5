"""Slices given to containers, and what a pod as a whole holds of each card.

Kubernetes' effective-request rule is here and only here (`effective_use`): init containers run one after the other,
beside the sidecars that were started before them; app containers run together, beside all sidecars. A pod holds
the larger of the two. MIG instances are the exception: they are created at Allocate for every
container and live as long as the pod, so they add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tessera.core.model.devices import NOTHING, MigSlot
from tessera.core.model.requests import Role


class Use(NamedTuple):
    """What is taken of one card."""

    slots: int = 0
    memory: int = 0
    cores: int = 0

    def plus(self, other: Use) -> Use:
        return Use(self.slots + other.slots, self.memory + other.memory, self.cores + other.cores)

    def minus(self, other: Use) -> Use:
        return Use(self.slots - other.slots, self.memory - other.memory, self.cores - other.cores)

    def peak(self, other: Use) -> Use:
        return Use(max(self.slots, other.slots), max(self.memory, other.memory), max(self.cores, other.cores))


@dataclass(frozen=True, slots=True)
class Grant:
    """One card's slice given to one container."""

    uuid: str
    vendor: str
    memory: int
    """MiB"""
    cores: int
    index: int = field(default=0, compare=False)
    """the card's index on its node; some vendors hand it to the runtime"""
    word: str = ""
    """the type on the wire, if it is not the vendor key (AMD writes the model)"""
    slots: int = 1
    mig: MigSlot | None = None
    custom: Mapping[str, str] = field(default_factory=lambda: NOTHING, compare=False)
    """what the vendor needs again when it writes its annotations"""


Grants = tuple[Grant, ...]
"""the cards of one container and vendor, in the order the container sees them"""


class Placement(NamedTuple):
    """All the grants of a pod on a node."""

    node: str
    grants: Mapping[str, tuple[Grants, ...]]
    """by vendor; one entry for every container of the pod, empty if it asks nothing of that vendor"""
    score: float = 0.0
    """the node's score when the placement was chosen"""


NO_USE = Use()


class Span(NamedTuple):
    """When a container runs, as far as accounting cares."""

    role: Role
    finished: bool = False
    """an init container that ended with exit code 0 and will not run again"""


@lru_cache(maxsize=256)
def spans_of(roles: tuple[Role, ...]) -> tuple[Span, ...]:
    """The spans of containers that have not started."""
    return tuple(Span(role) for role in roles)


def effective_use(spans: Sequence[Span], uses: Iterable[tuple[int, Use, bool]], *, core_masks: bool = False) -> Use:
    """What a pod holds of one card.

    `uses` are (container position, use, lasting): `lasting` uses (MIG instances) are held from Allocate to the end of
    the pod, whatever the container's role; so are those of claims. Positions beyond `spans` count as app containers:
    more held, never less. With `core_masks` cores are ids, not amounts: every id that some container uses is held.
    """
    uses = list(uses)
    if len(uses) == 1:
        # By far the most frequent case: one container, one card.
        position, use, stays = uses[0]
        if stays or position >= len(spans) or spans[position].role is not Role.INIT:
            return use
    by_position: dict[int, Use] = {}
    lasting = Use()
    mask = 0
    for position, use, stays in uses:
        if core_masks:
            mask |= use.cores
            use = use._replace(cores=0)
        if stays or (position < len(spans) and spans[position].role is Role.CLAIM):
            lasting = lasting.plus(use)
        else:
            by_position[position] = by_position.get(position, Use()).plus(use)
    running = Use()
    peak = Use()
    apps = Use()
    for position in sorted(by_position):
        use = by_position[position]
        span = spans[position] if position < len(spans) else Span(Role.APP)
        if span.role is Role.APP:
            apps = apps.plus(use)
        elif span.role is Role.SIDECAR:
            running = running.plus(use)
        elif not span.finished:
            peak = peak.peak(running.plus(use))
    held = lasting.plus(peak.peak(running.plus(apps)))
    return held._replace(cores=mask) if core_masks else held
