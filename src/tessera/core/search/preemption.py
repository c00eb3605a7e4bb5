"""Which pods have to leave so that a gang fits: one set of victims for all members. A pod is a gang of one.

`victim_arrays` rules nodes out and gives each of the others a bound that no set on it can beat; `node_victims` finds a
minimal set on one node. Nodes are searched from the lowest bound on, until no bound is below the best set, so most
nodes are never looked at. For several members sets are drafted in two ways, and the best one counts:

    by member       each member, the largest first, gets the cheapest place beside those before it
    by reprieve     on the cheapest nodes all pods leave that may: few large pods instead of many small ones

Of each draft every pod stays without which the gang still fits, so the set is minimal. With domains, sets on the nodes
of one or a few of them are looked for too. Of sets with as many pods and no higher priority that one is the best whose
members are in the fewest domains: no further pod leaves to bring them together.

The search works on copies of the nodes that it looks at, so it changes nothing, and may pause at each step: callers
check its result against the ledger before they use it. `tests/property/core` measures how far it is from the best set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tessera.core.ledger.holders import GrantState, Holder, trial_hold_uid
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.ledger.transaction import Transaction
from tessera.core.model.arrays import CardArrays, Ints
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search import finish
from tessera.core.search.gang_trial import Domains, GangMember, Placed
from tessera.core.search.gangs import GangPlan, largest_first, plan_gang
from tessera.core.search.node_victims import EvictionRules, NodeSearch, NodeVictims, Scratch
from tessera.core.search.selection import Candidates, Selector
from tessera.core.search.victim_arrays import NodeBound, VictimArrays
from tessera.core.search.victims import Cost, PodBook, Unit, add_up, dearest_first, smallest_first

NODES_AT_ONCE = 256
"""columns read again between two pauses: a few milliseconds"""
MAX_TRIALS = 4_096
"""of the plain rule to find the cheapest node, after which the best one so far is taken: a second or two, in steps"""
MAX_GANG_TRIALS = 1_024
"""members placed, over all trials, to find out which pods of a draft can stay; larger drafts stay as they are"""
SPARE_NODES = 64
"""beside one per member on which all pods leave that may, the cheapest first"""
ROOMY_NODES = 16
"""with free memory that are looked at too"""
MAX_DOMAINS = 8
"""that are searched alone, those with the most of the cheapest nodes"""


@dataclass(frozen=True, slots=True)
class Demand:
    """A gang, or a pod, that does not fit."""

    members: Sequence[GangMember]
    required: int
    """of the members that must be placed together"""
    priority: int
    """pods of lower priority may leave"""
    free: frozenset[str] = frozenset()
    """uids of what is held for the gang itself"""
    fitting: tuple[Placed, ...] = ()
    """places that are free as it is; only their nodes count"""
    domains: Domains | None = None

    @classmethod
    def of_pod(cls, pod: PodRequest, candidates: Candidates, *, priority: int) -> Demand:
        """A pod is a gang of one."""
        return cls([GangMember(pod, candidates)], 1, priority)


class VictimSet(NamedTuple):
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

    @property
    def node(self) -> str:
        """Of the first member: the only one of a pod."""
        return self.places[0].placement.node


Search = Generator[None, None, VictimSet | None]
"""pauses at each yield; its return value is the result"""


class Preemption:
    """Finds victims on one ledger."""

    def __init__(self, selector: Selector, book: PodBook) -> None:
        self.selector = selector
        self.ledger: Ledger = selector.ledger
        self.book = book
        self.arrays = VictimArrays(self.ledger, book)

    def find_for_pod(self, pod: PodRequest, *, priority: int, candidates: Candidates) -> VictimSet | None:
        """For one pod that fits on none of the candidates, at once."""
        return self.find(Demand.of_pod(pod, candidates, priority=priority))

    def confirm(self, pod: PodRequest, found: VictimSet, *, priority: int) -> VictimSet | None:
        """What was found for a pod, as it is now; None if the victims are not enough, or one could stay."""
        scratch = Scratch(self.ledger, self.book, free={pod.uid})
        search = NodeSearch(scratch, self.book, pod, priority=priority, node=found.node)
        now = search.confirm(found.victims)
        return None if now is None else _for_pod(pod, now)

    def find(self, demand: Demand) -> VictimSet | None:
        """As `search`, at once."""
        return finish(self.search(demand))

    def search(self, demand: Demand) -> Search:
        """The best set that is found; None if there is none, or if no pod has a lower priority. The empty set: it is
        enough to wait."""
        lowest = self.book.lowest_priority
        if lowest is None or lowest >= demand.priority:
            return None
        while True:
            while not self.arrays.catch_up(NODES_AT_ONCE):
                yield
            shape = self.ledger.arrays.kind.shape
            best = yield from self._search(demand)
            if shape == self.ledger.arrays.kind.shape:
                return best  # They may grow while the search pauses, which is rare.

    def _search(self, demand: Demand) -> Search:
        best = yield from self._search_among(demand, None)
        if best is None or demand.domains is None:
            return best
        domains = self._promising_domains(demand)
        unions = [domains[:count] for count in range(2, len(domains))]
        for chosen in (*([domain] for domain in domains), *unions):
            if len(chosen) < best.spread:
                closer = yield from self._search_among(self._within(demand, frozenset(chosen)), best.cost)
                best = _better(best, closer) or best
        return best

    def _search_among(self, demand: Demand, limit: Cost | None) -> Search:
        """`limit`: what a set may cost that is of use."""
        best: VictimSet | None = None
        ordered = sorted(demand.members, key=largest_first)
        orders = [ordered]
        if len({member.request.shape for member in ordered}) > 1:
            orders.append(ordered[::-1])
        scratch = Scratch(self.ledger, self.book, free=demand.free.union(one.request.uid for one in ordered))
        may_share = False
        for order in orders:
            with scratch.ledger.begin() as trial:
                draft = _Draft(self, demand, order, scratch, trial)
                best = _better(best, (yield from draft.by_member(limit)))
                may_share = may_share or draft.may_share()
        if len(ordered) > 1 and (best is None or (best.victims and may_share)):
            highest = limit if best is None else best.cost
            with scratch.ledger.begin() as trial:
                draft = _Draft(self, demand, ordered, scratch, trial)
                best = _better(best, (yield from draft.by_reprieve(None if highest is None else highest.highest)))
        return best

    # -- nodes

    def candidates(self, member: GangMember) -> Candidates:
        """Of a member, as columns are now."""
        found = member.candidates
        if found is not None and found.order is self.ledger.arrays.order:
            return found
        return self.selector.candidates(self.ledger.node_names() if found is None else found.names)

    def likely_nodes(self, demand: Demand, member: GangMember) -> list[str]:
        """Nodes on which members may be placed without a victim, or could be moved, so that a pod can stay."""
        if len(demand.members) == 1:
            return []
        candidates, arrays = self.candidates(member), self.ledger.arrays
        named = frozenset(candidates.names)
        nodes = [place.placement.node for place in demand.fitting if place.placement.node in named]
        return list(dict.fromkeys((*nodes, *_roomiest(arrays, candidates.rows))))

    def bounds(self, demand: Demand, member: GangMember) -> Iterator[NodeBound]:
        return self.arrays.bounds(member.request, demand.priority, self.candidates(member).rows)

    def cheapest_nodes(self, demand: Demand, member: GangMember) -> list[str]:
        bounds = islice(self.bounds(demand, member), len(demand.members) + SPARE_NODES)
        return list(dict.fromkeys((*self.likely_nodes(demand, member), *(bound.node for bound in bounds))))

    def _promising_domains(self, demand: Demand) -> list[str]:
        """Those with the most of the cheapest nodes first."""
        assert demand.domains is not None
        by_node, counts = demand.domains.by_node, Counter[str]()
        for member in {member.kind: member for member in demand.members}.values():
            counts.update(by_node[name] for name in self.cheapest_nodes(demand, member) if name in by_node)
        return sorted(counts, key=lambda domain: (-counts[domain], domain))[:MAX_DOMAINS]

    def _within(self, demand: Demand, chosen: frozenset[str]) -> Demand:
        """The same for the nodes of these domains alone."""
        assert demand.domains is not None
        by_node = demand.domains.by_node
        narrowed: dict[Hashable, Candidates] = {}
        for member in demand.members:
            if member.kind not in narrowed:
                names = self.candidates(member).names
                narrowed[member.kind] = self.selector.candidates(
                    [name for name in names if by_node.get(name) in chosen]
                )
        return replace(demand, members=[GangMember(one.request, narrowed[one.kind]) for one in demand.members])


def _roomiest(arrays: CardArrays, rows: Ints) -> list[str]:
    """The nodes with the most free memory."""
    free = np.maximum(arrays.memory[:, rows] - arrays.used_memory[:, rows], 0).sum(axis=0)
    best = np.argsort(-free, kind="stable")[:ROOMY_NODES].tolist()
    return [arrays.names[rows[i]] for i in best if free[i] > 0]


def _better(one: VictimSet | None, other: VictimSet | None) -> VictimSet | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda found: found.rank)


def _for_pod(pod: PodRequest, found: NodeVictims) -> VictimSet:
    return VictimSet(found.cost, found.victims, found.leaving, (Placed(pod, found.placement),))


class _NodeQueue:
    """The nodes for members of one kind, the cheapest first. A node's cost grows, unless something leaves it."""

    def __init__(self, draft: _Draft, member: GangMember) -> None:
        preemption, demand = draft.preemption, draft.demand
        self._draft = draft
        self._arrays = preemption.ledger.arrays
        self._shape = self._arrays.kind.shape
        self._bounds = preemption.bounds(demand, member)
        self._next = next(self._bounds, None)
        self._heap: list[tuple[tuple[Cost, str, tuple[str, ...]], int, int, NodeVictims | None]] = []
        """rank or a bound of it, a serial number, the number of claims at that time, and what was found"""
        self._serial = 0
        self._seen: set[str] = set()
        self._touched: dict[str, int] = {}
        """node -> number of claims when it was touched last"""
        self._trials = 0
        for name in preemption.likely_nodes(demand, member):
            self._push((Cost(), name, ()), 0, None)

    def touch(self, name: str, claims: int) -> None:
        """Something was taken on the node, or has left it."""
        self._touched[name] = claims
        self._push((Cost(), name, ()), claims, None)

    def best(self, request: PodRequest, claims: int) -> Generator[None, None, NodeVictims | None]:
        while self._fill():
            (_, name, _), _, at, found = heappop(self._heap)
            if at < self._touched.get(name, 0):
                continue  # It is there once more.
            if found is not None and (at == claims or not self._draft.is_limited):
                return found
            search = self._draft.node_search(request, name)
            found = yield from search.steps()
            self._trials += search.trials
            if found is not None:
                self._push(found.rank, claims, found)
            if self._trials >= MAX_TRIALS and (best := self._best_known()) is not None:
                return best
            yield
        return None

    def _best_known(self) -> NodeVictims | None:
        current = (found for (_, name, _), _, at, found in self._heap if found and at >= self._touched.get(name, 0))
        return min(current, key=lambda found: found.rank, default=None)

    def _fill(self) -> bool:
        """Take over bounds that are not above what is known; whether there is anything."""
        while self._next is not None and (not self._heap or (self._next.cost, self._next.node, ()) <= self._heap[0][0]):
            bound = self._next
            if bound.node not in self._seen:
                self._push((bound.cost, bound.node, ()), 0, None)
            # Bounds are made as far as they are asked for, and those of arrays that have grown since are void.
            self._next = next(self._bounds, None) if self._arrays.kind.shape == self._shape else None
        return bool(self._heap)

    def _push(self, rank: tuple[Cost, str, tuple[str, ...]], claims: int, found: NodeVictims | None) -> None:
        self._serial += 1
        self._seen.add(rank[1])
        heappush(self._heap, (rank, self._serial, claims, found))


