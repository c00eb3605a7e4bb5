"""Budgets are matched as by comparing each pod with each selector, whatever changes in between."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.search import finish
from tessera.scheduler.eviction.disruption_budgets import MAX_KEPT, NOT_MATCHED, DisruptionBudgets, Steps
from tessera.wire.objects import DisruptionBudgetSpec, LabelRequirement, LabelSelector, Metadata, PodDisruptionBudget
from tests.support.strategies import examples

KEYS, VALUES = "abc", "xyz"
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "")
STEPS = 120


class World:
    """Pods and budgets, beside the same by comparing everything with everything."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.budgets = DisruptionBudgets(work_at_once=1)
        self.selectors: dict[str, LabelSelector | None] = {}
        self.pods: dict[str, dict[str, str]] = {}
        self.settling: list[Steps] = []

    def step(self) -> None:
        rng, budget, uid = self.rng, f"b{self.rng.randrange(2 * MAX_KEPT):02}", self.rng.choice("pq")
        match rng.choice(("put", "put", "drop", "pod", "settle", "settle", "settle", "give up", "finish")):
            case "put":
                self.selectors[budget] = self.selector()
                spec = DisruptionBudgetSpec(self.selectors[budget])
                self.budgets.put(f"ns/{budget}", PodDisruptionBudget(Metadata(budget, namespace="ns"), spec))
            case "drop":
                self.selectors.pop(budget, None)
                self.budgets.drop(f"ns/{budget}")
            case "pod" if rng.random() < 0.3:
                self.pods.pop(uid, None)
                self.budgets.drop_pod("ns", uid)
            case "pod":
                self.pods[uid] = self.labels()
                self.budgets.put_pod("ns", uid, self.pods[uid])
            case "settle":
                # Several searches may wait at a time.
                self.settling = [*self.settling, self.budgets.settle(self.seen())][-2:]
                for _ in range(rng.randrange(12)):
                    next(rng.choice(self.settling), None)
            case "give up":
                self.settling.clear()
            case "finish":
                finish(self.budgets.settle(self.seen()))
                self.compare(is_settled=True)

    def seen(self) -> list[tuple[str, str]]:
        return [("ns", uid) for uid in "pq"]

    def labels(self) -> dict[str, str]:
        return {key: self.rng.choice(VALUES) for key in KEYS if self.rng.random() < 0.6}

    def selector(self) -> LabelSelector | None:
        rng = self.rng
        requirements = [
            LabelRequirement(rng.choice(KEYS), rng.choice(OPERATORS), self.values()) for _ in range(rng.randrange(4))
        ]
        labels = self.labels() if rng.random() < 0.3 else None
        return LabelSelector(labels, requirements or None) if rng.random() < 0.95 else None

    def values(self) -> frozenset[str] | None:
        found = frozenset(value for value in VALUES if self.rng.random() < 0.6)
        return found if found or self.rng.random() < 0.5 else None

    def compare(self, *, is_settled: bool) -> None:
        for uid, labels in self.pods.items():
            selectors = self.selectors.items()
            expected = sorted(f"ns/{name}" for name, one in selectors if one is not None and one.matches(labels))
            found = self.budgets.of_pod("ns", uid)
            if not is_settled and found == (f"ns/{NOT_MATCHED}",):
                assert self.budgets.disruptions_allowed(found[0]) == 0
            elif len(expected) <= MAX_KEPT:
                assert list(found) == expected
            else:
                assert len(found) == MAX_KEPT
                assert set(found) <= set(expected)


@given(st.integers(0, 2**32))
@examples(4)
def test_as_by_comparing_each_pod_with_each_selector(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
        world.compare(is_settled=False)
    finish(world.budgets.settle(world.seen()))
    world.compare(is_settled=True)
