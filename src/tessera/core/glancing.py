"""The best of all nodes that is also a candidate, without knowing all candidates.

The best node of all, where it is a candidate, is the best candidate. So nodes are looked for among the candidates from
the best on, a few times; whoever does not find one that way looks the candidates up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tessera.core.arrays import Bools, CardArrays, Ints
from tessera.core.policies.base import Floats

GLANCES = 32
"""best nodes of all that are looked for among the candidates before these are looked up: hosts fill up before cards"""

FEW = 8
"""changed columns up to which comparing them one by one is quicker than looking at all"""

OUT = -np.inf
"""preference of a column that is not to be chosen"""


@dataclass(slots=True)
class Leader:
    """The column that was best when a shape was last asked about, absent ones aside, and what that rests on."""

    epoch: int = -1
    seen: int = 0
    """place in the log of columns"""
    absent: int = 0
    """version of what is known to be absent"""
    column: int = -1
    mark: tuple[float, int] = (OUT, 0)
    """preference and place in the order of names: no column had a larger one"""
    likeness: int = -1
    """of the candidates"""


class Absent:
    """The nodes that were not among the candidates when they were last looked for.

    Most likely they are not now, so the others are looked at first. But nothing is taken for granted: of these nodes
    every one that would be better is looked for again; in a rush (`best_again`) one at a time, in turn.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._columns: list[int] = []
        self._version = 0
        """changes with the columns"""
        self._turn = 0

    def best(self, arrays: CardArrays, preference: Floats, allowed: Callable[[str], bool]) -> int | None:
        """The best column that is allowed, by preference and then by name; None where it was not found soon."""
        if self._epoch != arrays.epoch or len(self._columns) > GLANCES:
            self._epoch = arrays.epoch
            self._know([])
        aside = self._columns
        left = preference
        if aside:
            left = preference.copy()
            left[aside] = OUT
        chosen = self._first(arrays, left, allowed)
        return None if chosen is None else self._better(arrays, preference, allowed, aside=aside, chosen=chosen)

    def best_again(
        self,
        leader: Leader,
        arrays: CardArrays,
        possible: Bools,
        allowed: Callable[[str], bool],
        *,
        sign: int,
        likeness: int,
    ) -> int | None:
        """The best column, from the leader and what changed since it was; None where that does not tell.

        Columns that did not change were not better than the leader, so whatever is not worse than the leader was is the
        best. Absent columns are believed to be absent from all candidates that are alike, as long as they do not change
        themselves; but one after the other, with each decision, is looked for again.
        """
        if leader.epoch != arrays.epoch or leader.absent != self._version:
            return None
        changed = arrays.changed_since(leader.seen)
        if changed is None or len(changed) > FEW:
            return None
        aside, scores, ranks = self._columns, arrays.score, arrays.ranks
        chosen, mark = leader.column, leader.mark
        if chosen in changed:
            chosen = -1
        for column in changed:
            if column in aside:
                return None
            if possible[column]:
                value = sign * float(scores[column]), -int(ranks[column])
                if value >= mark:
                    chosen, mark = column, value
        if chosen < 0 or not allowed(arrays.names[chosen]):
            return None
        if aside:
            if leader.likeness != likeness:
                return None
            self._turn = (self._turn + 1) % len(aside)
            column = aside[self._turn]
            if possible[column] and sign * scores[column] >= mark[0] and allowed(arrays.names[column]):
                return None
        leader.seen, leader.column, leader.mark = arrays.now, chosen, mark
        return chosen

    def note(self, leader: Leader, arrays: CardArrays, preference: Floats, column: int, *, likeness: int) -> None:
        """A column that `best` has just found."""
        leader.epoch, leader.seen, leader.absent = arrays.epoch, arrays.now, self._version
        leader.column, leader.mark = column, (float(preference[column]), -int(arrays.ranks[column]))
        leader.likeness = likeness

    def _know(self, columns: list[int]) -> None:
        self._columns = columns
        self._version += 1

    def _first(self, arrays: CardArrays, left: Floats, allowed: Callable[[str], bool]) -> int | None:
        chosen: int | None = None
        found: list[int] = []
        for _ in range(GLANCES):
            column = best_position(left, arrays.ranks)
            if left[column] == OUT:
                break
            if allowed(arrays.names[column]):
                chosen = column
                break
            if not found:
                left = left.copy()
            found.append(column)
            left[column] = OUT
        if found:
            self._know(self._columns + found)
        return chosen

    def _better(
        self, arrays: CardArrays, preference: Floats, allowed: Callable[[str], bool], *, aside: list[int], chosen: int
    ) -> int:
        """The best of those put aside, where one is better than the chosen one and allowed after all."""
        if not aside:
            return chosen
        ranks = arrays.ranks
        mark = float(preference[chosen]), -int(ranks[chosen])
        for column, preferred, rank in zip(aside, preference[aside].tolist(), ranks[aside].tolist(), strict=True):
            if (preferred, -rank) > mark and allowed(arrays.names[column]):
                self._know([other for other in self._columns if other != column])
                chosen, mark = column, (preferred, -rank)
        return chosen


def best_position(preference: Floats, ranks: Ints) -> int:
    """Of at least one: the largest preference, of equal ones the first by rank."""
    first = preference.argmax()
    best = (preference == preference[first]).nonzero()[0]
    return int(first if len(best) == 1 else best[ranks[best].argmin()])


def best_first(preference: Floats, ranks: Ints) -> Iterator[int]:
    """Positions from the best; sorting everything is put off until the first choice turns out not to do."""
    if not len(preference):
        return
    first = best_position(preference, ranks)
    yield first
    for i in np.lexsort((ranks, -preference)).tolist():
        if i != first:
            yield i
