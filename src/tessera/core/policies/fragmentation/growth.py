"""How much the loss of a node grows with a pod on it: the plain form of the rule, one node at a time.

The loss is the sum of five things, in cards: parts of cards that no pod will come for (`waste`), idle cards that the
host's CPU and memory cannot serve, whole groups of cards (a gain, so they count below zero), cards in use whose model
other pods cannot do without, and, for each pod, the room beside it: where pods end, a node with much room and few pods
would soon be whole. If it is unknown what a host has free, the second part is left out.

`array_growth` is the same rule for many nodes at once, without cards in MIG mode; a property test holds it to this
form. What a request does to a card follows from the card's state alone, so equal cards are judged once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

import numpy as np

from tessera.core.model.arrays import UNKNOWN, Bools, CardArrays, Ints
from tessera.core.model.demand_forecast import GRAIN, PRIOR, DemandGroup
from tessera.core.model.devices import MIG
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.policies.base import Floats
from tessera.core.policies.fragmentation.waste import SCARCE, MigWaste, mig_waste, waste_rows

UNSERVED = 0.2
"""loss for one idle card that the host cannot serve; the weights were set once, `bench.weights` tries others"""
GROUP = 0.01
"""worth of one card in a whole group, where all demand is for such groups; with less demand it falls by its root"""
EMPTY = 0.005
"""loss for each free card of a node that a pod is put on, and for each card that its free CPU and memory could serve,
however little the pod takes; the second by the square of the need for hosts; both by the turnover"""
DIGITS = 6
"""of a growth, in cards: less is noise of floating point and must not outweigh the names"""
MISSING = 1_000.0
"""growth in cards for each card that the request misses on a node: tried last"""

STATES = 128
"""states of cards that are cached for one shape of pod; a new one costs a microsecond or two"""
_SCALE = 10.0**DIGITS

CardNumbers = tuple[int, int, int, int, int, int]
"""kind, memory, cores, memory in use, cores in use, MIG slices taken: as the arrays have them"""


class SliceEffect(NamedTuple):
    """What one slice does to a card."""

    wasted: float
    """rounded; of equal cards the one that was registered last is taken, as `DevicePolicy.order` has it"""
    grown: float
    """waste and scarcity"""
    worth: float
    """of what it takes, in cards"""
    alone: bool
    """whether it must not share the card"""
    after: CardNumbers | None
    """the card with it, if the same request may take another slice of it: in MIG mode"""


class CardEffects(NamedTuple):
    """What the pod's requests would do to a card in some state."""

    free: float
    """worth of its free part, in cards"""
    slices: tuple[SliceEffect | None, ...]
    """by request of the pod; None if it does not fit"""


OpenCards = list[tuple[CardEffects, int, bool]]
"""cards that may be taken, with their free slots and whether they are unused"""


class _KindFacts(NamedTuple):
    """What is the same for all cards of a kind."""

    vendor: str
    model: str
    pressure: float
    mig: MigWaste | None


