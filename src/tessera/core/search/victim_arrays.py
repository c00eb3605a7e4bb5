"""What pods of each priority hold, as arrays (devices x nodes), and a bound for the victims that each node would cost.

A copy of what ledger and book know, brought up to date before it is read. Its bounds are optimistic: no set of victims
on a node costs less than the node's bound. So nodes are looked at from the lowest bound on, until the best set that was
found is not above the next bound. Pods that leave already are taken as gone, and nominations on a node make its bound
lower, never higher.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tessera.core.fit import screen
from tessera.core.fit.card_rules import amount_checks
from tessera.core.fit.card_rules.base import Columns, Question
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import USE_COLUMNS, Bools, CardArrays, Ints
from tessera.core.model.requests import PodRequest, Request
from tessera.core.search.victims import NO_PRIORITY, Cost, PodBook

MAX_LEVELS = 16
"""priorities with arrays of their own; further ones share the next lower level, which keeps bounds optimistic"""
STARTS = 6
"""start times that are kept per card and level, the newest ones"""

SLOTS, MEMORY, CORES, PODS, MAX_MEMORY, MAX_CORES, LEAST_MEMORY, OLDEST, NEWEST = range(9)
"""of a card: sums, the number of pods, the largest and smallest part, and start times; `STARTS` of them from the last
field on, the newest first"""
FIELDS = NEWEST + STARTS
AMOUNTS = len(USE_COLUMNS)
"""the first fields: what each of `USE_COLUMNS` has less when the pods leave"""
LARGEST = {"used": SLOTS, "used_memory": MAX_MEMORY, "used_cores": MAX_CORES}
"""fields with the most that one pod gives back, or more; of `pods` that is 1"""
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
        self._leaving: Ints = np.zeros((AMOUNTS, 0, 0), dtype=np.int64)
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
        """Nodes of these columns where victims may be found, the lowest bound first. The pod must fit none as it is.

        Priorities are looked at one after the other, and only as far as the caller goes on.
        """
        arrays, count = self._ledger.arrays, len(self._ledger.arrays.names)
        # Of most columns, all are looked at: a part of an array costs more than a slice of it.
        columns: Columns = rows
        if 2 * len(rows) > count:
            named, rows, columns = rows, np.arange(count, dtype=np.int64), slice(0, count)
        requests = [_RequestSearch(self._ledger, pod, request, columns) for request in _distinct(pod)]
        left = np.all([request.is_able for request in requests], axis=0)
        if isinstance(columns, slice):
            is_named = np.zeros(count, dtype=np.bool_)
            is_named[named] = True
            left &= is_named
        gone = self._leaving[:, :, columns]
        # Where it is enough to wait for pods that leave, or may be.
        waits = left & gone.any(axis=(0, 1))
        for request in requests:
            waits &= request.look(gone)
        for row in sorted(rows[waits].tolist(), key=arrays.order.places.__getitem__):
            yield NodeBound(Cost(), arrays.names[row])
        left &= ~waits
        held: Ints | None = None
        lowest = np.full(len(rows), NEVER, dtype=np.int64)
        for level in (each for each in self._order if each < priority):
            data = self._levels[level][:, :, columns]
            lowest[(lowest == NEVER) & data[PODS].any(axis=0)] = level
            held = data if held is None else _added(held, data)
            fits = left & (lowest < NEVER)
            for request in requests:
                fits &= request.fits_without(gone + held[:AMOUNTS])
            if fits.any():
                left &= ~fits
                parts = [request.bound(gone, held, self._widest[columns]) for request in requests]
                yield from self._ordered(parts, rows, fits, held[NEWEST].max(axis=0), level=level, lowest=lowest)

    def _ordered(
        self, parts: Sequence[_Bound], rows: Ints, fits: Bools, newest: Ints, *, level: int, lowest: Ints
    ) -> Iterator[NodeBound]:
        """The bounds of the columns that fit at one level, the lowest first."""
        arrays, found = self._ledger.arrays, np.flatnonzero(fits)
        newest = newest[found]
        parts = [_Bound(part.pods[found], part.ages[found], part.work[found]) for part in parts]
        pods = np.max([part.pods for part in parts], axis=0)
        ages = parts[0].ages if len(parts) == 1 else -newest
        work = parts[0].work if len(parts) == 1 else np.zeros_like(pods)
        # A set of one pod has no other priorities and ages than these.
        others = np.where(pods > 1, lowest[found], 0)
        younger = np.where(pods > 1, -newest, 0)
        for i in np.lexsort((arrays.order.places[rows[found]], work, younger, ages, others, pods)).tolist():
            more = int(pods[i]) - 1
            priorities = (level, *[int(others[i])] * more)
            starts = (int(ages[i]), *[int(younger[i])] * more)
            cost = Cost(level, more + 1, priorities, starts, int(work[i]))
            yield NodeBound(cost, arrays.names[int(rows[found[i]])])

    # -- reading

    def _grow(self, arrays: CardArrays) -> None:
        """Larger arrays; all columns are read again."""
        shape = arrays.kind.shape
        self._levels = {level: _no_pods(shape) for level in self._levels}
        self._leaving = np.zeros((AMOUNTS, *shape), dtype=np.int64)
        self._widest = np.ones(shape[1], dtype=np.int64)
        self._names = []

    def _clear(self, row: int) -> None:
        self._leaving[:, :, row] = 0
        self._widest[row] = 1
        for level in self._levels.values():
            level[:, :, row] = 0
            level[LEAST_MEMORY, :, row] = level[OLDEST, :, row] = NEVER

    def _read(self, name: str) -> None:
        ledger, row = self._ledger, self._ledger.arrays.row(name)
        if row < 0:
            return
        self._clear(row)
        places = ledger.arrays.places_on(name)
        awaited = ledger.nominations.victims_on(name)
        leaving: set[str] = set()
        cells: dict[tuple[int, int], list[int]] = {}
        for entry in ledger.pods_on(name):
            uid = entry.facts.uid
            traits = self._book.traits(uid)
            if traits is None:
                continue
            held = [(places[uuid], holding.use) for uuid, holding in entry.holdings.items() if uuid in places]
            if traits.is_leaving or uid in awaited:
                leaving.add(uid)
                continue
            if traits.protection:
                continue
            self._widest[row] = max(self._widest[row], len(held))
            level = self._level_of(traits.priority)
            for place, use in held:
                cell = cells.setdefault((level, place), [0, 0, 0, 0, 0, 0, NEVER, NEVER, *[0] * STARTS])
                for field, amount in ((SLOTS, use.slots), (MEMORY, use.memory), (CORES, use.cores), (PODS, 1)):
                    cell[field] += amount
                cell[MAX_MEMORY] = max(cell[MAX_MEMORY], use.memory)
                cell[MAX_CORES] = max(cell[MAX_CORES], use.cores)
                cell[LEAST_MEMORY] = min(cell[LEAST_MEMORY], use.memory)
                cell[NEWEST:] = sorted((*cell[NEWEST:], traits.started), reverse=True)[:STARTS]
                cell[OLDEST] = min(cell[OLDEST], traits.started)
        for (level, place), cell in cells.items():
            self._levels[level][:, place, row] = cell
        if leaving:
            self._read_leaving(name, leaving)

    def _read_leaving(self, name: str, leaving: set[str]) -> None:
        """What is free once these pods have left and nominations have what they claim, beyond what is free now."""
        scratch = self._ledger.copy_without_nodes()
        scratch.copy_node(name, self._ledger, without=leaving)
        now, later = self._ledger.node(name), scratch.node(name)
        arrays, row = self._ledger.arrays, self._ledger.arrays.row(name)
        places = arrays.places_on(name)
        for card, after in zip(now.cards if now else (), later.cards if later else (), strict=True):
            place = places.get(card.device.uuid)
            if place is not None:
                self._leaving[:, place, row] = [getattr(card, name) - getattr(after, name) for name in USE_COLUMNS]

    def _level_of(self, priority: int) -> int:
        if priority in self._levels:
            return priority
        if len(self._levels) >= MAX_LEVELS:
            position = bisect_right(self._order, priority)
            if position:
                return self._order[position - 1]
            priority = NO_PRIORITY
            if priority in self._levels:
                return priority
        self._levels[priority] = _no_pods(self._leaving.shape[1:])
        self._order = sorted(self._levels)
        return priority


class _Bound(NamedTuple):
    """Of one request, by column."""

    pods: Ints
    ages: Ints
    work: Ints


class _RequestSearch:
    """One request on some columns."""

    def __init__(self, ledger: Ledger, pod: PodRequest, request: Request, columns: Columns) -> None:
        arrays, rules = ledger.arrays, ledger.rules[request.vendor]
        self._arrays = arrays
        self._columns = columns
        self._question = screen.question(pod, request, rules)
        counts = screen.card_counts(arrays, request.vendor, columns)
        is_usable = arrays.present[columns] & ~arrays.unavailable[columns]
        # One card in MIG mode may be enough for several.
        self.is_able: Bools = is_usable & (arrays.odd[columns] | (counts >= rules.least_cards(request)))
        self._is_unknown: Bools = arrays.odd[columns] | (not rules.arrays_exact)
        """where the arrays cannot tell"""
        self._before: Bools = np.zeros((0, 0), dtype=np.bool_)
        """cards that take the request once those that leave have left"""
        self._after: Bools = self._before
        """and once pods up to some priority have left as well"""

    def look(self, gone: Ints) -> Bools:
        """Where it may be enough that some pods leave already. Comes first."""
        self._before = self._takes(gone)
        return self._enough(self._before)

    def fits_without(self, gone: Ints) -> Bools:
        """Where enough cards take the request without this, or may."""
        self._after = self._takes(gone)
        return self._enough(self._after)

    def _enough(self, takes: Bools) -> Bools:
        enough: Bools = self._is_unknown | (np.count_nonzero(takes, axis=0) >= self._question.request.count)
        return enough

    def bound(self, gone: Ints, held: Ints, widest: Ints) -> _Bound:
        """What the victims for this request cost at least, where it `fits_without` them."""
        cards = _CardCosts(self._arrays, self._question, self._columns, gone, held)
        bound = cards.cheapest(self._before, self._after, widest)
        # The cards do not decide, or not alone: at least one pod has to leave.
        rest = self._is_unknown | (bound.pods == 0)
        least = held[LEAST_MEMORY].min(axis=0)
        return _Bound(
            np.where(rest, 1, bound.pods),
            np.where(rest, -held[NEWEST].max(axis=0), bound.ages),
            np.where(rest, least, bound.work),
        )

    def _takes(self, gone: Ints) -> Bools:
        """Cards that take the request once what is `gone` has left."""
        arrays, columns = self._arrays, self._columns
        takes: Bools = screen.judge(arrays.without(gone, columns), self._question, columns) == screen.TAKES
        return takes


class _CardCosts:
    """What has to leave each card of some columns at least, so that it takes the request."""

    def __init__(self, arrays: CardArrays, question: Question, rows: Columns, gone: Ints, held: Ints) -> None:
        left = arrays.without(gone, rows)
        some, all_leave = np.zeros_like(held[PODS]), np.zeros(held[PODS].shape, dtype=np.bool_)
        short_memory = some
        for rule in amount_checks(question):
            short = rule.all_wanted(question, left, rows) - rule.all_free(question, left, rows)
            if rule.alone:
                all_leave |= short > 0
                continue
            if rule.used == "used_memory":
                short_memory = short
            largest = held[LARGEST[rule.used]] if rule.used in LARGEST else np.ones_like(short)
            some = np.maximum(some, _quotient(short, largest))
        self._count = question.request.count
        self._pods = np.where(all_leave, held[PODS], np.maximum(some, 1))
        # So many pods have to leave that the oldest of them is no newer than this.
        oldest = np.take_along_axis(held[NEWEST:], np.clip(self._pods - 1, 0, STARTS - 1)[None], axis=0)[0]
        self._ages = np.where(all_leave, -held[OLDEST], -oldest)
        least = np.maximum(short_memory, self._pods * np.where(held[PODS] > 0, held[LEAST_MEMORY], 0))
        self._work = np.where(all_leave, held[MEMORY], least)

    def cheapest(self, before: Bools, after: Bools, widest: Ints) -> _Bound:
        """For the cheapest cards that are enough; no pods where the cards take the request `before` as well.

        A pod that holds several cards (`widest` of the node) may free several.
        """
        useful = after & ~before
        need = np.maximum(self._count - np.count_nonzero(before, axis=0), 0)
        ordered = (np.where(useful, amounts, NEVER) for amounts in (self._pods, self._ages, self._work))
        if self._count == 1:
            pods, ages, work = (amounts.min(axis=0, keepdims=True) for amounts in ordered)
        else:
            pods, ages, work = (np.sort(amounts, axis=0) for amounts in ordered)
        chosen = np.arange(len(pods))[:, None] < need[None, :]
        last = np.maximum(need - 1, 0), np.arange(len(need))
        apart = np.where(chosen, pods, 0).sum(axis=0)
        together = np.maximum(-(-need // widest), pods[last])
        return _Bound(
            np.where(need == 0, 0, np.where(widest == 1, apart, together)),
            ages[last],
            np.where(widest == 1, np.where(chosen, work, 0).sum(axis=0), work[0]),
        )


def _no_pods(shape: tuple[int, ...]) -> Ints:
    level: Ints = np.zeros((FIELDS, *shape), dtype=np.int64)
    level[LEAST_MEMORY] = level[OLDEST] = NEVER
    return level


def _added(held: Ints, level: Ints) -> Ints:
    """Two levels together."""
    total: Ints = np.empty_like(held)
    np.add(held[: PODS + 1], level[: PODS + 1], out=total[: PODS + 1])
    for field in (MAX_MEMORY, MAX_CORES):
        np.maximum(held[field], level[field], out=total[field])
    for field in (LEAST_MEMORY, OLDEST):
        np.minimum(held[field], level[field], out=total[field])
    total[NEWEST:] = np.sort(np.concatenate((held[NEWEST:], level[NEWEST:])), axis=0)[: -STARTS - 1 : -1]
    return total


def _quotient(amount: Ints, each: Ints) -> Ints:
    """How many of the largest parts make up an amount."""
    found: Ints = np.where((amount > 0) & (each > 0), -(-amount // np.maximum(each, 1)), 0)
    return found


def _distinct(pod: PodRequest) -> list[Request]:
    return list(dict.fromkeys(request for _, request in pod.requests))
