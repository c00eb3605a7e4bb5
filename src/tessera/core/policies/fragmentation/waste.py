"""How much of the free part of a card will never be used, if pods keep coming as the forecast says.

A part that no slice fits is all waste. Where slices fit, the next one that comes takes its share and the rest is judged
again; with a small chance (`NO_DEMAND`) no pod comes and the part stays as it is. `waste_table` answers for every free
memory and free cores in `GRAIN` steps; `MigWaste` answers for a card in MIG mode, by the memory slices that instances
hold. Both depend on the forecast and on what a card offers, never on a node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tessera.core.model.demand_forecast import GRAIN, DemandForecast, DemandSlice
from tessera.core.model.devices import Device, MigProfile
from tessera.core.model.mig import MAX_SLICES, bits, by_size
from tessera.core.policies.base import Floats

SCARCE = 0.2
"""loss for one card of a kind that is used up: of a model all of which are needed by pods that accept nothing else, or
an unused card, of which so many are needed as there are and one more"""
NO_DEMAND = 0.02
"""weight of the case that no pod comes for a part, against 1 for all pods together"""


@lru_cache(maxsize=8)
def waste_table(forecast: DemandForecast) -> Floats:
    """By free memory and free cores, both 0 to `GRAIN`: the expected waste, in cards."""
    # Forecasts often differ in their needs only, and are quicker to look up than what the table depends on.
    table = _waste_table(forecast.slices, forecast.memory_part)
    kept = worth_of_unused(forecast)
    if kept:
        table = table.copy()
        table[GRAIN, GRAIN] -= kept
    return table


@lru_cache(maxsize=8)
def waste_rows(forecast: DemandForecast) -> list[list[float]]:
    """The same table as plain numbers, which are quicker to look up one by one; not to be changed."""
    rows = _waste_rows(forecast.slices, forecast.memory_part)
    return [*rows[:-1], [*rows[-1][:-1], rows[-1][-1] - worth_of_unused(forecast)]]


def worth_of_unused(forecast: DemandForecast) -> float:
    """What a card is worth beyond its free parts as long as it is unused, in cards.

    Nothing while there are enough unused cards for the pods that need one. Once there are not, a pod that could share
    a card and opens another one takes it from a pod that cannot.
    """
    return SCARCE * (forecast.whole_need - 1.0)


@lru_cache(maxsize=8)
def _waste_table(slices: tuple[DemandSlice, ...], memory_part: float) -> Floats:
    steps = np.arange(GRAIN + 1)
    # `DemandForecast.worth` of all parts at once.
    worth = (memory_part * steps[:, None] + (1.0 - memory_part) * steps) / GRAIN
    table: Floats = np.zeros_like(worth)
    for memory in steps.tolist():
        chance = np.full(GRAIN + 1, NO_DEMAND)
        waste = NO_DEMAND * worth[memory]
        for part in slices:
            if part.memory <= memory:
                chance[part.cores :] += part.weight
                waste[part.cores :] += part.weight * table[memory - part.memory, : GRAIN + 1 - part.cores]
        table[memory] = waste / chance
    table.flags.writeable = False
    return table


@lru_cache(maxsize=8)
def _waste_rows(slices: tuple[DemandSlice, ...], memory_part: float) -> list[list[float]]:
    rows: list[list[float]] = _waste_table(slices, memory_part).tolist()
    return rows


class Instance(NamedTuple):
    """What a MIG instance takes of a card."""

    memory: int
    """MiB"""
    cores: int
    taken: int
    """slices of the card in use with it, one bit each"""
    wasted: float
    """growth of the waste"""


class _ProfilePlaces(NamedTuple):
    """A MIG profile and the slices that each of its places takes."""

    profile: MigProfile
    places: tuple[int, ...]

    def free_places(self, taken: int) -> list[int]:
        return [place for place in self.places if not place & taken]


class MigWaste:
    """The waste of one kind of card in MIG mode under one forecast.

    The next request takes the smallest instance that holds it, at the place that leaves the least waste. Requests that
    no profile holds do not come to such a card, and instances bring cores of their own. Answers are cached.
    """

    def __init__(
        self,
        demand: Sequence[DemandSlice],
        profiles: Sequence[MigProfile],
        *,
        memory: int,
        slices: int,
        unused_worth: float = 0.0,
    ) -> None:
        self._profiles = [
            _ProfilePlaces(each, tuple(bits([place]) for place in each.placements)) for each in by_size(profiles)
        ]
        self._memories = [each.profile.memory for each in self._profiles]
        self._slices = slices
        self._unused_worth = unused_worth
        self._waste: dict[int, float] = {}
        self._instances: dict[tuple[int, int], Instance | None] = {}
        """by the slices taken before, and the first profile that is large enough"""
        self._demand: dict[int, float] = {}
        """how often a request comes, by the first profile that holds it"""
        for part in demand:
            # Rounded up like the slices of a forecast: a request for exactly this profile must find it.
            holding = (-(-each.profile.memory * GRAIN // max(memory, 1)) >= part.memory for each in self._profiles)
            first = next((i for i, holds in enumerate(holding) if holds), None)
            if first is not None:
                self._demand[first] = self._demand.get(first, 0.0) + part.weight

    def waste(self, taken: int) -> float:
        """In cards."""
        waste = self._waste.get(taken)
        if waste is None:
            waste = self._waste[taken] = self._expected_waste(taken) - (0.0 if taken else self._unused_worth)
        return waste

    def take(self, taken: int, memory: int) -> Instance | None:
        """The instance for `memory` MiB, with the profile that `core.mig.choose` finds; None if there is no place."""
        key = taken, bisect_left(self._memories, memory)
        if key not in self._instances:
            found = self._find(*key)
            self._instances[key] = found and Instance(
                found[0].memory, found[0].cores, found[1], self.waste(found[1]) - self.waste(taken)
            )
        return self._instances[key]

    def _find(self, taken: int, first: int) -> tuple[MigProfile, int] | None:
        """The profile that is taken, from the `first` on, and the slices that are taken then."""
        for each in self._profiles[first:]:
            free = each.free_places(taken)
            if free:
                return each.profile, taken | min(free, key=lambda place: self.waste(taken | place))
        return None

    def _expected_waste(self, taken: int) -> float:
        chance = NO_DEMAND
        waste = NO_DEMAND * max(1.0 - taken.bit_count() / self._slices, 0.0)
        for first, weight in self._demand.items():
            found = self._find(taken, first)
            if found is not None:
                chance += weight
                waste += weight * self.waste(found[1])
        return waste / chance


def mig_waste(forecast: DemandForecast, device: Device) -> MigWaste | None:
    """For a card in MIG mode; None if its places cannot be weighed."""
    return _mig_waste(forecast.slices, device.mig_profiles, device.memory, worth_of_unused(forecast))


@lru_cache(maxsize=64)
def _mig_waste(
    demand: tuple[DemandSlice, ...], profiles: tuple[MigProfile, ...], memory: int, unused_worth: float
) -> MigWaste | None:
    places = [place for profile in profiles for place in profile.placements]
    slices = max((place.start + place.size for place in places), default=0)
    if not 0 < slices <= MAX_SLICES or any(place.size < 1 for place in places):
        return None
    return MigWaste(demand, profiles, memory=memory, slices=slices, unused_worth=unused_worth)
