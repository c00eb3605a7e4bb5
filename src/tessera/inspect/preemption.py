"""Which pods would be evicted for a pod that fits on no node, or for a gang that does not fit, or why none would be.

The engine searches as the scheduler does. Where disruption budgets were not read, an answer says that they may keep a
pod. Other victims may be found by the time the scheduler looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.model.requests import PodRequest
from tessera.core.search.node_victims import EvictionRules, promised_victims
from tessera.core.search.preemption import Demand, Preemption
from tessera.core.search.victims import PodBook, PodTraits
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import BudgetState, Json

SWITCHED_OFF = "preemption is switched off (--preemption=false)"


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that would be evicted."""

    namespace: str
    name: str
    priority: int

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.name} (priority {self.priority})"


@dataclass(frozen=True, slots=True)
class PreemptionOutlook:
    """What the scheduler would do for a pod or a gang that does not fit."""

    node: str = ""
    """where the pod would go, or the nodes of a gang; empty if no set of victims helps"""
    victims: tuple[Victim, ...] = ()
    waits_for: tuple[Victim, ...] = ()
    """pods that leave already"""
    obstacle: str = ""
    """why no pod would be evicted"""
    knows_budgets: bool = False

    @property
    def text(self) -> str:
        if not self.node:
            return f"evicts no pod: {self.obstacle}"
        if not self.victims:
            return f"waits for {_names(self.waits_for)} on {self.node}, then it fits there"
        unless = "" if self.knows_budgets else ", unless a PodDisruptionBudget keeps them"
        return f"would preempt {_names(self.victims)} on {self.node}{unless}"


def foresee(cluster: OfflineCluster, request: PodRequest, names: Sequence[str]) -> PreemptionOutlook:
    """For a pod that fits on none of the named nodes."""
    priority = request.preempts_below
    obstacle = _find_obstacle(cluster, priority, never="its preemptionPolicy is Never")
    if obstacle or priority is None:
        return PreemptionOutlook(obstacle=obstacle)
    preemption = _preemption(cluster)
    found = preemption.find_for_pod(request, priority=priority, candidates=cluster.view.selector.candidates(names))
    if found is None:
        return PreemptionOutlook(obstacle=_obstacle(cluster, preemption.book, request, priority, names))
    return _outlook(cluster, found.node, found.victims, found.leaving)


def foresee_gang(cluster: OfflineCluster, demand: Demand, *, is_patient: bool) -> PreemptionOutlook:
    """For a gang whose members all exist and do not fit together. `is_patient`: a member preempts none."""
    never = "the preemptionPolicy of a member is Never"
    obstacle = _find_obstacle(cluster, None if is_patient else demand.priority, never=never)
    if obstacle:
        return PreemptionOutlook(obstacle=obstacle)
    found = _preemption(cluster).find(demand)
    if found is None:
        text = f"no set of pods with a priority below {demand.priority} makes all {demand.required} members fit"
        return PreemptionOutlook(obstacle=text)
    nodes = ", ".join(sorted({place.placement.node for place in found.places}))
    return _outlook(cluster, nodes, found.victims, found.leaving)


def _find_obstacle(cluster: OfflineCluster, priority: int | None, *, never: str) -> str:
    """Why no search for victims would begin; empty if one would. `never` is the reason if there is no priority."""
    lowest = cluster.view.victims.lowest_priority
    if not cluster.settings.preemption:
        return SWITCHED_OFF
    if priority is None:
        return never
    is_lowest = lowest is None or lowest >= priority
    return f"no pod that holds devices has a lower priority than {priority}" if is_lowest else ""


def _preemption(cluster: OfflineCluster) -> Preemption:
    return Preemption(cluster.view.selector, victim_book(cluster))


def victim_book(cluster: OfflineCluster) -> PodBook:
    """With the disruption budgets, if they were read."""
    budgets = cluster.state.budgets
    return cluster.view.victims if budgets is None else BudgetedBook(cluster.view.victims, budgets)


def _outlook(cluster: OfflineCluster, node: str, victims: Sequence[str], leaving: Sequence[str]) -> PreemptionOutlook:
    knows_budgets = cluster.state.budgets is not None
    return PreemptionOutlook(node, _victims(cluster, victims), _victims(cluster, leaving), knows_budgets=knows_budgets)


class BudgetedBook:
    """`PodBook` with the budgets of a state, whose pods are known by their uids."""

    def __init__(self, book: PodBook, budgets: Mapping[str, BudgetState]) -> None:
        self._book = book
        self._states = budgets
        self.members = book.members
        self.traits = book.traits

    @property
    def lowest_priority(self) -> int | None:
        return self._book.lowest_priority

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        yield from ()

    def budgets(self, uid: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, state in self._states.items() if uid in state.pods))

    def disruptions_allowed(self, budget: str) -> int:
        return self._states[budget].allowed


def with_priority(document: Json, classes: Sequence[Json]) -> Json:
    """A pod with the priority and policy of its PriorityClass, as the apiserver's admission gives it. As it is if it
    has a priority, or its class is not known."""
    spec = document["spec"]
    name = spec.get("priorityClassName", "")
    found = [each for each in classes if (each["metadata"]["name"] == name if name else each.get("globalDefault"))]
    if spec.get("priority") is not None or not found:
        return document
    [chosen, *_] = sorted(found, key=lambda each: int(each["value"]))
    policy = {"preemptionPolicy": chosen["preemptionPolicy"]} if "preemptionPolicy" in chosen else {}
    return {**document, "spec": {**policy, **spec, "priority": chosen["value"]}}


def _obstacle(cluster: OfflineCluster, book: PodBook, request: PodRequest, priority: int, names: Sequence[str]) -> str:
    """Why no set of pods helps: what keeps the pods that hold cards of the kinds asked for."""
    ledger = cluster.ledger
    kept: Counter[str] = Counter()
    promised = promised_victims(ledger, {request.uid})
    rules = EvictionRules(book, priority=priority, group=request.group, promised=promised)
    for name in names:
        for entry in ledger.pods_on(name):
            if not set(request.vendors).isdisjoint(entry.facts.grants):
                kept[_short(rules.obstacle(entry), priority)] += 1
    kept.pop("", None)
    reasons = ", ".join(f"{count} with {reason}" for reason, count in kept.most_common())
    return (
        f"no set of pods with a priority below {priority} makes it fit{f' (not evicted: {reasons})' if reasons else ''}"
    )


def _short(reason: str, priority: int) -> str:
    return f"a priority of {priority} or more" if reason.startswith("priority ") else reason


def _victims(cluster: OfflineCluster, uids: Sequence[str]) -> tuple[Victim, ...]:
    traits: list[PodTraits] = [found for uid in uids if (found := cluster.view.victims.traits(uid)) is not None]
    return tuple(Victim(each.namespace, each.name, each.priority) for each in traits)


def _names(victims: Sequence[Victim]) -> str:
    texts = [victim.text for victim in victims]
    return " and ".join(texts) if len(texts) <= 2 else f"{', '.join(texts[:-1])} and {texts[-1]}"
