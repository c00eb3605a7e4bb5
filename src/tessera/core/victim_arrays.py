"""What pods of each priority hold, as arrays (devices x nodes), and a bound for the victims that each node would cost.

A copy of what ledger and book know, brought up to date before it is read. Its bounds are optimistic: no set of victims
on a node costs less than the node's bound. So nodes are looked at from the lowest bound on, until the best set that was
found is not above the next bound. Pods that leave already are taken as gone, and nominations on a node make its bound
lower, never higher.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tessera.core import screen
from tessera.core.arrays import Bools, CardArrays, Ints
from tessera.core.ledger import Ledger
from tessera.core.requests import PodRequest, Request
from tessera.core.victims import NO_PRIORITY, Cost, PodBook

MOST_LEVELS = 16
"""priorities with arrays of their own; further ones share the next lower level, which keeps bounds optimistic"""

FIELDS = 9
SLOTS, MEMORY, CORES, PODS, MOST_MEMORY, MOST_CORES, LEAST_MEMORY, NEWEST, OLDEST = range(FIELDS)
"""of a card: sums, the number of pods, the largest and smallest part, and start times"""
NEVER = 2**62
"""larger than every start time and amount"""


class NodeBound(NamedTuple):
    """No set of victims on the node costs less."""

    cost: Cost
    node: str


class VictimArrays:
    """For one ledger and book."""

    def __init__(self, ledger: Ledger, book: PodBook) -> None:
        self._ledger = ledger
        self._book = book
        self._levels: dict[int, Ints] = {}
        self._order: list[int] = []
        """the levels, sorted"""
        self._leaving: Ints = np.zeros((3, 0, 0), dtype=np.int64)
        self._widest: Ints = np.zeros(0, dtype=np.int64)
        """by column: cards of the pod that holds the most"""
        self._names: list[str] = []
        self._seen = 0
        self._dirty: set[str] = set()

    def note(self, node: str) -> None:
        """Something is new about the pods on a node."""
        self._dirty.add(node)

    def catch_up(self, most: int) -> bool:
        """Read up to `most` changed nodes again; whether that was all."""
        arrays = self._ledger.arrays
        if self._leaving.shape[1:] != arrays.kind.shape:
            self._grow(arrays)
        changed = arrays.changed_since(self._seen)
        rows = range(len(arrays.names)) if changed is None else changed
        self._dirty.update(arrays.names[row] for row in rows)
        self._seen = arrays.now
        if self._names != arrays.names:
            known = self._names + [""] * (len(arrays.names) - len(self._names))
            for row, (old, new) in enumerate(zip(known, arrays.names, strict=True)):
                if old != new:
                    self._clear(row)
                    self._dirty.add(new)
            self._names = list(arrays.names)
        for _ in range(min(most, len(self._dirty))):
            self._read(self._dirty.pop())
        return not self._dirty

    def bounds(self, pod: PodRequest, priority: int, rows: Ints) -> Iterator[NodeBound]:
        """Nodes of these columns where victims may be found, the lowest bound first. The pod must fit none as it is."""
        levels = [level for level in self._order if level < priority]
        if not len(rows):
            return
        found = [self._judge(pod, request, levels, rows) for request in _distinct(pod)]
        highest = np.max([one.highest for one in found], axis=0)
        pods = np.max([one.pods for one in found], axis=0)
        lowest, newest = self._extremes(levels, rows)
        ages = found[0].ages if len(found) == 1 else -newest
        work = found[0].work if len(found) == 1 else np.zeros_like(pods)
        # A set of one pod has no other priorities and ages than these.
        others = np.where(pods > 1, lowest, 0)
        younger = np.where(pods > 1, -newest, 0)
        places = self._ledger.arrays.order.places[rows]
        order = np.lexsort((places, work, younger, ages, others, pods, highest))
        for i in order.tolist():
            if highest[i] >= NEVER:
                return
            count = int(pods[i])
            cost = Cost(
                int(highest[i]),
                count,
                (int(highest[i]), *[int(others[i])] * (count - 1)) if count else (),
                (int(ages[i]), *[int(younger[i])] * (count - 1)) if count else (),
                int(work[i]),
            )
            yield NodeBound(cost, self._ledger.arrays.names[int(rows[i])])

    # -- reading

    def _grow(self, arrays: CardArrays) -> None:
        """Larger arrays; all columns are read again."""
        shape = arrays.kind.shape
        self._levels = {level: np.zeros((FIELDS, *shape), dtype=np.int64) for level in self._levels}
        self._leaving = np.zeros((3, *shape), dtype=np.int64)
        self._widest = np.ones(shape[1], dtype=np.int64)
        self._names = []

    def _clear(self, row: int) -> None:
        self._leaving[:, :, row] = 0
        self._widest[row] = 1
        for level in self._levels.values():
            level[:, :, row] = 0

    def _read(self, name: str) -> None:
        ledger, row = self._ledger, self._ledger.arrays.row(name)
        if row < 0:
            return
        self._clear(row)
        places = ledger.arrays.places_on(name)
        claimed = ledger.nominations.victims_on(name)
        cells: dict[tuple[int, int], list[int]] = {}
        for entry in ledger.pods_on(name):
            uid = entry.facts.uid
            traits = self._book.traits(uid)
            if traits is None:
                continue
            held = [(places[uuid], holding.use) for uuid, holding in entry.holdings.items() if uuid in places]
            if traits.is_leaving or uid in claimed:
                for place, use in held:
                    self._leaving[:, place, row] += use
                continue
            if traits.protection:
                continue
            self._widest[row] = max(self._widest[row], len(held))
            level = self._level_of(traits.priority)
            for place, use in held:
                cell = cells.setdefault((level, place), [0, 0, 0, 0, 0, 0, NEVER, 0, NEVER])
                for field, amount in ((SLOTS, use.slots), (MEMORY, use.memory), (CORES, use.cores), (PODS, 1)):
                    cell[field] += amount
                cell[MOST_MEMORY] = max(cell[MOST_MEMORY], use.memory)
                cell[MOST_CORES] = max(cell[MOST_CORES], use.cores)
                cell[LEAST_MEMORY] = min(cell[LEAST_MEMORY], use.memory)
                cell[NEWEST] = max(cell[NEWEST], traits.started)
                cell[OLDEST] = min(cell[OLDEST], traits.started)
        for (level, place), cell in cells.items():
            self._levels[level][:, place, row] = cell

    def _level_of(self, priority: int) -> int:
        if priority in self._levels:
            return priority
        if len(self._levels) >= MOST_LEVELS:
            position = bisect_right(self._order, priority)
            if position:
                return self._order[position - 1]
            priority = NO_PRIORITY
            if priority in self._levels:
                return priority
        self._levels[priority] = np.zeros((FIELDS, *self._leaving.shape[1:]), dtype=np.int64)
        self._order = sorted(self._levels)
        return priority

    # -- bounds

    def _extremes(self, levels: list[int], rows: Ints) -> tuple[Ints, Ints]:
        """By column: the lowest level that occurs, and the newest start of all levels."""
        lowest = np.full(len(rows), NEVER, dtype=np.int64)
        newest = np.zeros(len(rows), dtype=np.int64)
        for level in reversed(levels):
            data = self._levels[level]
            lowest[data[PODS][:, rows].any(axis=0)] = level
            newest = np.maximum(newest, data[NEWEST][:, rows].max(axis=0, initial=0))
        return lowest, newest

    def _judge(self, pod: PodRequest, request: Request, levels: list[int], rows: Ints) -> _RequestBound:
        """One request alone on each column."""
        arrays, rules = self._ledger.arrays, self._ledger.rules[request.vendor]
        question = screen.question(pod, request, rules)
        counts = screen.card_counts(arrays, request.vendor, rows)
        able = arrays.present[rows] & ~arrays.unavailable[rows] & (counts >= rules.least_cards(request))
        unknown = arrays.odd[rows] if rules.arrays_exact else np.ones(len(rows), dtype=np.bool_)
        bound = _RequestBound.nothing(len(rows))
        gone = self._leaving[:, :, rows]
        before = _takes(arrays, question, rows, gone)
        # Where it is enough to wait for pods that leave, or may be.
        is_settled = able & gone.any(axis=(0, 1)) & (unknown | (before.sum(axis=0) >= request.count))
        bound.highest[is_settled] = NO_PRIORITY
        held = np.zeros((FIELDS, *before.shape), dtype=np.int64)
        held[LEAST_MEMORY] = held[OLDEST] = NEVER
        for level in levels:
            _add(held, self._levels[level][:, :, rows])
            after = _takes(arrays, question, rows, gone + held[:3])
            is_new = able & ~is_settled & held[PODS].any(axis=0)
            is_new &= unknown | (after.sum(axis=0) >= request.count)
            columns = np.flatnonzero(is_new)
            if len(columns):
                bound.highest[columns] = level
                cards = _CardBounds(arrays, question, rows[columns], gone[:, :, columns], held[:, :, columns])
                cards.fill(bound, columns, before[:, columns], after[:, columns], self._widest[rows[columns]])
                # The cards do not decide, or not alone: at least one pod has to leave.
                rest = columns[unknown[columns] | (bound.pods[columns] == 0)]
                bound.pods[rest] = 1
                bound.ages[rest] = -held[NEWEST][:, rest].max(axis=0)
                bound.work[rest] = held[LEAST_MEMORY][:, rest].min(axis=0)
            is_settled |= is_new
        return bound


class _RequestBound(NamedTuple):
    """By column."""

    highest: Ints
    """`NEVER` where no victims help"""
    pods: Ints
    ages: Ints
    work: Ints

    @classmethod
    def nothing(cls, size: int) -> _RequestBound:
        return cls(np.full(size, NEVER, dtype=np.int64), *(np.zeros(size, dtype=np.int64) for _ in range(3)))


class _CardBounds:
    """What the cards of some columns ask for, so that each takes the request."""

    def __init__(self, arrays: CardArrays, question: screen.Question, rows: Ints, gone: Ints, held: Ints) -> None:
        request = question.request
        total_memory, total_cores = arrays.memory[:, rows], arrays.cores[:, rows]
        short_memory = screen.memory_asked(request, total_memory) - (
            total_memory - arrays.used_memory[:, rows] + gone[MEMORY]
        )
        whole, cores = screen.cores_asked(request, total_cores)
        short_cores = cores - (total_cores - arrays.used_cores[:, rows] + gone[CORES])
        self.count = request.count
        self.all_leave = whole | question.unused_cards_only
        self.pods = np.maximum(
            1,
            np.maximum(_quotient(short_memory, held[MOST_MEMORY]), _quotient(short_cores, held[MOST_CORES])),
        )
        self.pods = np.where(self.all_leave, held[PODS], self.pods)
        self.ages = np.where(self.all_leave, -held[OLDEST], -held[NEWEST])
        least = np.maximum(short_memory, self.pods * held[LEAST_MEMORY])
        self.work = np.where(self.all_leave, held[MEMORY], least)

    def fill(self, bound: _RequestBound, columns: Ints, before: Bools, after: Bools, widest: Ints) -> None:
        """For the cheapest cards that are enough."""
        useful = after & ~before
        need = np.maximum(self.count - before.sum(axis=0), 0)
        pods = np.sort(np.where(useful, self.pods, NEVER), axis=0)
        ages = np.sort(np.where(useful, self.ages, NEVER), axis=0)
        work = np.sort(np.where(useful, self.work, NEVER), axis=0)
        chosen = np.arange(len(pods))[:, None] < need[None, :]
        last = np.maximum(need - 1, 0), np.arange(len(need))
        apart = np.where(chosen, pods, 0).sum(axis=0)
        together = np.maximum(-(-need // widest), pods[last])
        bound.pods[columns] = np.where(need == 0, 0, np.where(widest == 1, apart, together))
        bound.ages[columns] = ages[last]
        bound.work[columns] = np.where(widest == 1, np.where(chosen, work, 0).sum(axis=0), work[0])


def _add(held: Ints, level: Ints) -> None:
    """Take another level into account."""
    held[: PODS + 1] += level[: PODS + 1]
    for field in (MOST_MEMORY, MOST_CORES, NEWEST):
        np.maximum(held[field], level[field], out=held[field])
    is_there = level[PODS] > 0
    for field in (LEAST_MEMORY, OLDEST):
        np.minimum(held[field], level[field], out=held[field], where=is_there)


def _takes(arrays: CardArrays, question: screen.Question, rows: Ints, gone: Ints) -> Bools:
    """Cards of these columns that take the request once what is `gone` has left."""
    left = copy.copy(arrays)
    left.used = arrays.used.copy()
    left.used_memory = arrays.used_memory.copy()
    left.used_cores = arrays.used_cores.copy()
    left.used[:, rows] -= gone[SLOTS]
    left.used_memory[:, rows] -= gone[MEMORY]
    left.used_cores[:, rows] -= gone[CORES]
    takes: Bools = screen.judge(left, question, rows) == screen.TAKES
    return takes


def _quotient(amount: Ints, each: Ints) -> Ints:
    """How many of the largest parts make up an amount."""
    found: Ints = np.where((amount > 0) & (each > 0), -(-amount // np.maximum(each, 1)), 0)
    return found


def _distinct(pod: PodRequest) -> list[Request]:
    return list(dict.fromkeys(request for _, request in pod.requests))
