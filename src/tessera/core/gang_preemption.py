"""Which pods have to leave so that a whole gang fits: one set of victims for all members.

The search works on copies of the nodes that it looks at, as they are once everything has left that leaves already. So
it changes nothing, and may pause: callers check the result against the ledger before they use it.

Drafts are made in two ways, and the best one by the order of `victims` counts:

    by member       each member, the largest first, gets the cheapest place beside those before it (`preemption`)
    by reprieve     on the cheapest nodes all pods leave that may, then those stay without which the gang still fits,
                    the dearest priorities and the smallest pods first: few large pods instead of many small ones

Of each draft every pod stays without which the gang still fits. A gang of one gets the optimum of `preemption`. For
larger ones the set is minimal, not always the best: `tests/property/core/test_gang_preemption.py` measures how far off.

With domains, sets on the nodes of one or a few of them are looked for too. Of sets with as many pods and no higher
priority that one is the best whose members are in the fewest domains: no further pod leaves to bring them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from tessera.core.gang_demand import GangDemand, cheapest_nodes, promising_domains, within_domains
from tessera.core.gang_trial import GangMember, Placed
from tessera.core.gangs import GangPlan, largest_first, plan_gang
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.node_preemption import NodeSearch
from tessera.core.preemption import NODES_AT_ONCE, Preemption
from tessera.core.requests import PodRequest
from tessera.core.selection import Selector
from tessera.core.steps import finish
from tessera.core.trial_cluster import TrialCluster
from tessera.core.victims import Cost, Unit, VictimSet, add_up

MAX_TRIALS = 1_024
"""members placed, over all trials, to find out which pods of a draft can stay; larger drafts stay as they are"""


class GangVictims(NamedTuple):
    """The pods that have to leave, and where the members go then."""

    cost: Cost
    victims: tuple[str, ...]
    """uids of pods to evict, sorted; empty if it is enough to wait for those that leave"""
    leaving: tuple[str, ...]
    """uids of pods on the members' nodes that leave already, sorted"""
    places: tuple[Placed, ...]
    spread: int = 0
    """domains that the members' nodes are in; 0 if none are asked for"""

    @property
    def rank(self) -> tuple[int, int, int, Cost, tuple[str, ...]]:
        """The order of sets: the smallest is the best."""
        return self.cost.highest, self.cost.pods, self.spread, self.cost, self.victims


GangSearch = Generator[None, None, GangVictims | None]
"""pauses at each yield; its return value is the result"""


def search(preemption: Preemption, demand: GangDemand) -> GangSearch:
    """The best set that is found; None if there is none. The empty set: it is enough to wait."""
    while not preemption.arrays.catch_up(NODES_AT_ONCE):
        yield
    best = yield from _search(preemption, demand, None)
    if best is None or demand.domains is None:
        return best
    domains = promising_domains(preemption, demand)
    unions = [domains[:count] for count in range(2, len(domains))]
    for chosen in (*([domain] for domain in domains), *unions):
        if len(chosen) < best.spread:
            closer = yield from _search(preemption, within_domains(preemption, demand, frozenset(chosen)), best.cost)
            best = _better(best, closer) or best
    return best


def _search(preemption: Preemption, demand: GangDemand, limit: Cost | None) -> GangSearch:
    """`limit`: what a set may cost that is of use."""
    best: GangVictims | None = None
    ordered = sorted(demand.members, key=largest_first)
    orders = [ordered]
    if len({member.request.shape for member in ordered}) > 1:
        orders.append(ordered[::-1])
    may_share = False
    for order in orders:
        draft = _Draft(preemption, demand, order)
        best = _better(best, (yield from draft.by_member(limit)))
        may_share = may_share or draft.may_share()
    if len(ordered) > 1 and (best is None or (best.victims and may_share)):
        draft = _Draft(preemption, demand, ordered)
        highest = limit if best is None else best.cost
        best = _better(best, (yield from draft.by_reprieve(None if highest is None else highest.highest)))
    return best


def find(preemption: Preemption, demand: GangDemand) -> GangVictims | None:
    """The same at once."""
    return finish(search(preemption, demand))


