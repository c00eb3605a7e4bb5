"""Which pods have to leave so that a whole gang fits: one set of victims for all members.

The search works on copies of the nodes that it looks at, as they are once everything has left that leaves already. So
it changes nothing, and may pause: callers check the result against the ledger before they use it.

Drafts are made in two ways, and the best one by the order of `victims` counts:

    by member       each member, the largest first, gets the cheapest place beside those before it (`preemption`)
    by reprieve     on the cheapest nodes all pods leave that may, then those stay without which the gang still fits,
                    the dearest priorities and the smallest pods first: few large pods instead of many small ones

Of each draft every pod stays without which the gang still fits. A gang of one gets the optimum of `preemption`. For
larger ones the set is minimal, not always the best: `tests/property/core/test_gang_preemption.py` measures how far off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

from tessera.core.gangs import Domains, GangMember, GangPlan, Placed, largest_first, plan_gang
from tessera.core.ledger import Ledger, PodEntry
from tessera.core.node_preemption import NodeSearch, best_victims
from tessera.core.preemption import NODES_AT_ONCE, Preemption
from tessera.core.requests import PodRequest
from tessera.core.selection import Selector
from tessera.core.steps import finish
from tessera.core.victims import Cost, PodBook, PodTraits, Unit, VictimSet, add_up, make_unit

SPARE_NODES = 64
"""beside one per member that are looked at for members of one kind, the cheapest first"""
MOST_TRIALS = 2_048
"""members placed, over all trials, to find out which pods of a draft can stay; larger drafts stay as they are"""
SAME_GANG = "it is a member of the same gang"


class GangVictims(NamedTuple):
    """The pods that have to leave, and where the members go then."""

    cost: Cost
    victims: tuple[str, ...]
    """uids of pods to evict, sorted; empty if it is enough to wait for those that leave"""
    leaving: tuple[str, ...]
    """uids of pods on the members' nodes that leave already, sorted"""
    places: tuple[Placed, ...]

    @property
    def rank(self) -> tuple[Cost, tuple[str, ...]]:
        """The order of sets: the smallest is the best."""
        return self.cost, self.victims


GangSearch = Generator[None, None, GangVictims | None]
"""pauses at each yield; its return value is the result"""


@dataclass(frozen=True, slots=True)
class GangDemand:
    """A gang that does not fit."""

    members: Sequence[GangMember]
    required: int
    """of the members that must be placed together"""
    priority: int
    """pods of lower priority may leave"""
    group: str = ""
    """whose pods are never victims"""
    free: frozenset[str] = frozenset()
    """uids of what is held for the gang itself"""
    fitting: tuple[Placed, ...] = ()
    """places that are free as it is; only their nodes count"""
    domains: Domains | None = None


def search(preemption: Preemption, demand: GangDemand) -> GangSearch:
    """The best set that is found; None if there is none. The empty set: it is enough to wait."""
    while not preemption.arrays.catch_up(NODES_AT_ONCE):
        yield
    best: GangVictims | None = None
    ordered = sorted(demand.members, key=largest_first)
    orders = [ordered]
    if len({member.request.shape for member in ordered}) > 1:
        orders.append(ordered[::-1])
    for order in orders:
        draft = yield from _Draft(preemption, demand, order).by_member()
        best = _better(best, draft)
    if len(ordered) > 1 and (best is None or best.victims):
        draft = yield from _Draft(preemption, demand, ordered).by_reprieve(None if best is None else best.cost.highest)
        best = _better(best, draft)
    return best


def find(preemption: Preemption, demand: GangDemand) -> GangVictims | None:
    """The same at once."""
    return finish(search(preemption, demand))


def _better(one: GangVictims | None, other: GangVictims | None) -> GangVictims | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda found: found.rank)


