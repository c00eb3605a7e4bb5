"""The best victims where cards do not decide alone: sets are tried by the plain rule, from the best on.

Exact up to `EXHAUSTIVE` units, and beyond them while the sets of a size are few and the trials last. Otherwise the set
is minimal: no unit of it could stay. All work is counted (`Pace`), so that a search pauses after some milliseconds
whatever it does; what changes while it pauses is for the caller to check.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from heapq import heapify, heappop
from itertools import chain, combinations
from math import comb
from typing import NamedTuple

from tessera.core.grants import Placement
from tessera.core.victims import Cost, Unit, add_up

MAX_TRIALS = 512
"""on one node; each takes some tenths of a millisecond"""
EXHAUSTIVE = 9
"""units up to which all sets are tried: 2 to the power of this is `MAX_TRIALS`"""
MAX_SETS = 2_048
"""of one size that are put in order"""
MAX_GROUPS = 256
"""of units, by the cards that they hold"""
TRIAL_WORK = 16
"""of a trial, where making a set is 1"""
STRETCH_WORK = 256
"""between two pauses: 5 to 10 ms"""

Units = tuple[Unit, ...]
Positions = tuple[int, ...]
"""of units"""
Group = frozenset[int]
"""positions of units that hold parts of as many cards as the pod may use"""


class Chosen(NamedTuple):
    """Units that leave, and where the pod goes then."""

    units: Units
    placement: Placement


Trials = Generator[None, None, Chosen | None]
"""pauses at each yield"""


class Pace:
    """Counts work, and says when it is time for a pause."""

    def __init__(self) -> None:
        self.total = 0
        """work of the whole search, so far"""
        self._work = 0

    def spend(self, work: int) -> None:
        self.total += work
        self._work += work

    def pauses(self) -> Iterator[None]:
        """None, or one."""
        if self._work >= STRETCH_WORK:
            self._work = 0
            yield


class TrialSearch:
    """On one node."""

    def __init__(
        self,
        pace: Pace,
        *,
        place: Callable[[Iterable[Unit]], Placement | None],
        allow: Callable[[Iterable[Unit]], bool],
        most: int = MAX_TRIALS,
    ) -> None:
        """`place`: where the pod goes once these units have left; `allow`: whether the budgets let them leave."""
        self._pace = pace
        self._place = place
        self._allow = allow
        self._most = most
        self.trials = 0

    def best(self, units: Sequence[Unit], groups: Sequence[Group], *, highest: int) -> Trials:
        """The best of all sets that reach the `highest` priority and are within one of the groups: further units free
        nothing that the pod could use."""
        for batch in _batches(len(units), groups):
            if batch is None:
                return (yield from self._minimal(units))
            ranked = yield from self._rank(batch, units, highest)
            while ranked:
                if self.trials >= self._most:
                    return (yield from self._minimal(units))
                yield from self._pace.pauses()
                _, chosen = heappop(ranked)
                placement = self._try(chosen)
                if placement is not None:
                    return Chosen(chosen, placement)
        return None

    def _rank(
        self, sets: Iterable[Positions], units: Sequence[Unit], highest: int
    ) -> Generator[None, None, list[tuple[tuple[Cost, tuple[str, ...]], Units]]]:
        """Those that may be tried, as a heap: the best first."""
        ranked = []
        for positions in sets:
            self._pace.spend(1)
            yield from self._pace.pauses()
            chosen = tuple(units[i] for i in positions)
            if max(unit.cost.highest for unit in chosen) == highest and self._allow(chosen):
                ranked.append((add_up(chosen), chosen))
        heapify(ranked)
        return ranked

    def _minimal(self, units: Sequence[Unit]) -> Trials:
        """All of them, less those that can stay, the dearest first, as kube-scheduler does it. Where the budgets do not
        let all leave, those with a budget stay before others."""
        keeps_budgets = not self._allow(units)
        chosen = list(units)
        for unit in sorted(units, key=lambda unit: (keeps_budgets and bool(unit.budgets), unit.cost, unit.uids))[::-1]:
            yield from self._pace.pauses()
            rest = [each for each in chosen if each is not unit]
            if self._try(rest) is not None:
                chosen = rest
        placement = self._try(chosen)
        return Chosen(tuple(chosen), placement) if placement is not None and self._allow(chosen) else None

    def _try(self, units: Iterable[Unit]) -> Placement | None:
        self.trials += 1
        return self._place(units)


def _batches(count: int, groups: Sequence[Group]) -> Iterator[Iterable[Positions] | None]:
    """All sets of so many units that are within a group: each is better than those of later batches, if all units are
    single pods. None instead of sets that are too many."""
    if count <= EXHAUSTIVE:
        yield chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1))
        return
    for size in range(1, count + 1):
        if comb(count, size) <= MAX_SETS:
            yield (each for each in combinations(range(count), size) if any(group.issuperset(each) for group in groups))
        elif sum(comb(len(group), size) for group in groups) <= MAX_SETS:
            yield dict.fromkeys(chain.from_iterable(combinations(sorted(group), size) for group in groups))
        else:
            yield None
            return


def group_by_cards(cards: Sequence[frozenset[str]], most: int) -> list[Group]:
    """For each choice of `most` cards, the units that hold a part of one of them; `cards` are those of each unit."""
    everything = sorted(frozenset[str]().union(*cards))
    if most >= len(everything) or comb(len(everything), most) > MAX_GROUPS:
        return [frozenset(range(len(cards)))]
    groups = (
        frozenset(i for i, held in enumerate(cards) if not held.isdisjoint(choice))
        for choice in map(frozenset, combinations(everything, most))
    )
    return list(dict.fromkeys(groups))