def _better(one: GangVictims | None, other: GangVictims | None) -> GangVictims | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda found: found.rank)


class _NodeHeap:
    """The nodes for members of one kind, the cheapest first. A node's cost grows, unless something leaves it."""

    def __init__(self, cluster: TrialCluster, priority: int, known: Iterable[tuple[Cost, str]]) -> None:
        self._cluster = cluster
        self._priority = priority
        self._heap: list[tuple[tuple[Cost, str, tuple[str, ...]], int, int, VictimSet | None]] = []
        """rank or a bound of it, a serial number, the number of claims at that time, and what was found"""
        self._serial = 0
        self._touched: dict[str, int] = {}
        """node -> number of claims when it was touched last"""
        for cost, name in known:
            self._push((cost, name, ()), 0, None)

    def touch(self, name: str, claims: int) -> None:
        """Something was taken on the node, or has left it."""
        self._touched[name] = claims
        self._push((Cost(), name, ()), claims, None)

    def best(self, request: PodRequest, claims: int) -> Generator[None, None, VictimSet | None]:
        while self._heap:
            (_, name, _), _, at, found = heappop(self._heap)
            if at < self._touched.get(name, 0):
                continue  # It is there once more.
            if found is not None and (at == claims or not self._is_limited):
                return found
            self._cluster.look_at(name)
            ledger, book = self._cluster.ledger, self._cluster.book
            found = yield from NodeSearch(ledger, book, request, priority=self._priority, node=name).steps()
            if found is not None:
                self._push(found.rank, claims, found)
            yield
        return None

    def _push(self, rank: tuple[Cost, str, tuple[str, ...]], claims: int, found: VictimSet | None) -> None:
        self._serial += 1
        heappush(self._heap, (rank, self._serial, claims, found))

    @property
    def _is_limited(self) -> bool:
        """Whether a claim on one node may make another one dearer."""
        return self._cluster.book.has_spent or self._cluster.ledger.quotas.limits_anything


