"""Physical cards as a node registered them.

A `Device` is immutable: a changed registration is a new object. What is in use on a card is not here but in
`node_info.Card`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, Any] = MappingProxyType({})

HAMI_CORE = "hami-core"
MIG = "mig"
MPS = "mps"
WHOLE = "none"
"""whole cards, not shared at all"""


class MigPlacement(NamedTuple):
    """Where an instance sits on the card: `size` memory slices from `start`."""

    start: int
    size: int

    def overlaps(self, other: MigPlacement) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of MIG instance that a card offers, with every place it may be put."""

    name: str
    memory: int
    """MiB"""
    cores: int
    """per cent of the card"""
    slices: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True)
class MigSlot:
    """One concrete instance: a profile at a place."""

    profile: str
    placement: MigPlacement


class Attribute(NamedTuple):
    """One attribute of a published device. Its kind is part of it, because 1 is not true, and "1.0.0" no version."""

    name: str
    """with its domain"""
    kind: str
    """`string`, `int`, `bool` or `version`"""
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class Published:
    """What ResourceSlices say of a card, or of one MIG profile of it. Selectors of claims see nothing else."""

    common: tuple[Attribute, ...] = ()
    """attributes that cards may have in common, sorted"""
    own: tuple[Attribute, ...] = ()
    """attributes that no two cards have in common, such as the uuid, sorted"""
    capacity: tuple[tuple[str, int], ...] = ()
    """with its domain, sorted"""
    shared: bool = False
    """whether several claims may have parts of it"""
    _hash: int = field(init=False, compare=False, repr=False, default=0)
    shareable: Published = field(init=False, compare=False, repr=False)
    """the same without what is the card's own"""

    def __post_init__(self) -> None:
        # Every selector looks its answers up by this value, so the hash of its many parts is computed once.
        object.__setattr__(self, "_hash", hash((self.common, self.own, self.capacity, self.shared)))
        shareable = replace(self, own=()) if self.own else self
        object.__setattr__(self, "shareable", shareable)

    def __hash__(self) -> int:
        return self._hash

    def attribute(self, name: str) -> Attribute | None:
        return next((each for each in (*self.common, *self.own) if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Device:
    """One physical card."""

    uuid: str
    vendor: str
    """key of the vendor backend, e.g. `NVIDIA`; never the model"""
    index: int = 0
    slots: int = 1
    """how many grants may share the card at once (`count` on the wire)"""
    memory: int = 0
    """MiB, after the node's scaling"""
    cores: int = 100
    """per cent units, normally 100; compute units or a bit mask for some vendors"""
    model: str = ""
    """model string (`type` on the wire), e.g. `NVIDIA A100-SXM4-80GB`"""
    numa: int = 0
    mode: str = ""
    """`hami-core`, `mig`, `mps`, or empty if the node does not say"""
    healthy: bool = True
    mig_profiles: tuple[MigProfile, ...] = ()
    links: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """pair score towards other cards of the node, by their uuid"""
    custom: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """what only this vendor's own rules understand"""
    published: tuple[tuple[str, Published], ...] = ()
    """what claims can select, by MIG profile; an empty name is the card itself. Empty: the card is not for claims"""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything the core knows about one node."""

    name: str
    devices: tuple[Device, ...] = ()
    """in order of registration; uuids are unique"""
    cordoned: frozenset[str] = frozenset()
    """uuids that an administrator closed for new grants"""
    traits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """node annotations that some vendor's rules read, by annotation key"""
    problem: str = ""
    """why the registration cannot be trusted; a node with a problem takes no new pods"""
