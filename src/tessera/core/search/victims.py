"""What preemption knows about pods beside their devices, and which of two sets of victims is the better one.

The order is kube-scheduler's, except that a set that breaks a disruption budget is never a choice here: pods leave
through the Eviction API, which would refuse it. The first difference decides:

    1. the lowest highest priority
    2. the fewest pods
    3. the lowest priorities, the highest of each set compared first
    4. the newest pods, the oldest of each set compared first
    5. the least work lost: of pods that have run equally long, those that hold the least memory of cards
    6. the name of the node, then the pods' uids

Each of these is kept when both sets get the same further pods. So the best set for several cards is made of the best
sets for each.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import Any, NamedTuple, Protocol

NO_PRIORITY = -(2**31) - 1
"""below every priority that an API can show"""


class PodTraits(NamedTuple):
    """A bound pod that holds devices, as preemption sees it."""

    uid: str
    namespace: str
    name: str
    priority: int = 0
    started: int = 0
    """unix seconds; when it was created if it has not started"""
    is_leaving: bool = False
    """it is being deleted: what it holds is free soon, and evicting it again changes nothing"""
    protection: str = ""
    """why it is never evicted; empty if it may be"""
    group: str = ""
    """pods of one group are evicted together or not at all; empty: it stands alone"""
    grace_s: float = 30.0
    """that it may take to end"""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodBook(Protocol):
    """The traits of all bound pods that hold devices."""

    @property
    def lowest_priority(self) -> int | None:
        """Of all of them; None if there are none."""
        ...

    def traits(self, uid: str) -> PodTraits | None: ...

    def members(self, group: str) -> Collection[str]:
        """The pods of a group, on all nodes."""
        ...

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        """Find the budgets of these pods, with pauses. Before, or after a change, a pod may have one that allows no
        eviction instead."""
        ...

    def budgets(self, uid: str) -> tuple[str, ...]:
        """The disruption budgets that hold for a pod; enough of them to see that there are several."""
        ...

    def disruptions_allowed(self, budget: str) -> int:
        """How many more of its pods may be evicted now."""
        ...


class Cost(NamedTuple):
    """What evicting some pods costs; smaller is better."""

    highest: int = NO_PRIORITY
    pods: int = 0
    priorities: tuple[int, ...] = ()
    """the highest first"""
    ages: tuple[int, ...] = ()
    """start times, negated: the oldest first"""
    work: int = 0
    """MiB held, of all cards"""


class Unit(NamedTuple):
    """Pods that leave together: one pod, or a whole group."""

    uids: tuple[str, ...]
    """sorted"""
    cost: Cost
    budgets: tuple[str, ...] = ()
    """one entry per pod and budget"""


def add_up(units: Iterable[Unit]) -> tuple[Cost, tuple[str, ...]]:
    """What these units cost together, and their pods."""
    units = list(units)
    if len(units) == 1:
        return units[0].cost, units[0].uids
    costs = [unit.cost for unit in units]
    total = Cost(
        max((cost.highest for cost in costs), default=NO_PRIORITY),
        sum(cost.pods for cost in costs),
        tuple(sorted((priority for cost in costs for priority in cost.priorities), reverse=True)),
        tuple(sorted((age for cost in costs for age in cost.ages), reverse=True)),
        sum(cost.work for cost in costs),
    )
    return total, tuple(sorted(uid for unit in units for uid in unit.uids))


def make_unit(members: Iterable[tuple[PodTraits, int]], budgets: Iterable[str]) -> Unit:
    """Of pods and the MiB that each holds."""
    pods = list(members)
    priorities = tuple(sorted((traits.priority for traits, _ in pods), reverse=True))
    cost = Cost(
        priorities[0],
        len(pods),
        priorities,
        tuple(sorted((-traits.started for traits, _ in pods), reverse=True)),
        sum(held for _, held in pods),
    )
    return Unit(tuple(sorted(traits.uid for traits, _ in pods)), cost, tuple(budgets))


def dearest_first(unit: Unit) -> tuple[Any, ...]:
    """An order in which units are reprieved: those stay that would cost the most."""
    highest, pods, priorities, ages, work = unit.cost
    return -highest, -pods, tuple(-each for each in priorities), tuple(-each for each in ages), -work, unit.uids


def smallest_first(unit: Unit) -> tuple[Any, ...]:
    """Another one: small units stay, so that few large ones leave."""
    return -unit.cost.pods, unit.cost.work, *dearest_first(unit)
