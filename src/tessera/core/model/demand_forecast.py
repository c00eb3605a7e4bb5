"""The demand to expect, as recent pods tell: what a policy that plans ahead knows about the pods to come.

A forecast is immutable and shared by all pods that are placed under it. It is compared by identity: a new forecast is a
new object, so what was cached under an older one is void. Units: cards are parts of a whole card (1.0), host CPU is in
thousandths of a core, host memory in MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

GRAIN = 100
"""steps of a card's memory and cores; requests come in per cent"""


class DemandSlice(NamedTuple):
    """A part of one card that pods ask for again and again."""

    memory: int
    """`GRAIN` steps, at least 1"""
    cores: int
    """`GRAIN` steps, at least 1"""
    weight: float
    """how often, as a part of all requests for one card"""


class HostLoad(NamedTuple):
    """What pods need of the host beside a whole card, for one part of the demand."""

    weight: float
    cpu: float
    """thousandths of a core per card"""
    memory: float
    """MiB per card"""


class DemandGroup(NamedTuple):
    """Cards of one node that pods ask for together, with what they need of the host: one part of the demand."""

    cards: int
    part: float
    """of the demand for cards"""
    need: float
    """the same against the whole groups that are left: 1 = all of them are needed to serve what the free cards serve"""
    cpu: int = 0
    """thousandths of a core, for the whole group"""
    memory: int = 0
    """MiB, for the whole group"""
    models: tuple[str, ...] = ()
    """accepted models; empty = any"""

    def accepts(self, model: str) -> bool:
        return not self.models or model in self.models


@dataclass(frozen=True, eq=False)
class DemandForecast:
    """What recent pods asked for."""

    slices: tuple[DemandSlice, ...] = ()
    loads: tuple[HostLoad, ...] = ()
    """groups of similar host demand, lightest first; empty = nothing is known about hosts"""
    groups: tuple[DemandGroup, ...] = ()
    choosy: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """by model: its part of the demand that other models cannot serve: pods that refuse these, or ask for more cards
    than their nodes have"""
    pressure: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """by model: that demand against the free cards of the model; 1 = all of them are needed"""
    burst: float = 0.0
    """how much more the demand varies than if each pod came on its own, in cards: variance beyond that, against the
    mean; 0 = equal pods do not come in rows"""
    whole_part: float = 0.0
    """of the demand for cards: requests for more than half of a card, which hardly ever share one"""
    whole_need: float = 1.0
    """the same against the unused cards, at least 1; above it some of these pods will find none"""
    host_need: float = 1.0
    """free cards against those that the CPU and memory of their hosts can serve, at least 1"""
    turnover: float = 0.0
    """from 0 to 1: whether room comes from pods that end, or only from what is still free"""
    memory_part: float = 0.5
    """how much of a card's worth is its memory; the rest is its cores"""

    @property
    def mean_load(self) -> HostLoad | None:
        """What pods need of the host beside a whole card on average; None if nothing is known about hosts."""
        if not self.loads:
            return None
        total = sum(load.weight for load in self.loads)
        cpu = sum(load.weight * load.cpu for load in self.loads) / total
        memory = sum(load.weight * load.memory for load in self.loads) / total
        return HostLoad(total, max(cpu, 1.0), max(memory, 1.0))

    def worth(self, memory: float, cores: float) -> float:
        """What a free part of a card is worth, whole = 1."""
        return (self.memory_part * memory + (1.0 - self.memory_part) * cores) / GRAIN


PRIOR = DemandForecast(
    slices=(DemandSlice(100, 100, 0.4), DemandSlice(50, 50, 0.25), DemandSlice(25, 25, 0.25), DemandSlice(10, 10, 0.1)),
    groups=(DemandGroup(2, 0.05, 0.05), DemandGroup(4, 0.05, 0.05), DemandGroup(8, 0.1, 0.1)),
    whole_part=0.7,
)
"""before anything is known: whole cards, halves, quarters and tenths, and some pods with several cards"""
