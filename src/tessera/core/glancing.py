"""The best of all nodes that is also a candidate, without knowing all candidates.

The best node of all, where it is a candidate, is the best candidate. So nodes are looked for among the candidates from
the best on, a few times; whoever does not find one that way looks the candidates up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.core.arrays import Bools, CardArrays, Ints
from tessera.core.policies.base import Floats

GLANCES = 32
"""best nodes of all that are looked for among the candidates before these are looked up: hosts fill up before cards"""


class Absent:
    """The nodes that were not among the candidates when they were last looked for.

    Most likely they are not now, so the others are looked at first. But nothing is taken for granted: of these nodes
    every one that would be better is looked for again.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._columns: Bools = np.zeros(0, dtype=np.bool_)

    def best(
        self, arrays: CardArrays, rows: Ints, preference: Floats, ranks: Ints, allowed: Callable[[str], bool]
    ) -> int | None:
        """The position of the best row that is allowed; None where it was not found soon."""
        if self._epoch != arrays.epoch:
            self._epoch, self._columns = arrays.epoch, np.zeros(len(arrays.names), dtype=np.bool_)
        aside = self._columns[rows]
        left = np.where(aside, -np.inf, preference)
        chosen: int | None = None
        for _ in range(GLANCES):
            first = best_position(left, ranks)
            if left[first] == -np.inf:
                break
            row = int(rows[first])
            if allowed(arrays.names[row]):
                chosen = first
                break
            self._columns[row] = True
            left[first] = -np.inf
        if chosen is None:
            return None
        return self._better(arrays, rows, preference, ranks, allowed, aside, chosen)

    def _better(
        self,
        arrays: CardArrays,
        rows: Ints,
        preference: Floats,
        ranks: Ints,
        allowed: Callable[[str], bool],
        aside: Bools,
        chosen: int,
    ) -> int | None:
        """The best of those put aside, where one is better than the chosen one and allowed after all."""
        mark = float(preference[chosen]), -int(ranks[chosen])
        glances = 0
        for i in np.flatnonzero(aside).tolist():
            value = float(preference[i]), -int(ranks[i])
            if value <= mark:
                continue
            glances += 1
            if glances > GLANCES:
                self._columns[:] = False
                return None
            if allowed(arrays.names[int(rows[i])]):
                self._columns[rows[i]] = False
                chosen, mark = i, value
        return chosen


def best_position(preference: Floats, ranks: Ints) -> int:
    """Of at least one: the largest preference, of equal ones the first by rank."""
    best = np.flatnonzero(preference == preference.max())
    return int(best[np.argmin(ranks[best])])
