"""How much the loss of nodes grows with a pod on them, for many nodes at once.

The same rule as `growth`, which explains it and is its plain form. Only the cost differs: arrays are quicker from about
a dozen nodes on. CardColumns in MIG mode are not weighed here; their nodes are left to the plain form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from tessera.core.arrays import UNKNOWN, Bools, CardArrays, Ints
from tessera.core.demand_forecast import GRAIN, PRIOR, DemandForecast
from tessera.core.policies.base import Floats
from tessera.core.policies.fragmentation.growth import DIGITS, EMPTY, GROUP, MISSING, UNSERVED
from tessera.core.policies.fragmentation.waste import SCARCE, waste_table
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.scarcity import group_places


@dataclass(frozen=True, slots=True)
class CardColumns:
    """The cards of some columns, taken out of the arrays once."""

    kind: Ints
    memory: Ints
    cores: Ints
    left_memory: Ints
    left_cores: Ints
    unused: Bools
    usable: Bools
    """healthy, and open to new pods"""
    has_slot: Bools
    """usable, with a free slot"""


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
    free = _steps(cards, cards.left_memory, cards.left_cores)
    before = _state(arrays, forecast, cards, free, columns)
    total, taken = _emptiness(forecast, before), np.zeros(len(columns))
    opened = np.zeros(len(columns), dtype=np.int64)
    table = waste_table(forecast)
    waste = table[free]
    of_vendor = {name: _of_vendor(arrays, name)[cards.kind] for name in {request.vendor for _, request in pod.requests}}
    scarcity = SCARCE * _scarcity(arrays, forecast)[cards.kind] if forecast.pressure else None
    for _, request in pod.requests:
        takes = cards.has_slot & of_vendor[request.vendor]
        added, share, fresh = _on_cards(forecast, request, cards, free, takes, (table, waste), scarcity)
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


def emptiness_by_column(arrays: CardArrays, forecast: DemandForecast, columns: Ints) -> Floats:
    """By column: the part of the growth that is due to the room there."""
    cards = _cards_of(arrays, columns)
    return _emptiness(
        forecast, _state(arrays, forecast, cards, _steps(cards, cards.left_memory, cards.left_cores), columns)
    )


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
        unused=used == 0,
        usable=usable,
        has_slot=usable & (used < arrays.slots[:, columns]),
    )


def _state(
    arrays: CardArrays, forecast: DemandForecast, cards: CardColumns, free: tuple[Ints, Ints], columns: Ints
) -> NodeState:
    memory, cores = free
    worth = np.where(cards.usable, forecast.worth(1, 0) * memory + forecast.worth(0, 1) * cores, 0.0)
    return NodeState(
        idle=worth.sum(axis=0),
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


def _steps(cards: CardColumns, left_memory: Ints, left_cores: Ints) -> tuple[Ints, Ints]:
    """Amounts in steps of the card; a dimension that a card does not have counts as all free."""
    memory = np.maximum(left_memory, 0) * GRAIN // np.maximum(cards.memory, 1)
    cores = np.maximum(left_cores, 0) * GRAIN // np.maximum(cards.cores, 1)
    return np.where(cards.memory > 0, memory, GRAIN), np.where(cards.cores > 0, cores, GRAIN)


def _on_cards(
    forecast: DemandForecast,
    request: Request,
    cards: CardColumns,
    free: tuple[Ints, Ints],
    takes: Bools,
    wastes: tuple[Floats, Floats],
    scarcity: Floats | None,
) -> tuple[Floats, Floats, Ints]:
    """On the cards where it grows least: growth of waste and scarcity, worth taken, and whole cards opened.

    `takes`: cards of the vendor with a slot. `wastes`: the table, and the waste of the cards as they are.
    """
    table, waste = wastes
    memory: Ints | int = request.memory if request.memory > 0 else cards.memory * request.percent // 100
    whole = (cards.cores > 0) & (request.cores >= np.minimum(cards.cores, WHOLE_CARD_CORES))
    left_memory, left_cores = cards.left_memory - memory, cards.left_cores - np.where(whole, cards.cores, request.cores)
    # Models and modes are left to the fit: a node's cards rarely differ in them.
    takes = takes & (left_memory >= 0) & (left_cores >= 0) & (cards.unused | ~whole)
    if request.cores == 0:
        takes &= (cards.left_cores > 0) | (cards.cores <= 0)
    left = _steps(cards, left_memory, left_cores)
    wasted = np.where(takes, table[left] - waste, MISSING)
    worth = forecast.worth(1, 0) * (free[0] - left[0]) + forecast.worth(0, 1) * (free[1] - left[1])
    worth = np.where(takes, worth, 0.0)
    count = min(request.count, len(wasted))
    # Of equal cards the one that was registered last is taken, as `DevicePolicy.order` has it.
    last_first = np.round(wasted[::-1], DIGITS)
    if count == 1:
        best = last_first.argmin(axis=0)[None, :]
    elif count == len(wasted):
        best = np.arange(count)[:, None]
    else:
        best = last_first.argsort(axis=0, kind="stable")[:count]
    best = len(wasted) - 1 - best
    across = np.arange(wasted.shape[1])
    grown = wasted[best, across]
    if scarcity is not None:
        grown = grown + scarcity[best, across] * worth[best, across]
    beyond = MISSING * (request.count - count)
    opened = cards.unused & takes
    return beyond + grown.sum(axis=0), worth[best, across].sum(axis=0), opened[best, across].sum(axis=0)


def _of_vendor(arrays: CardArrays, vendor: str) -> Bools:
    """By kind, with a last entry for places without a card."""
    return np.array([*(kind.vendor == vendor for kind in arrays.kinds), False])


def _scarcity(arrays: CardArrays, forecast: DemandForecast) -> Floats:
    """The same for the pressure on a kind's model."""
    return np.array([*(forecast.pressure.get(kind.sample.model, 0.0) for kind in arrays.kinds), 0.0])
