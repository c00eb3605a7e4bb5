"""The best of all nodes that is also a candidate, without knowing all candidates.

The best node of all, where it is a candidate, is the best candidate. So nodes are looked for among the candidates from
the best on, a few times; whoever does not find one that way looks the candidates up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tessera.core.arrays import CardArrays, Ints
from tessera.core.policies.base import Floats

GLANCES = 32
"""best nodes of all that are looked for among the candidates before these are looked up: hosts fill up before cards"""

OUT = -np.inf
"""preference of a column that is not to be chosen"""


class Absent:
    """The nodes that were not among the candidates when they were last looked for.

    Most likely they are not now, so the others are looked at first. But nothing is taken for granted: of these nodes
    every one that would be better is looked for again.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._columns: list[int] = []

    def best(self, arrays: CardArrays, preference: Floats, allowed: Callable[[str], bool]) -> int | None:
        """The best column that is allowed, by preference and then by name; None where it was not found soon."""
        if self._epoch != arrays.epoch or len(self._columns) > GLANCES:
            self._epoch, self._columns = arrays.epoch, []
        aside = self._columns
        left = preference
        if aside:
            left = preference.copy()
            left[aside] = OUT
        chosen = self._first(arrays, left, allowed)
        return None if chosen is None else self._better(arrays, preference, allowed, aside=aside, chosen=chosen)

    def _first(self, arrays: CardArrays, left: Floats, allowed: Callable[[str], bool]) -> int | None:
        found: list[int] = []
        for _ in range(GLANCES):
            column = best_position(left, arrays.ranks)
            if left[column] == OUT:
                break
            if allowed(arrays.names[column]):
                self._columns = self._columns + found
                return column
            if not found:
                left = left.copy()
            found.append(column)
            left[column] = OUT
        self._columns = self._columns + found
        return None

    def _better(
        self, arrays: CardArrays, preference: Floats, allowed: Callable[[str], bool], *, aside: list[int], chosen: int
    ) -> int:
        """The best of those put aside, where one is better than the chosen one and allowed after all."""
        ranks = arrays.ranks
        mark = float(preference[chosen]), -int(ranks[chosen])
        for column in aside:
            value = float(preference[column]), -int(ranks[column])
            if value > mark and value[0] != OUT and allowed(arrays.names[column]):
                self._columns = [other for other in self._columns if other != column]
                chosen, mark = column, value
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
