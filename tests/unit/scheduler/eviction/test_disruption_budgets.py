"""How much work it is to match budgets with pods, and what holds until it is done."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.scheduler.eviction.disruption_budgets import MAX_KEPT, WORK_AT_ONCE, DisruptionBudgets
from tessera.wire.objects import (
    DisruptionBudgetSpec,
    DisruptionBudgetStatus,
    LabelRequirement,
    LabelSelector,
    Metadata,
    PodDisruptionBudget,
)

MANY = 1_000


def budget(selector: LabelSelector | None, *, allowed: int = 1) -> PodDisruptionBudget:
    return PodDisruptionBudget(Metadata(), DisruptionBudgetSpec(selector), DisruptionBudgetStatus(allowed))


def labelled(**labels: str) -> PodDisruptionBudget:
    return budget(LabelSelector(labels))


def unlike(*apps: str) -> PodDisruptionBudget:
    """Expressions that no index of labels can rule out."""
    requirements = [LabelRequirement(f"l{i}", "NotIn", frozenset((app,))) for i, app in enumerate(apps)]
    return budget(LabelSelector(None, requirements))


class Budgets(DisruptionBudgets):
    """That know which pods they were told of."""

    def __init__(self, *, work_at_once: int = 1) -> None:
        super().__init__(work_at_once=work_at_once)
        self.seen: dict[tuple[str, str], None] = {}

    def put_pod(self, namespace: str, uid: str, labels: Mapping[str, str]) -> bool:
        self.seen[namespace, uid] = None
        return super().put_pod(namespace, uid, labels)

    def settled(self) -> int:
        """The number of pauses, one for each comparison."""
        return sum(1 for _ in self.settle(self.seen))


def test_an_empty_selector_matches_every_pod_of_its_namespace_and_none_matches_no_pod() -> None:
    budgets = Budgets()
    budgets.put("ns/all", budget(LabelSelector()))
    budgets.put("ns/none", budget(None))
    budgets.put_pod("ns", "a", {})
    budgets.put_pod("other", "b", {})
    budgets.settled()
    assert budgets.of_pod("ns", "a") == ("ns/all",)
    assert budgets.of_pod("other", "b") == ()


def test_a_pod_is_spared_until_its_budgets_are_matched() -> None:
    budgets = Budgets()
    budgets.put_pod("ns", "a", {"app": "web"})
    assert budgets.of_pod("ns", "a") == ()
    budgets.put("ns/web", labelled(app="other"))
    [unknown] = budgets.of_pod("ns", "a")
    assert budgets.disruptions_allowed(unknown) == 0
    budgets.settled()
    assert budgets.of_pod("ns", "a") == ()


def test_a_change_of_the_status_compares_nothing() -> None:
    budgets = Budgets()
    budgets.put("ns/web", labelled(app="web"))
    budgets.put_pod("ns", "a", {"app": "web"})
    budgets.settled()
    budgets.put("ns/web", budget(LabelSelector({"app": "web"}), allowed=7))
    assert budgets.of_pod("ns", "a") == ("ns/web",)
    assert budgets.disruptions_allowed("ns/web") == 7
    budgets.put_pod("ns", "a", {"app": "web"})
    assert budgets.of_pod("ns", "a") == ("ns/web",)


def test_a_pod_is_compared_with_the_budgets_that_its_labels_name_only() -> None:
    budgets = Budgets()
    for number in range(MANY):
        budgets.put(f"ns/b{number}", labelled(app=f"app{number}"))
    budgets.put_pod("ns", "first", {})
    assert budgets.settled() >= MANY, "each selector is compiled"
    budgets.put_pod("ns", "a", {"app": "app7"})
    assert budgets.settled() < 10, "not with a thousand"
    assert budgets.of_pod("ns", "a") == ("ns/b7",)


def test_budgets_beyond_what_any_eviction_bears_are_not_looked_for() -> None:
    budgets = Budgets()
    for number in range(MANY):
        budgets.put(f"ns/b{number:04}", budget(LabelSelector()))
    budgets.settled()
    for number in range(MANY):
        budgets.put_pod("ns", f"p{number}", {})
    assert budgets.settled() < 20 * MANY
    assert len(budgets.of_pod("ns", "p0")) == MAX_KEPT
    for number in range(MANY - 1):
        budgets.drop(f"ns/b{number:04}")
    budgets.settled()
    assert budgets.of_pod("ns", "p0") == ("ns/b0999",)


def test_one_comparison_costs_no_more_than_the_labels_of_the_pod() -> None:
    budgets = Budgets(work_at_once=10 * WORK_AT_ONCE)
    budgets.put("ns/large", unlike(*("x" * 20_000)))
    budgets.put_pod("ns", "first", {})
    budgets.settled()
    for number in range(MANY):
        budgets.put_pod("ns", f"p{number}", {"l7": "y"})
    assert budgets.settled() == 0
    assert budgets.of_pod("ns", "p0") == ("ns/large",)
