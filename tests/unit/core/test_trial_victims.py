"""Sets that are tried by the plain rule: the best one, in steps, and within a bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

from tessera.core.grants import Placement
from tessera.core.trial_victims import (
    EXHAUSTIVE,
    MAX_SETS,
    STRETCH_WORK,
    TRIAL_WORK,
    Chosen,
    Pace,
    TrialSearch,
    group_by_cards,
)
from tessera.core.victims import PodTraits, Unit, make_unit

PLACED = Placement("n1", {})


def unit(number: int, *, priority: int = 0, budget: str = "") -> Unit:
    traits = PodTraits(f"pod-{number:02}", "team", f"pod-{number:02}", priority=priority, started=number)
    return make_unit([(traits, 1)], [budget] if budget else [])


class Trial:
    """A node on which the pod fits once all `needed` units have left."""

    def __init__(self, needed: Sequence[Unit], *, most: int = 512, allowed: int = 99) -> None:
        self.needed = frozenset(needed)
        self.allowed = allowed
        self.pace = Pace()
        self.search = TrialSearch(self.pace, place=self.place, allow=self.allow, most=most)
        self.stretch = self.longest = 0
        """trials since the last pause, and the most between two"""

    def place(self, units: Iterable[Unit]) -> Placement | None:
        self.pace.spend(TRIAL_WORK)
        self.stretch += 1
        self.longest = max(self.longest, self.stretch)
        return PLACED if self.needed.issubset(units) else None

    def allow(self, units: Iterable[Unit]) -> bool:
        return sum(len(each.budgets) for each in units) <= self.allowed

    def best(self, units: Sequence[Unit], *, highest: int = 0, most_cards: int = 99) -> Chosen | None:
        cards = [frozenset({f"card-{i % 4}"}) for i in range(len(units))]
        steps = self.search.best(units, group_by_cards(cards, most_cards), highest=highest)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Chosen | None = end.value
                return found
            self.stretch = 0


@pytest.mark.parametrize("count", [EXHAUSTIVE, EXHAUSTIVE + 3])
def test_the_best_set_is_found_whatever_its_size(count: int) -> None:
    units = [unit(i) for i in range(count)]
    for needed in ([units[0]], [units[1], units[5]], [units[0], units[3], units[7]]):
        trial = Trial(needed)
        assert trial.best(units) == Chosen(tuple(needed), PLACED)


def test_a_search_pauses_after_some_trials_and_also_while_it_makes_sets() -> None:
    units = [unit(i) for i in range(12)]
    trial = Trial(units[:4])
    assert trial.best(units) is not None
    assert trial.search.trials > 2 * STRETCH_WORK // TRIAL_WORK
    assert trial.longest <= STRETCH_WORK // TRIAL_WORK + 1
    blocked = Trial(units, allowed=-1)
    steps = blocked.search.best(units, [frozenset(range(12))], highest=0)
    assert sum(1 for _ in steps) == 2**12 // STRETCH_WORK - 1, "no set may be tried, but all are made"


def test_after_the_trials_a_set_is_found_of_which_no_unit_could_stay() -> None:
    units = [unit(i) for i in range(12)]
    trial = Trial([units[2], units[6], units[11]], most=20)
    found = trial.best(units)
    assert found is not None
    assert set(found.units) == {units[2], units[6], units[11]}
    assert trial.search.trials <= 20 + len(units) + 1


def test_so_many_sets_that_they_are_not_made_still_end_in_a_minimal_one() -> None:
    units = [unit(i) for i in range(80)]
    trial = Trial(units[:40])
    found = trial.best(units)
    assert found is not None
    assert set(found.units) == set(units[:40])


def test_pods_with_a_budget_stay_where_the_budget_does_not_let_all_leave() -> None:
    guarded = [unit(i, budget="b") for i in range(40)]
    free = [unit(i) for i in range(40, 80)]

    class EitherWay(Trial):
        def place(self, units: Iterable[Unit]) -> Placement | None:
            return PLACED if len(list(units)) >= 40 else None

    trial = EitherWay([], allowed=3)
    found = trial.best(sorted([*guarded, *free]))
    assert found is not None
    assert set(found.units) == set(free)


def test_a_budget_that_lets_all_leave_does_not_matter() -> None:
    older, newer = [unit(i) for i in range(40)], [unit(i, budget="b") for i in range(40, 80)]

    class EitherWay(Trial):
        def place(self, units: Iterable[Unit]) -> Placement | None:
            return PLACED if len(list(units)) >= 40 else None

    found = EitherWay([]).best(sorted([*older, *newer]))
    assert found is not None
    assert set(found.units) == set(newer)


def test_only_sets_that_reach_the_highest_priority_are_tried() -> None:
    units = [unit(i, priority=5 if i == 4 else 0) for i in range(5)]
    trial = Trial([units[4]])
    assert trial.best(units, highest=5) == Chosen((units[4],), PLACED)
    assert trial.search.trials == 1


def test_units_of_more_cards_than_the_pod_may_use_are_not_tried_together() -> None:
    units = [unit(i) for i in range(12)]
    trial = Trial(units[:1] + units[4:5])
    assert trial.best(units, most_cards=1) == Chosen((units[0], units[4]), PLACED)
    together = sum(1 for pair in combinations(range(12), 2) if pair[0] % 4 == pair[1] % 4)
    assert trial.search.trials <= len(units) + together


def test_with_few_cards_sets_are_exact_on_a_node_with_many_units() -> None:
    units = [unit(i) for i in range(56)]
    needed = [units[3], units[7], units[11]]
    assert len(list(combinations(units, 3))) > MAX_SETS
    assert Trial(needed, most=4_096).best(units, most_cards=1) == Chosen(tuple(needed), PLACED)
