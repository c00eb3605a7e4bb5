"""How much of a card in MIG mode will never be sold, by the memory slices that instances hold.

The same thought as in `fragmentation_waste`, with places instead of amounts: the next request takes the smallest
instance that holds it, at the place that leaves the least waste, and the rest is judged again; what no instance can use
is all waste. Requests that no profile holds do not come to such a card, and instances bring cores of their own.
Depends on the outlook and on what a card offers, never on a node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tessera.core.demand_forecast import GRAIN, DemandForecast
from tessera.core.devices import Device, MigProfile
from tessera.core.mig import MOST_SLICES, bits, by_size
from tessera.core.policies.fragmentation_waste import NOBODY


class Offer(NamedTuple):
    """A profile and the slices that each of its places takes."""

    profile: MigProfile
    places: tuple[int, ...]

    def free(self, taken: int) -> list[int]:
        return [place for place in self.places if not place & taken]


class Instance(NamedTuple):
    """What an instance takes of a card."""

    memory: int
    """MiB"""
    cores: int
    taken: int
    """slices of the card in use with it"""
    wasted: float
    """growth of the waste"""


class MigWaste:
    """Of one kind of card under one outlook. Slices are bits; answers are remembered."""

    def __init__(self, outlook: DemandForecast, profiles: Sequence[MigProfile], memory: int, slices: int) -> None:
        self._offers = [Offer(each, tuple(bits([place]) for place in each.placements)) for each in by_size(profiles)]
        self._memories = [offer.profile.memory for offer in self._offers]
        self._slices = slices
        self._known: dict[int, float] = {}
        self._instances: dict[tuple[int, int], Instance | None] = {}
        """by the slices taken before, and the first offer that is large enough"""
        self._demand: dict[int, float] = {}
        """how often, by the first offer that holds what is asked for"""
        for part in outlook.slices:
            # Rounded up like the slices of an outlook: whoever asks for exactly this profile must find it.
            holding = (-(-each.profile.memory * GRAIN // max(memory, 1)) >= part.memory for each in self._offers)
            first = next((i for i, holds in enumerate(holding) if holds), None)
            if first is not None:
                self._demand[first] = self._demand.get(first, 0.0) + part.weight

    def of(self, taken: int) -> float:
        """In cards."""
        waste = self._known.get(taken)
        if waste is None:
            waste = self._known[taken] = self._judge(taken)
        return waste

    def take(self, taken: int, memory: int) -> Instance | None:
        """The instance for `memory` MiB: the profile is the one that `core.mig.choose` finds."""
        key = taken, bisect_left(self._memories, memory)
        if key not in self._instances:
            found = self._find(*key)
            self._instances[key] = found and Instance(
                found[0].memory, found[0].cores, found[1], self.of(found[1]) - self.of(taken)
            )
        return self._instances[key]

    def _find(self, taken: int, first: int) -> tuple[MigProfile, int] | None:
        """From the `first` offer on, and the slices taken then."""
        for offer in self._offers[first:]:
            free = offer.free(taken)
            if free:
                return offer.profile, taken | min(free, key=lambda place: self.of(taken | place))
        return None

    def _judge(self, taken: int) -> float:
        chance = NOBODY
        waste = NOBODY * max(1.0 - taken.bit_count() / self._slices, 0.0)
        for first, weight in self._demand.items():
            found = self._find(taken, first)
            if found is not None:
                chance += weight
                waste += weight * self.of(found[1])
        return waste / chance


def mig_waste(outlook: DemandForecast, device: Device) -> MigWaste | None:
    """For a card in MIG mode; None where its places cannot be weighed."""
    return _mig_waste(outlook, device.mig_profiles, device.memory)


@lru_cache(maxsize=64)
def _mig_waste(outlook: DemandForecast, profiles: tuple[MigProfile, ...], memory: int) -> MigWaste | None:
    places = [place for profile in profiles for place in profile.placements]
    slices = max((place.start + place.size for place in places), default=0)
    if not 0 < slices <= MOST_SLICES or any(place.size < 1 for place in places):
        return None
    return MigWaste(outlook, profiles, memory, slices)