class _Draft:
    """One set of victims in the making, in one transaction on the scratch."""

    def __init__(
        self, preemption: Preemption, demand: Demand, order: Sequence[GangMember], scratch: Scratch, trial: Transaction
    ) -> None:
        self.preemption = preemption
        self.demand = demand
        self._order = order
        self._scratch = scratch
        self._trial = trial
        self._queues: dict[Hashable, _NodeQueue] = {}
        self._units: list[Unit] = []
        """that leave"""
        self._evicted: dict[str, Holder] = {}
        self._places: list[Placed] = []

    @property
    def is_limited(self) -> bool:
        """Whether a claim on one node may make another one dearer."""
        return any(unit.budgets for unit in self._units) or self._scratch.ledger.quotas.limits_anything

    def node_search(self, request: PodRequest, name: str) -> NodeSearch:
        return NodeSearch(
            self._scratch,
            self.preemption.book,
            request,
            priority=self.demand.priority,
            node=name,
            chosen=self._evicted,
        )

    # -- ways to begin

    def by_member(self, limit: Cost | None) -> Search:
        required = self.demand.required
        for number, member in enumerate(self._order):
            queue = self._queues.get(member.kind)
            if queue is None:
                queue = self._queues[member.kind] = _NodeQueue(self, member)
                yield
            found = yield from queue.best(member.request, len(self._places))
            if len(self._order) == 1:
                return None if found is None else _for_pod(member.request, found)
            if found is not None and not (found.units and len(self._places) >= required):
                self._claim(member.request, found)
                if limit is not None and len(self._evicted) > limit.pods and not self._may_try(len(self._units)):
                    return None  # Too many, and it would not be found out which of them could stay.
            elif len(self._places) + len(self._order) - number - 1 < required:
                return None
        return (yield from self._finish(dearest_first))

    def may_share(self) -> bool:
        """Whether a pod that may leave holds more than the smallest member takes: then one may do for several."""
        smallest = min((_memory_of(placement) for _, placement in self._places), default=0)
        entries = (*self._evicted.values(), *(each for each in self._scratch.ledger.pods() if each.observed))
        return any(sum(holding.use.memory for holding in entry.holdings.values()) > smallest for entry in entries)

    def by_reprieve(self, highest: int | None) -> Search:
        """`highest`: the priority above which none has to leave."""
        book, demand = self.preemption.book, self.demand
        for member in {member.kind: member for member in self._order}.values():
            rules = EvictionRules(
                book, priority=demand.priority, group=member.request.group, promised=self._scratch.promised
            )
            for name in self.preemption.cheapest_nodes(demand, member):
                search = self.node_search(member.request, name)
                yield from search.match_budgets()
                units = search.units()
                if (len(self._evicted) + sum(unit.cost.pods for unit in units)) * len(self._order) > MAX_GANG_TRIALS:
                    break
                # A large pod first, where a budget allows not all of them to leave.
                for unit in sorted(units, key=lambda unit: (unit.cost.highest, -unit.cost.work, unit.uids)):
                    if rules.allow([*self._units, unit]) and (highest is None or unit.cost.highest <= highest):
                        self._evict(unit)
                yield
        return (yield from self._finish(smallest_first))

    def _claim(self, request: PodRequest, found: NodeVictims) -> None:
        touched = {found.node}
        for unit in found.units:
            touched |= self._evict(unit)
        number = len(self._places)
        held = request.called(uid=trial_hold_uid(number), namespace=request.namespace, name=request.name)
        self._trial.put(facts_of(held, found.placement), GrantState.RESERVED)
        self._places.append(Placed(request, found.placement))
        for queue in self._queues.values():
            for name in touched:
                queue.touch(name, number + 1)

    def _evict(self, unit: Unit) -> set[str]:
        """The nodes where its pods were."""
        self._units.append(unit)
        nodes = set()
        for uid in unit.uids:
            entry = self._trial.remove(uid)
            assert entry is not None  # a unit is made of pods on the scratch
            self._evicted[uid] = entry
            nodes.add(entry.facts.node)
        return nodes

    # -- who can stay

    def _may_try(self, units: int) -> bool:
        return units * len(self._order) <= MAX_GANG_TRIALS

    def _finish(self, first_to_stay: Callable[[Unit], tuple[Any, ...]]) -> Search:
        trial, greedy, plan = self._trial, tuple(self._places), None
        if self._may_try(len(self._units)):
            for number in range(len(greedy)):
                trial.remove(trial_hold_uid(number))
            planner = _Planner(self._scratch.ledger, self.demand, self._order)
            plan = planner.plan()
            free = 0
            if plan is not None:
                taken = sorted(_memory_of(placement) for _, placement in plan.places)
                free = _free_memory(self._scratch.ledger.arrays) - sum(taken[: self.demand.required])
            for unit in sorted(self._units, key=first_to_stay) if plan is not None else ():
                if unit.cost.work > free:
                    continue  # There is no room for it beside the gang, however that is placed.
                yield
                mark = trial.mark()
                for uid in unit.uids:
                    entry = self._evicted[uid]
                    trial.put(entry.facts, entry.state, observed=entry.observed)
                without = planner.plan()
                if without is None:
                    trial.roll_back(mark)
                else:
                    plan, free = without, free - unit.cost.work
                    self._units.remove(unit)
        if plan is None and not greedy:
            return None
        places = greedy if plan is None else plan.places
        cost, uids = add_up(self._units)
        nodes = {place.placement.node for place in places}
        domains = self.demand.domains
        spread = 0 if domains is None else len({domains.by_node.get(name, f"/{name}") for name in nodes})
        return VictimSet(cost, uids, self._scratch.leaving(nodes), places, spread)


class _Planner:
    """Places the gang on the nodes that were looked at."""

    def __init__(self, ledger: Ledger, demand: Demand, order: Sequence[GangMember]) -> None:
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


def _free_memory(arrays: CardArrays) -> int:
    """In MiB, of all cards."""
    return int(np.maximum(arrays.memory - arrays.used_memory, 0).sum())


def _memory_of(placement: Placement) -> int:
    return sum(grant.memory for grants in placement.grants.values() for each in grants for grant in each)