class _Draft:
    """One set of victims in the making."""

    def __init__(self, preemption: Preemption, demand: GangDemand, order: Sequence[GangMember]) -> None:
        self._preemption = preemption
        self._demand = demand
        self._order = order
        self._cluster = TrialCluster(preemption.ledger, preemption.book, free=demand.free)
        self._heaps: dict[Hashable, _NodeHeap] = {}
        self._places: list[Placed] = []

    # -- ways to begin

    def by_member(self, limit: Cost | None) -> GangSearch:
        required, victims = self._demand.required, self._cluster.victims
        for number, member in enumerate(self._order):
            heap = self._heaps.get(member.kind)
            if heap is None:
                heap = self._heaps[member.kind] = _NodeHeap(
                    self._cluster, self._demand.priority, cheapest_nodes(self._preemption, self._demand, member)
                )
                yield
            found = yield from heap.best(member.request, len(self._places))
            if found is not None and not (found.victims and len(self._places) >= required):
                self._claim(member.request, found)
                if limit is not None and len(victims) > limit.pods and not self._may_try(len(victims)):
                    return None  # Too many, and it would not be found out which of them could stay.
            elif len(self._places) + len(self._order) - number - 1 < required:
                return None
        return (yield from self._finish(_dearest_first))

    def may_share(self) -> bool:
        """Whether a pod that may leave holds more than the smallest member takes: then one may do for several."""
        smallest = min((_memory_of(placement) for _, placement in self._places), default=0)
        ledger = self._cluster.ledger
        held = (
            sum(holding.use.memory for holding in entry.holdings.values())
            for entry in (*self._cluster.victims.values(), *ledger.pods())
            if entry.observed
        )
        return any(memory > smallest for memory in held)

    def by_reprieve(self, highest: int | None) -> GangSearch:
        """`highest`: the priority above which none has to leave."""
        for member in {member.kind: member for member in self._order}.values():
            for _, name in cheapest_nodes(self._preemption, self._demand, member):
                self._cluster.look_at(name)
                search = NodeSearch(
                    self._cluster.ledger, self._cluster.book, member.request, priority=self._demand.priority, node=name
                )
                yield from search.match_budgets()
                units = search.units()
                pods = sum(unit.cost.pods for unit in units)
                if (len(self._cluster.victims) + pods) * len(self._order) > MAX_TRIALS:
                    break
                # A large pod first, where a budget allows not all of them to leave.
                for unit in sorted(units, key=lambda unit: (unit.cost.highest, -unit.cost.work, unit.uids)):
                    fits_budgets = all(
                        count <= self._cluster.book.disruptions_allowed(budget)
                        for budget, count in Counter(unit.budgets).items()
                    )
                    if fits_budgets and (highest is None or unit.cost.highest <= highest):
                        self._cluster.evict(unit.uids)
                yield
        return (yield from self._finish(_smallest_first))

    def _claim(self, request: PodRequest, found: VictimSet) -> None:
        touched = {found.node, *self._cluster.evict(found.victims)}
        number = len(self._places)
        claimed = request.called(uid=f"gang-trial/{number}", namespace=request.namespace, name=request.name)
        self._cluster.ledger.reserve(claimed, found.placement, deadline=0.0)
        self._places.append(Placed(request, found.placement))
        for heap in self._heaps.values():
            for name in touched:
                heap.touch(name, number + 1)

    # -- who can stay

    def _may_try(self, units: int) -> bool:
        return units * len(self._order) <= MAX_TRIALS

    def _finish(self, first_to_stay: Callable[[Unit], tuple[Any, ...]]) -> GangSearch:
        cluster, greedy = self._cluster, tuple(self._places)
        units, plan = (yield from cluster.units()), None
        if self._may_try(len(units)):
            for number in range(len(greedy)):
                cluster.ledger.release(f"gang-trial/{number}")
            planner = _Planner(cluster.ledger, self._demand, self._order)
            plan = planner.plan()
            free = 0
            if plan is not None:
                taken = sorted(_memory_of(placement) for _, placement in plan.places)
                free = cluster.free_memory() - sum(taken[: self._demand.required])
            for unit in sorted(units, key=first_to_stay) if plan is not None else ():
                if unit.cost.work > free:
                    continue  # There is no room for it beside the gang, however that is placed.
                yield
                cluster.restore(unit.uids)
                without = planner.plan()
                if without is None:
                    cluster.evict(unit.uids)
                else:
                    plan, free = without, free - unit.cost.work
                    units.remove(unit)
        if plan is None and not greedy:
            return None
        places = greedy if plan is None else plan.places
        cost, uids = add_up(units)
        nodes = {place.placement.node for place in places}
        leaving = set[str]().union(*(cluster.leaving.get(name, ()) for name in nodes))
        domains = self._demand.domains
        spread = 0 if domains is None else len({domains.by_node.get(name, f"/{name}") for name in nodes})
        return GangVictims(cost, uids, tuple(sorted(leaving)), places, spread)


class _Planner:
    """Places the gang on the nodes that were looked at."""

    def __init__(self, ledger: Ledger, demand: GangDemand, order: Sequence[GangMember]) -> None:
        self._selector = Selector(ledger)
        self._demand = demand
        known = {}
        for member in order:
            if member.kind not in known:
                named = frozenset(ledger.node_names() if member.candidates is None else member.candidates.names)
                names = [name for name in ledger.node_names() if name in named]
                known[member.kind] = self._selector.candidates(names)
        self._members = [GangMember(member.request, known[member.kind]) for member in order]

    def plan(self) -> GangPlan | None:
        demand = self._demand
        answer = plan_gang(self._selector, self._members, required=demand.required, domains=demand.domains)
        return answer if isinstance(answer, GangPlan) else None


def _memory_of(placement: Placement) -> int:
    return sum(grant.memory for grants in placement.grants.values() for each in grants for grant in each)


def _dearest_first(unit: Unit) -> tuple[Any, ...]:
    return tuple(-priority for priority in unit.cost.priorities), unit.cost.ages, unit.uids


def _smallest_first(unit: Unit) -> tuple[Any, ...]:
    return -unit.cost.highest, -unit.cost.pods, unit.cost.work, unit.cost.ages, unit.uids