class NodeGrowth:
    """The growth for one shape of pod."""

    def __init__(self, pod: PodRequest) -> None:
        forecast = self._forecast = pod.forecast or PRIOR
        self._host = pod.host
        self._requests = [request for _, request in pod.requests]
        self._waste = waste_rows(forecast)
        self._memory_worth, self._cores_worth = forecast.worth(1, 0), forecast.worth(0, 1)
        self._mean_load = forecast.mean_load
        self._loads = [(weight, max(cpu, 1.0), max(memory, 1.0)) for weight, cpu, memory in forecast.loads]
        self._groups = [(group, GROUP * sqrt(group.need) * group.cards) for group in forecast.groups]
        self._groups_by_kind: dict[int, list[tuple[DemandGroup, float]]] = {}
        self._kinds: list[_KindFacts] = []
        self._known: dict[CardNumbers, CardEffects] = {}

    def on(self, arrays: CardArrays, column: int) -> float:
        """How much the loss of a node grows with the pod there."""
        if len(self._kinds) < len(arrays.kinds):
            self._kinds = list(self._kind_facts(arrays))
        idle, whole = 0.0, 0
        open_cards: OpenCards = []
        states = zip(*[array[:, column].tolist() for array in _states(arrays)], strict=True)
        openings = [array[:, column].tolist() for array in _openings(arrays)]
        for state, used, slots, sick, cordoned in zip(states, *openings, strict=True):
            if state[0] < 0:
                continue
            if sick or cordoned:
                continue
            effects = self._known.get(state) or self._judge(state)
            idle += effects.free
            whole += used == 0
            if used < slots:
                open_cards.append((effects, slots - used, used == 0))
        cpu, memory = int(arrays.free_cpu[column]), int(arrays.free_memory[column])
        groups = self._groups_on(int(arrays.kind[0, column]))
        before = self._node_loss(groups, idle, whole, cpu, memory)
        grown = self._emptiness(idle, cpu, memory)
        for number, request in enumerate(self._requests):
            chosen = self._choose(open_cards, number, request.count)
            grown += MISSING * (request.count - len(chosen))
            for effect, was_unused in chosen:
                grown += effect.grown
                idle -= effect.worth
                whole -= was_unused
        if self._host is not None and cpu > UNKNOWN:
            cpu, memory = max(cpu - self._host.cpu, 0), max(memory - self._host.memory, 0)
        return round((grown + self._node_loss(groups, idle, whole, cpu, memory) - before) * _SCALE) / _SCALE

    def on_many(self, arrays: CardArrays, columns: Ints) -> Floats:
        """The same by column; nodes that are alike in everything are weighed once."""
        numbers = [array[:, columns] for array in (*_states(arrays), *_openings(arrays))]
        numbers += [arrays.free_cpu[None, columns], arrays.free_memory[None, columns]]
        known: dict[bytes, float] = {}
        grown = []
        for column, node in zip(columns.tolist(), np.ascontiguousarray(np.concatenate(numbers).T), strict=True):
            key = node.tobytes()
            if key not in known:
                known[key] = self.on(arrays, column)
            grown.append(known[key])
        return np.array(grown)

    def _kind_facts(self, arrays: CardArrays) -> Iterator[_KindFacts]:
        for kind in arrays.kinds:
            mig = mig_waste(self._forecast, kind.sample) if kind.sample.mode == MIG else None
            model = kind.sample.model
            yield _KindFacts(kind.vendor, model, self._forecast.pressure.get(model, 0.0), mig)

    def _choose(self, open_cards: OpenCards, number: int, count: int) -> list[tuple[SliceEffect, bool]]:
        """Where the waste grows least, and whether the card was unused; fewer than `count` if cards are missing."""
        if count == 1:
            best, opened = None, False
            for effects, _, unused in open_cards:
                effect = effects.slices[number]
                if effect is None or (effect.alone and not unused):
                    continue
                if best is None or effect.wasted <= best.wasted:
                    best, opened = effect, unused
            return [] if best is None else [(best, opened)]
        found = [
            (effect, slots, unused)
            for effects, slots, unused in reversed(open_cards)
            if (effect := effects.slices[number]) is not None and (unused or not effect.alone)
        ]
        chosen: list[tuple[SliceEffect, bool]] = []
        for first, slots, unused in sorted(found, key=lambda each: each[0].wasted):
            for effect in self._slices_of_one_card(first, number, min(slots, count - len(chosen))):
                chosen.append((effect, unused and effect is first))
        return chosen

    def _slices_of_one_card(self, first: SliceEffect, number: int, most: int) -> Iterator[SliceEffect]:
        """The slices that one card gives to one request: several in MIG mode."""
        effect: SliceEffect | None = first
        while effect is not None and most > 0:
            yield effect
            most -= 1
            state = effect.after
            effect = None if state is None else (self._known.get(state) or self._judge(state)).slices[number]

    def _judge(self, state: CardNumbers) -> CardEffects:
        kind, memory, cores, used_memory, used_cores, _ = state
        free_memory, free_cores = steps(memory - used_memory, memory), steps(cores - used_cores, cores)
        effects = CardEffects(
            self._memory_worth * free_memory + self._cores_worth * free_cores,
            tuple(
                self._effect(state, request) if request.vendor == self._kinds[kind].vendor else None
                for request in self._requests
            ),
        )
        if len(self._known) >= STATES:
            self._known.clear()
        self._known[state] = effects
        return effects

    def _effect(self, state: CardNumbers, request: Request) -> SliceEffect | None:
        number, memory, cores, used_memory, used_cores, taken = state
        kind = self._kinds[number]
        takes_memory = request.memory_on(memory)
        alone = 0 < min(cores, WHOLE_CARD_CORES) <= request.cores
        takes_cores = cores if alone else request.cores
        if used_memory + takes_memory > memory or used_cores + takes_cores > cores:
            return None
        if request.cores == 0 and 0 < cores <= used_cores:
            return None
        instance = None
        if kind.mig is not None:
            instance = kind.mig.take(taken, takes_memory)
            if instance is None:
                return None
            takes_memory, takes_cores, taken = instance.memory, instance.cores, instance.taken
        free_memory, free_cores = steps(memory - used_memory, memory), steps(cores - used_cores, cores)
        used_memory, used_cores = used_memory + takes_memory, used_cores + takes_cores
        left_memory, left_cores = steps(memory - used_memory, memory), steps(cores - used_cores, cores)
        if instance is None:
            wasted = self._waste[left_memory][left_cores] - self._waste[free_memory][free_cores]
        else:
            wasted = instance.wasted
        worth = self._memory_worth * (free_memory - left_memory) + self._cores_worth * (free_cores - left_cores)
        after = None if instance is None or alone else (number, memory, cores, used_memory, used_cores, taken)
        grown = wasted + SCARCE * kind.pressure * worth
        return SliceEffect(round(wasted * _SCALE) / _SCALE, grown, worth, alone, after)

    def _groups_on(self, kind: int) -> list[tuple[DemandGroup, float]]:
        """The groups that accept a node, with the worth of each; a node with several models is judged by its first."""
        known = self._groups_by_kind.get(kind)
        if known is None:
            model = self._kinds[kind].model if kind >= 0 else ""
            known = self._groups_by_kind[kind] = [each for each in self._groups if each[0].accepts(model)]
        return known

    def _emptiness(self, idle: float, cpu: int, memory: int) -> float:
        """What it costs that the node does not become whole as soon: by the room on it before the pod comes."""
        load, weight = self._mean_load, EMPTY * self._forecast.turnover
        if load is None or cpu <= UNKNOWN:
            return weight * idle
        return weight * (idle + self._forecast.host_need**2 * min(cpu / load.cpu, memory / load.memory))

    def _node_loss(
        self, groups: list[tuple[DemandGroup, float]], idle: float, whole: int, cpu: int, memory: int
    ) -> float:
        """Unserved idle cards, less the worth of whole groups."""
        loss = 0.0
        if cpu > UNKNOWN:
            for weight, cpu_each, memory_each in self._loads:
                unserved = idle - min(cpu / cpu_each, memory / memory_each)
                if unserved > 0.0:
                    loss += weight * unserved
            loss *= UNSERVED
        for group, worth in groups:
            places = whole // group.cards
            if places and cpu > UNKNOWN:
                places = min(places, cpu // max(group.cpu, 1), memory // max(group.memory, 1))
            loss -= worth * places
        return loss


def _states(arrays: CardArrays) -> tuple[Ints, ...]:
    """What makes a `CardNumbers`, in its order."""
    return arrays.kind, arrays.memory, arrays.cores, arrays.used_memory, arrays.used_cores, arrays.taken


def _openings(arrays: CardArrays) -> tuple[Ints, Ints, Bools, Bools]:
    """What says whether a card may be taken at all."""
    return arrays.used, arrays.slots, arrays.sick, arrays.cordoned


def steps(free: int, total: int) -> int:
    """A free amount in `GRAIN` steps of the whole; a dimension that a card does not have counts as all free."""
    if total <= 0:
        return GRAIN
    return free * GRAIN // total if free > 0 else 0
