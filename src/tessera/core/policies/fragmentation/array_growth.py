"""How much the loss of nodes grows with a pod on them, for many nodes at once.

The same rule as `growth`, which explains it and is its plain form. Only the cost differs: arrays are quicker from about
a dozen nodes on. CardColumns in MIG mode are not weighed here; their nodes are left to the plain form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np

from tessera.core.model.arrays import UNKNOWN, Bools, CardArrays, Ints
from tessera.core.model.demand_forecast import GRAIN, PRIOR, DemandForecast
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.policies.base import Floats
from tessera.core.policies.fragmentation.growth import DIGITS, EMPTY, GROUP, MISSING, UNSERVED
from tessera.core.policies.fragmentation.waste import SCARCE, waste_table
from tessera.core.policies.scarcity import group_places

Steps = tuple[Floats, Floats]
"""free memory and cores in `GRAIN` steps of the card: whole numbers"""
NEVER = np.iinfo(np.int64).max
"""more cores than a request can have"""


class StepScale:
    """Turns amounts of one dimension into steps of their card, rounded down.

    A product and a sum take a third of the time of a division of whole numbers, and are as exact: with `ROUNDING` a
    quotient that is a whole number does not fall below it, and any other one is further away from the next, unless a
    card has a billion MiB.
    """

    ROUNDING = 1e-9

    def __init__(self, total: Ints) -> None:
        self._per_unit: Floats = GRAIN / np.maximum(total, 1)
        self._base = np.full(total.shape, self.ROUNDING)
        absent = total <= 0
        # A dimension that a card does not have counts as all free.
        self._per_unit[absent], self._base[absent] = 0.0, GRAIN

    def steps(self, left: Ints) -> Floats:
        # In place: new memory for each step would take most of the time.
        found: Floats = left * self._per_unit
        np.maximum(found, 0.0, out=found)
        found += self._base
        return np.floor(found, out=found)


@dataclass(frozen=True, slots=True)
class CardColumns:
    """The cards of some columns, taken out of the arrays once."""

    kind: Ints
    memory: Ints
    cores: Ints
    left_memory: Ints
    left_cores: Ints
    memory_scale: StepScale
    cores_scale: StepScale
    whole_from: Ints
    """cores of a request that takes all of the card"""
    unused: Bools
    usable: Bools
    """healthy, and open to new pods"""
    has_slot: Bools
    """usable, with a free slot"""

    def steps(self, left_memory: Ints, left_cores: Ints) -> Steps:
        return self.memory_scale.steps(left_memory), self.cores_scale.steps(left_cores)


class CardState(NamedTuple):
    """The cards as they are, as the card's part of the loss sees them."""

    waste: Floats
    worth: Floats
    """of the free part, in cards"""


@dataclass(frozen=True, slots=True)
class NodeState:
    """Columns as the node's part of the loss sees them."""

    idle: Floats
    """worth of all free parts, in cards"""
    whole: Ints
    """unused cards"""
    kind: Ints
    """of the first card"""
    cpu: Ints
    memory: Ints


def growth_by_column(arrays: CardArrays, pod: PodRequest, columns: Ints) -> Floats:
    """By column: how much the loss grows with the pod there. The pod's requests are weighed one by one."""
    forecast = pod.forecast or PRIOR
    cards = _cards_of(arrays, columns)
    free = cards.steps(cards.left_memory, cards.left_cores)
    before = _state(arrays, forecast, cards, free, columns)
    total, taken = _emptiness(forecast, before), np.zeros(len(columns))
    opened = np.zeros(len(columns), dtype=np.int64)
    now = CardState(_waste(forecast, free), _worth(forecast, free))
    of_vendor = {name: _of_vendor(arrays, name)[cards.kind] for name in {request.vendor for _, request in pod.requests}}
    scarcity = SCARCE * _scarcity(arrays, forecast)[cards.kind] if forecast.pressure else None
    for _, request in pod.requests:
        takes = cards.has_slot & of_vendor[request.vendor]
        added, share, fresh = _on_cards(forecast, request, cards, now, takes, scarcity)
        total += added
        taken += share
        opened += fresh
    cpu, memory = before.cpu, before.memory
    if pod.host is not None:
        known = cpu > UNKNOWN
        cpu = np.where(known, np.maximum(cpu - pod.host.cpu, 0), UNKNOWN)
        memory = np.where(known, np.maximum(memory - pod.host.memory, 0), UNKNOWN)
    after = NodeState(before.idle - taken, before.whole - opened, before.kind, cpu, memory)
    loss = _node_loss(arrays, forecast, after) - _node_loss(arrays, forecast, before)
    grown: Floats = np.round(total + loss, DIGITS)
    return grown


def _emptiness(forecast: DemandForecast, state: NodeState) -> Floats:
    load, weight = forecast.mean_load, EMPTY * forecast.turnover
    if load is None:
        return weight * state.idle
    served = np.minimum(state.cpu / load.cpu, state.memory / load.memory)
    return weight * (state.idle + forecast.host_need**2 * np.where(state.cpu > UNKNOWN, served, 0.0))


