"""The growth of the loss on one node, in plain numbers: for the few columns that changed, and for cards in MIG mode.

The same account as `fragmentation_loss`, which a property test holds it to; that one is quicker for many columns. Only
here cards in MIG mode are weighed by the places that are free on them, and may give one request several instances.
What a request does to a card follows from the card's state alone and is remembered: equal cards are judged once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

import numpy as np

from tessera.core.arrays import UNKNOWN, Bools, CardArrays, Ints
from tessera.core.demand_forecast import GRAIN, PRIOR
from tessera.core.devices import MIG
from tessera.core.policies.base import Floats
from tessera.core.policies.fragmentation_loss import DIGITS, GROUP, MISSING, SCARCE, UNSERVED
from tessera.core.policies.fragmentation_mig import MigWaste, mig_waste
from tessera.core.policies.fragmentation_waste import waste_rows
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request

STATES = 128
"""of cards, remembered for one shape; a new one costs a microsecond or two"""
_SCALE = 10.0**DIGITS

State = tuple[int, int, int, int, int, int]
"""kind, memory, cores, memory in use, cores in use, slices taken: as the arrays have them"""


class Taking(NamedTuple):
    """What one slice does to a card."""

    wasted: float
    """rounded; of equal cards the one registered last is taken, as `order_cards` has it"""
    grown: float
    """waste and scarcity"""
    worth: float
    """of what it takes, in cards"""
    alone: bool
    """whether it must not share the card"""
    after: State | None
    """the card with it, where the same request may take another slice: in MIG mode"""


class Judged(NamedTuple):
    """A card in some state."""

    free: float
    """worth of its free part, in cards"""
    takings: tuple[Taking | None, ...]
    """by request of the pod; None where it does not fit"""


Open = list[tuple[Judged, int, bool]]
"""cards that may be taken, with their free slots and whether nobody uses them"""


class Kind(NamedTuple):
    """What is the same for all cards of a kind."""

    vendor: str
    pressure: float
    mig: MigWaste | None


class NodeGrowth:
    """One shape on one node at a time."""

    def __init__(self, pod: PodRequest) -> None:
        outlook = self._outlook = pod.outlook or PRIOR
        self._host = pod.host
        self._requests = [request for container in pod.containers for request in container.requests]
        self._waste = waste_rows(outlook)
        self._memory_worth, self._cores_worth = outlook.worth(1, 0), outlook.worth(0, 1)
        self._loads = [(weight, max(cpu, 1.0), max(memory, 1.0)) for weight, cpu, memory in outlook.loads]
        self._groups = [(size, GROUP * sqrt(part) * size) for size, part in outlook.groups]
        self._kinds: list[Kind] = []
        self._known: dict[State, Judged] = {}

    def on(self, arrays: CardArrays, column: int) -> float:
        """How much the loss grows with the pod there."""
        if len(self._kinds) < len(arrays.kinds):
            self._kinds = list(self._known_kinds(arrays))
        idle, whole, cards = 0.0, 0, 0
        places: Open = []
        states = zip(*[array[:, column].tolist() for array in _states(arrays)], strict=True)
        openings = [array[:, column].tolist() for array in _openings(arrays)]
        for state, used, slots, sick, cordoned in zip(states, *openings, strict=True):
            if state[0] < 0:
                continue
            cards += 1
            if sick or cordoned:
                continue
            judged = self._known.get(state) or self._judge(state)
            idle += judged.free
            whole += used == 0
            if used < slots:
                places.append((judged, slots - used, used == 0))
        cpu, memory = int(arrays.free_cpu[column]), int(arrays.free_memory[column])
        before = self._node_loss(idle, whole, cards, cpu, memory)
        grown = 0.0
        for number, request in enumerate(self._requests):
            chosen = self._chosen(places, number, request.count)
            grown += MISSING * (request.count - len(chosen))
            for taking, unused in chosen:
                grown += taking.grown
                idle -= taking.worth
                whole -= unused
        if self._host is not None and cpu > UNKNOWN:
            cpu, memory = max(cpu - self._host.cpu, 0), max(memory - self._host.memory, 0)
        return round((grown + self._node_loss(idle, whole, cards, cpu, memory) - before) * _SCALE) / _SCALE

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

    def _known_kinds(self, arrays: CardArrays) -> Iterator[Kind]:
        for kind in arrays.kinds:
            mig = mig_waste(self._outlook, kind.sample) if kind.sample.mode == MIG else None
            yield Kind(kind.vendor, self._outlook.pressure.get(kind.sample.model, 0.0), mig)

    def _chosen(self, places: Open, number: int, count: int) -> list[tuple[Taking, bool]]:
        """Where the waste grows least, and whether a card is opened; fewer than asked for where cards are missing."""
        if count == 1:
            best, opened = None, False
            for judged, _, unused in places:
                taking = judged.takings[number]
                if taking is None or (taking.alone and not unused):
                    continue
                if best is None or taking.wasted <= best.wasted:
                    best, opened = taking, unused
            return [] if best is None else [(best, opened)]
        found = [
            (taking, slots, unused)
            for judged, slots, unused in reversed(places)
            if (taking := judged.takings[number]) is not None and (unused or not taking.alone)
        ]
        chosen: list[tuple[Taking, bool]] = []
        for first, slots, unused in sorted(found, key=lambda each: each[0].wasted):
            for taking in self._one_by_one(first, number, min(slots, count - len(chosen))):
                chosen.append((taking, unused and taking is first))
        return chosen

    def _one_by_one(self, first: Taking, number: int, most: int) -> Iterator[Taking]:
        """The slices that one card gives to one request."""
        taking: Taking | None = first
        while taking is not None and most > 0:
            yield taking
            most -= 1
            state = taking.after
            taking = None if state is None else (self._known.get(state) or self._judge(state)).takings[number]

    def _judge(self, state: State) -> Judged:
        kind, memory, cores, used_memory, used_cores, _ = state
        free_memory, free_cores = steps(memory - used_memory, memory), steps(cores - used_cores, cores)
        judged = Judged(
            self._memory_worth * free_memory + self._cores_worth * free_cores,
            tuple(
                self._taking(state, request) if request.vendor == self._kinds[kind].vendor else None
                for request in self._requests
            ),
        )
        if len(self._known) >= STATES:
            self._known.clear()
        self._known[state] = judged
        return judged

    def _taking(self, state: State, request: Request) -> Taking | None:
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
        return Taking(round(wasted * _SCALE) / _SCALE, grown, worth, alone, after)

    def _node_loss(self, idle: float, whole: int, cards: int, cpu: int, memory: int) -> float:
        """Unserved idle cards, less the worth of whole groups."""
        loss = 0.0
        if cpu > UNKNOWN:
            for weight, cpu_each, memory_each in self._loads:
                unserved = idle - min(cpu / cpu_each, memory / memory_each)
                if unserved > 0.0:
                    loss += weight * unserved
            loss *= UNSERVED
        for size, worth in self._groups:
            if cards >= size:
                loss -= worth * (whole // size)
        return loss


def _states(arrays: CardArrays) -> tuple[Ints, ...]:
    """What makes a `State`, in its order."""
    return arrays.kind, arrays.memory, arrays.cores, arrays.used_memory, arrays.used_cores, arrays.taken


def _openings(arrays: CardArrays) -> tuple[Ints, Ints, Bools, Bools]:
    """What says whether a card may be taken at all."""
    return arrays.used, arrays.slots, arrays.sick, arrays.cordoned


def steps(free: int, total: int) -> int:
    """Of a free amount, in `GRAIN` steps of the whole; what a card has none of counts as all free."""
    if total <= 0:
        return GRAIN
    return free * GRAIN // total if free > 0 else 0
