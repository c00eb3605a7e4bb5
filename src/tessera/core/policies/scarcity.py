"""Puts the demand for what is scarce against what is left of it: models, unused cards, whole groups of cards, hosts.

If pods keep coming until the free cards are used up, this much of a model, or so many groups, will be asked for. That
against what is free now is the need: far below 1 there is plenty, above 1 some of these pods will find nothing. A model
that is used up early, because it seemed to be in less demand than others, becomes more precious with each card. Where
equal pods come in rows, the demand for a model varies much, so one standard deviation of that is added; less of it the
more room comes from pods that end, since a model that is used up comes back then. Needs are rounded to steps, so that a
forecast, and what is cached under it, lasts until one has changed noticeably.
"""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt

import numpy as np
import numpy.typing as npt

from tessera.core.model.arrays import UNKNOWN, CardArrays, Ints
from tessera.core.model.demand_forecast import GRAIN, DemandForecast, DemandGroup, HostLoad

Floats = npt.NDArray[np.float64]

MOST = 4.0
"""need beyond which nothing becomes more precious"""
STEP = 1.25
"""factor between two needs that count as different"""
TURNED_OVER = 1 / 4
"""of the cards in use: once pods have given back so many, room comes from pods that end"""
TURNOVER_STEPS = 8
"""turnovers that count as different"""


def against_what_is_left(
    expected: DemandForecast, arrays: CardArrays, *, ended: float = 0.0, current: DemandForecast | None
) -> DemandForecast:
    """The forecast with its needs for the cards that are free; `current` itself if that is the same.

    `ended`: cards that pods have given back.
    """
    turnover = _turnover(arrays, ended)
    supply = _Supply(arrays, expected.loads)
    allowance = (1.0 - turnover) ** 2 * expected.burst / max(supply.all_free, 1.0)
    # At least one card, so that the last bits of a model that is hardly asked for are not taken for precious.
    pressure = {
        model: _need(part + sqrt(part * allowance), supply.all_free, max(supply.free.get(model, 0.0), 1.0))
        for model, part in expected.choosy.items()
    }
    groups = tuple(
        group._replace(need=_need(group.part, supply.all_free, group.cards * supply.places(group)))
        for group in expected.groups
    )
    # Below 1 there are enough, and it makes no difference how many more: the forecast stays the same.
    whole_need = max(_need(expected.whole_part, supply.all_free, supply.whole), 1.0)
    host_need = _in_steps(max(supply.idle / max(supply.all_free, 1.0), 1.0))
    found = replace(
        expected, groups=groups, pressure=pressure, whole_need=whole_need, host_need=host_need, turnover=turnover
    )
    return current if current is not None and vars(current) == vars(found) else found


def group_places(arrays: CardArrays, group: DemandGroup, whole: Ints, host: tuple[Ints, Ints], kind: Ints) -> Ints:
    """By column: how many such groups the whole cards and the free CPU and memory serve.

    A node with several models is judged by its first card, `kind`.
    """
    cpu, memory = host
    served = np.minimum(cpu // max(group.cpu, 1), memory // max(group.memory, 1))
    places: Ints = np.where(cpu > UNKNOWN, np.minimum(whole // group.cards, served), whole // group.cards)
    if group.models:
        # By kind, with a last entry for places without a card.
        places = places * np.array([*(group.accepts(each.sample.model) for each in arrays.kinds), False])[kind]
    return places


class _Supply:
    """What is free, in cards; a card counts by its memory or its cores, whichever is used more.

    Of the free cards of a node only those count that its free CPU and memory can serve: a model is used up when its
    hosts are.
    """

    def __init__(self, arrays: CardArrays, loads: tuple[HostLoad, ...]) -> None:
        self._arrays = arrays
        usable = (arrays.kind >= 0) & ~arrays.sick & ~arrays.cordoned
        left = [
            np.maximum(all_of - used, 0) * GRAIN // np.maximum(all_of, 1)
            for all_of, used in ((arrays.memory, arrays.used_memory), (arrays.cores, arrays.used_cores))
        ]
        parts = np.where(usable, np.where(arrays.cores > 0, np.minimum(*left), left[0]), 0) / GRAIN
        self.idle = float(parts.sum())
        """whether hosts can serve it or not"""
        parts = parts * _served_part(arrays, parts.sum(axis=0), loads)
        self._whole: Ints = (usable & (arrays.used == 0)).sum(axis=0)
        self.whole = int(self._whole.sum())
        free = np.bincount(arrays.kind[usable], weights=parts[usable], minlength=len(arrays.kinds)).tolist()
        self.free: dict[str, float] = {}
        """by model"""
        for kind, cards in zip(arrays.kinds, free, strict=True):
            model = kind.sample.model
            self.free[model] = self.free.get(model, 0.0) + cards
        self.all_free = sum(self.free.values())

    def places(self, group: DemandGroup) -> int:
        arrays = self._arrays
        host = arrays.free_cpu, arrays.free_memory
        return int(group_places(arrays, group, self._whole, host, arrays.kind[0]).sum())


def _served_part(arrays: CardArrays, idle: Floats, loads: tuple[HostLoad, ...]) -> Floats:
    """By column: the part of the idle cards that the host can serve, mean of the loads; 1 if the host is unknown."""
    if not loads:
        return np.ones_like(idle)
    served = np.zeros_like(idle)
    for weight, cpu, memory in loads:
        cards = np.minimum(arrays.free_cpu / max(cpu, 1.0), arrays.free_memory / max(memory, 1.0))
        served += weight * np.minimum(idle, cards)
    part: Floats = np.divide(served, idle, out=np.ones_like(idle), where=(arrays.free_cpu > UNKNOWN) & (idle > 0.0))
    return part


def given_back_for(turnover: float, arrays: CardArrays) -> float:
    """Cards that pods must have given back for this turnover."""
    return turnover * TURNED_OVER * max(int(arrays.used.sum()), 1)


def _turnover(arrays: CardArrays, ended: float) -> float:
    return min(ended * TURNOVER_STEPS // given_back_for(1.0, arrays), TURNOVER_STEPS) / TURNOVER_STEPS


def _need(part: float, free: float, left: float) -> float:
    """Demand until everything is used up, against what is left of what it asks for; in steps."""
    wanted = part * free
    if wanted <= 0.0:
        return 0.0
    return MOST if wanted >= MOST * left else _in_steps(wanted / left)


def _in_steps(need: float) -> float:
    return MOST if need >= MOST else float(STEP ** round(log(need) / log(STEP)))