def _cards_of(arrays: CardArrays, columns: Ints) -> CardColumns:
    kind, sick = arrays.kind[:, columns], arrays.sick[:, columns]
    memory, cores, used = arrays.memory[:, columns], arrays.cores[:, columns], arrays.used[:, columns]
    usable = (kind >= 0) & ~sick & ~arrays.cordoned[:, columns]
    return CardColumns(
        kind=kind,
        memory=memory,
        cores=cores,
        left_memory=memory - arrays.used_memory[:, columns],
        left_cores=cores - arrays.used_cores[:, columns],
        memory_scale=StepScale(memory),
        cores_scale=StepScale(cores),
        whole_from=np.where(cores > 0, np.minimum(cores, WHOLE_CARD_CORES), NEVER),
        unused=used == 0,
        usable=usable,
        has_slot=usable & (used < arrays.slots[:, columns]),
    )


def _state(arrays: CardArrays, forecast: DemandForecast, cards: CardColumns, free: Steps, columns: Ints) -> NodeState:
    return NodeState(
        idle=np.where(cards.usable, _worth(forecast, free), 0.0).sum(axis=0),
        whole=(cards.usable & cards.unused).sum(axis=0),
        kind=cards.kind[0],
        cpu=arrays.free_cpu[columns],
        memory=arrays.free_memory[columns],
    )


def _node_loss(arrays: CardArrays, forecast: DemandForecast, state: NodeState) -> Floats:
    """The part of the loss that belongs to the node as a whole: unserved idle cards, less the worth of whole groups."""
    loss = np.zeros(len(state.idle))
    if forecast.loads:
        weights, cpu, memory = _loads(forecast)
        served = np.minimum(state.cpu / cpu, state.memory / memory)
        unserved = UNSERVED * (weights * np.maximum(state.idle - served, 0.0)).sum(axis=0)
        loss += np.where(state.cpu > UNKNOWN, unserved, 0.0)
    for group in forecast.groups:
        places = group_places(arrays, group, state.whole, (state.cpu, state.memory), state.kind)
        loss -= GROUP * sqrt(group.need) * group.cards * places
    return loss


@lru_cache(maxsize=8)
def _loads(forecast: DemandForecast) -> tuple[Floats, Floats, Floats]:
    """Weights, CPU and memory per card, one row per load."""
    weights, cpu, memory = (np.array(column)[:, None] for column in zip(*forecast.loads, strict=True))
    return weights, np.maximum(cpu, 1.0), np.maximum(memory, 1.0)


def _waste(forecast: DemandForecast, free: Steps) -> Floats:
    """What a lookup by two indexes gives, in less time."""
    table = waste_table(forecast)
    found: Floats = table.ravel().take((free[0] * table.shape[1] + free[1]).astype(np.int64))
    return found


def _worth(forecast: DemandForecast, free: Steps) -> Floats:
    return forecast.worth(1, 0) * free[0] + forecast.worth(0, 1) * free[1]


def _on_cards(
    forecast: DemandForecast,
    request: Request,
    cards: CardColumns,
    now: CardState,
    takes: Bools,
    scarcity: Floats | None,
) -> tuple[Floats, Floats, Ints]:
    """On the cards where it grows least: growth of waste and scarcity, worth taken, and whole cards opened.

    `takes`: cards of the vendor with a slot.
    """
    memory: Ints | int = request.memory if request.memory > 0 else cards.memory * request.percent // 100
    whole = request.cores >= cards.whole_from
    left_memory, left_cores = cards.left_memory - memory, cards.left_cores - np.where(whole, cards.cores, request.cores)
    # Models and modes are left to the fit: a node's cards rarely differ in them.
    takes = takes & (left_memory >= 0) & (left_cores >= 0) & (cards.unused | ~whole)
    if request.cores == 0:
        takes &= (cards.left_cores > 0) | (cards.cores <= 0)
    left = cards.steps(left_memory, left_cores)
    wasted = np.where(takes, _waste(forecast, left) - now.waste, MISSING)
    worth = np.where(takes, now.worth - _worth(forecast, left), 0.0)
    opened = cards.unused & takes
    if request.count < len(wasted):
        # Of equal cards the one that was registered last is taken, as `DevicePolicy.order` has it.
        last_first = np.round(wasted[::-1], DIGITS)
        if request.count == 1:
            best = last_first.argmin(axis=0)[None, :]
        else:
            best = last_first.argsort(axis=0, kind="stable")[: request.count]
        chosen = len(wasted) - 1 - best, np.arange(wasted.shape[1])
        wasted, worth, opened = wasted[chosen], worth[chosen], opened[chosen]
        scarcity = None if scarcity is None else scarcity[chosen]
    grown = wasted if scarcity is None else wasted + scarcity * worth
    beyond = MISSING * (request.count - len(wasted))
    return beyond + grown.sum(axis=0), worth.sum(axis=0), opened.sum(axis=0)


def _of_vendor(arrays: CardArrays, vendor: str) -> Bools:
    """By kind, with a last entry for places without a card."""
    return np.array([*(kind.vendor == vendor for kind in arrays.kinds), False])


def _scarcity(arrays: CardArrays, forecast: DemandForecast) -> Floats:
    """The same for the pressure on a kind's model."""
    return np.array([*(forecast.pressure.get(kind.sample.model, 0.0) for kind in arrays.kinds), 0.0])