class _GangBook:
    """The book, with the victims that were chosen for the gang so far."""

    def __init__(self, book: PodBook, group: str) -> None:
        self._book = book
        self._group = group
        self._chosen: set[str] = set()
        self._spent: Counter[str] = Counter()

    @property
    def lowest_priority(self) -> int | None:
        return self._book.lowest_priority

    def traits(self, uid: str) -> PodTraits | None:
        traits = self._book.traits(uid)
        if traits is None:
            return None
        if self._group and traits.group == self._group:
            return traits._replace(protection=SAME_GANG)
        return traits._replace(is_leaving=True) if uid in self._chosen else traits

    def members(self, group: str) -> Collection[str]:
        return self._book.members(group)

    def budgets(self, uid: str) -> tuple[str, ...]:
        return self._book.budgets(uid)

    def disruptions_allowed(self, budget: str) -> int:
        return self._book.disruptions_allowed(budget) - self._spent[budget]

    @property
    def has_spent(self) -> bool:
        return bool(self._spent)

    def choose(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._chosen.add(uid)
            self._spent.update(self._book.budgets(uid))

    def unchoose(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._chosen.discard(uid)
            self._spent.subtract(self._book.budgets(uid))


class _Aftermath:
    """The cluster once everything has left that leaves already, and the victims that were chosen."""

    def __init__(self, source: Ledger, book: PodBook, demand: GangDemand) -> None:
        self._source = source
        self.ledger = source.copy_without_nodes()
        self.book = _GangBook(book, demand.group)
        self.leaving: dict[str, set[str]] = {}
        """by node"""
        self._gone = demand.free.union(*(nomination.victims for nomination in source.nominations.all()))
        self.victims: dict[str, PodEntry] = {}

    def look_at(self, name: str) -> None:
        """Copy a node, and those of the groups of its pods: a group leaves as a whole."""
        names = [name]
        while names:
            name = names.pop()
            if name in self.leaving:
                continue
            self.leaving[name] = set()
            self.ledger.copy_node(name, self._source)
            for entry in self._source.pods_on(name):
                uid = entry.facts.uid
                traits = self.book.traits(uid)
                if uid in self._gone or (traits is not None and traits.is_leaving):
                    self.ledger.release(uid)
                    if traits is not None:
                        self.leaving[name].add(uid)
                elif traits is not None and traits.group:
                    held = (self._source.pod(member) for member in self.book.members(traits.group))
                    names += [one.facts.node for one in held if one is not None]

    def evict(self, uids: Iterable[str]) -> set[str]:
        """The nodes where these pods were."""
        nodes = set()
        for uid in uids:
            entry = self.ledger.pod(uid)
            if entry is not None:
                self.victims[uid] = entry
                self.ledger.release(uid)
                self.book.choose([uid])
                nodes.add(entry.facts.node)
        return nodes

    def restore(self, uids: Iterable[str]) -> None:
        for uid in uids:
            entry = self.victims.pop(uid)
            self.book.unchoose([uid])
            self.ledger.put_pod(entry.facts, entry.state, observed=entry.observed)

    def units(self) -> list[Unit]:
        """What was chosen."""
        groups: dict[str, list[tuple[PodTraits, int]]] = {}
        for uid, entry in self.victims.items():
            traits = self.book.traits(uid)
            assert traits is not None  # a victim has a priority
            held = sum(holding.use.memory for holding in entry.holdings.values())
            groups.setdefault(traits.group or f"/{uid}", []).append((traits, held))
        return [
            make_unit(pods, [budget for one, _ in pods for budget in self.book.budgets(one.uid)])
            for pods in groups.values()
        ]


class _Lane:
    """The nodes for members of one kind, the cheapest first. A node's cost grows, unless something leaves it."""

    def __init__(self, world: _Aftermath, priority: int, known: Iterable[tuple[Cost, str]]) -> None:
        self._world = world
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
            self._world.look_at(name)
            found = best_victims(self._world.ledger, self._world.book, request, priority=self._priority, node=name)
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
        return self._world.book.has_spent or self._world.ledger.quotas.limits_anything


class _Draft:
    """One set of victims in the making."""

    def __init__(self, preemption: Preemption, demand: GangDemand, order: Sequence[GangMember]) -> None:
        self._preemption = preemption
        self._demand = demand
        self._order = order
        self._world = _Aftermath(preemption.ledger, preemption.book, demand)
        self._lanes: dict[Hashable, _Lane] = {}
        self._places: list[Placed] = []

    # -- ways to begin

    def by_member(self) -> GangSearch:
        spare = len(self._order) - self._demand.required
        for member in self._order:
            lane = self._lanes.get(_kind(member))
            if lane is None:
                lane = self._lanes[_kind(member)] = _Lane(self._world, self._demand.priority, self._cheapest(member))
            found = yield from lane.best(member.request, len(self._places))
            if found is None and spare == 0:
                return None
            if found is None:
                spare -= 1
            else:
                self._claim(member.request, found)
        return (yield from self._finish(_dearest_first))

    def by_reprieve(self, highest: int | None) -> GangSearch:
        """`highest`: the priority above which none has to leave."""
        for member in {_kind(member): member for member in self._order}.values():
            for _, name in self._cheapest(member):
                self._world.look_at(name)
                search = NodeSearch(
                    self._world.ledger, self._world.book, member.request, priority=self._demand.priority, node=name
                )
                # A large pod first, where a budget allows not all of them to leave.
                for unit in sorted(search.units(), key=lambda unit: (unit.cost.highest, -unit.cost.work, unit.uids)):
                    fits_budgets = all(
                        count <= self._world.book.disruptions_allowed(budget)
                        for budget, count in Counter(unit.budgets).items()
                    )
                    if fits_budgets and (highest is None or unit.cost.highest <= highest):
                        self._world.evict(unit.uids)
                if len(self._world.victims) * len(self._order) > MOST_TRIALS:
                    break
                yield
        return (yield from self._finish(_smallest_first))

    def _cheapest(self, member: GangMember) -> list[tuple[Cost, str]]:
        """Nodes with a bound of their cost."""
        preemption, demand = self._preemption, self._demand
        selector = preemption.selector
        candidates = member.candidates or selector.candidates(preemption.ledger.node_names())
        if candidates.order is not preemption.ledger.arrays.order:
            candidates = selector.candidates(candidates.names)
        bounds = preemption.arrays.bounds(member.request, demand.priority, candidates.rows)
        most = len(self._order) + SPARE_NODES
        named = frozenset(candidates.names)
        found = {place.placement.node: Cost() for place in demand.fitting if place.placement.node in named}
        for bound in islice(bounds, most):
            found.setdefault(bound.node, bound.cost)
        return [(cost, name) for name, cost in found.items()]

    def _claim(self, request: PodRequest, found: VictimSet) -> None:
        touched = {found.node, *self._world.evict(found.victims)}
        number = len(self._places)
        claimed = request.called(uid=f"gang-trial/{number}", namespace=request.namespace, name=request.name)
        self._world.ledger.reserve(claimed, found.placement, deadline=0.0)
        self._places.append(Placed(request, found.placement))
        for lane in self._lanes.values():
            for name in touched:
                lane.touch(name, number + 1)

    # -- who can stay

    def _finish(self, first_to_stay: Callable[[Unit], tuple[Any, ...]]) -> GangSearch:
        world, greedy = self._world, tuple(self._places)
        for number in range(len(greedy)):
            world.ledger.release(f"gang-trial/{number}")
        planner = _Planner(world.ledger, self._demand, self._order)
        units = world.units()
        plan = planner.plan(domains=self._demand.domains)
        if plan is None and not greedy:
            return None
        if plan is not None and len(units) * len(self._order) <= MOST_TRIALS:
            for unit in sorted(units, key=first_to_stay):
                world.restore(unit.uids)
                without = planner.plan(domains=self._demand.domains)
                if without is None:
                    world.evict(unit.uids)
                else:
                    plan = without
                yield
        places = greedy if plan is None else plan.places
        cost, uids = add_up(world.units())
        nodes = {place.placement.node for place in places}
        leaving = set[str]().union(*(world.leaving.get(name, ()) for name in nodes))
        return GangVictims(cost, uids, tuple(sorted(leaving)), places)


class _Planner:
    """Places the gang on the nodes that were looked at."""

    def __init__(self, ledger: Ledger, demand: GangDemand, order: Sequence[GangMember]) -> None:
        self._selector = Selector(ledger)
        self._required = demand.required
        known = {}
        for member in order:
            if _kind(member) not in known:
                named = frozenset(ledger.node_names() if member.candidates is None else member.candidates.names)
                names = [name for name in ledger.node_names() if name in named]
                known[_kind(member)] = self._selector.candidates(names)
        self._members = [GangMember(member.request, known[_kind(member)]) for member in order]

    def plan(self, *, domains: Domains | None) -> GangPlan | None:
        answer = plan_gang(self._selector, self._members, required=self._required, domains=domains)
        return answer if isinstance(answer, GangPlan) else None


def _kind(member: GangMember) -> Hashable:
    return member.request.shape, member.request.namespace, id(member.candidates)


def _dearest_first(unit: Unit) -> tuple[Any, ...]:
    return tuple(-priority for priority in unit.cost.priorities), unit.cost.ages, unit.uids


def _smallest_first(unit: Unit) -> tuple[Any, ...]:
    return -unit.cost.highest, -unit.cost.pods, unit.cost.work, unit.cost.ages, unit.uids
