"""Which pods have to leave one node so that a pod fits there: a minimal set, found by reprieve.

A pod may leave if it has a lower priority, is not protected, its disruption budget allows it, and its whole group may
leave. Pods that leave already cost nothing. From the lowest priority on, all that may leave do; once the pod fits, as
many as possible stay: the dearest first, once more the smallest first, and once more those on crowded cards first. The
same is done for the pods of each card alone. The best of these sets is the result: no pod of it could stay, and none
has a higher priority than needed.

Two things keep a reprieve from a set that exists: budgets that do not let all leave at once, and the plain rule, which
is greedy where a pod asks for several things, and so may fail with more room. Then sets are tried one by one, the
cheapest first, as far as `MAX_SETS`.

A search works on copies of nodes (`Scratch`), so it may pause. Callers `confirm` what it has found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

from tessera.core.ledger.holders import GrantState, Holder
from tessera.core.ledger.ledger import Ledger
from tessera.core.ledger.transaction import Transaction
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search import finish
from tessera.core.search.victims import (
    NO_PRIORITY,
    Cost,
    PodBook,
    PodTraits,
    Unit,
    add_up,
    dearest_first,
    make_unit,
    smallest_first,
)

MAX_SETS = 512
"""tried one by one on a node: all sets of 9 units; each takes some tenths of a millisecond"""
MAX_MATCHING = 16
"""pauses in which the budgets of a node's pods are matched: pods that are left then are spared for now"""
WORK_OF_A_POD = 2
"""to see whether it may leave"""
WORK_OF_A_TRIAL = 16
"""of the plain rule"""


class NodeVictims(NamedTuple):
    """What has to leave a node, and where the preemptor goes then."""

    node: str
    units: tuple[Unit, ...]
    """to evict; none if it is enough to wait for pods that leave"""
    leaving: tuple[str, ...]
    """uids of pods on the node that leave already, sorted"""
    placement: Placement

    @property
    def cost(self) -> Cost:
        return add_up(self.units)[0]

    @property
    def victims(self) -> tuple[str, ...]:
        """Uids of the pods to evict, sorted."""
        return add_up(self.units)[1]

    @property
    def rank(self) -> tuple[Cost, str, tuple[str, ...]]:
        """The order of sets: the smallest is the best."""
        return self.cost, self.node, self.victims


Search = Generator[None, None, NodeVictims | None]
"""pauses at each yield; its return value is the result"""


class Scratch:
    """A ledger with copies of the nodes that a search looks at, once everything has left that leaves already."""

    def __init__(self, source: Ledger, book: PodBook, *, free: Collection[str] = (), given: Iterable[str] = ()) -> None:
        """`free`: uids of what the preemptor itself holds or claims; `given`: pods that leave anyway."""
        self._source = source
        self._book = book
        self._free = frozenset(free)
        self.promised = promised_victims(source, self._free)
        self._gone = self._free.union(self.promised, given)
        self.ledger = source.copy_without_nodes(self._free)
        self._leaving: dict[str, frozenset[str]] = {}

    def look_at(self, name: str) -> None:
        """Copy a node, and those of the groups of its pods: a group leaves as a whole."""
        names = [name]
        while names:
            name = names.pop()
            if name in self._leaving:
                continue
            gone = set()
            for entry in self._source.pods_on(name):
                uid = entry.facts.uid
                traits = self._book.traits(uid)
                if uid in self._gone or (traits is not None and traits.is_leaving):
                    gone.add(uid)
                elif traits is not None and traits.group:
                    held = (self._source.pod(member) for member in self._book.members(traits.group))
                    names += [one.facts.node for one in held if one is not None]
            self.ledger.copy_node(name, self._source, without=gone)
            self._leaving[name] = frozenset(gone - self._free)

    def leaving(self, names: Iterable[str]) -> tuple[str, ...]:
        """Pods on these nodes that leave already, sorted."""
        return tuple(sorted(frozenset[str]().union(*(self._leaving.get(name, ()) for name in names))))


def promised_victims(ledger: Ledger, claimants: Collection[str]) -> frozenset[str]:
    """The victims of all nominations but those of the claimants."""
    others = (each for each in ledger.nominations.all() if each.facts.uid not in claimants)
    return frozenset[str]().union(*(each.victims for each in others))


class EvictionRules:
    """Which pods may leave for one preemptor, and how many of them the disruption budgets allow."""

    def __init__(self, book: PodBook, *, priority: int, group: str, promised: Iterable[str]) -> None:
        """`promised`: pods that are to be evicted anyway. No budget shows those whose eviction is not accepted yet."""
        self._book = book
        self._priority = priority
        self._group = group
        self.promised = frozenset(promised)
        self._spent: Counter[str] | None = None

    def obstacle(self, entry: Holder) -> str:
        """Why a pod may not leave; empty if it may."""
        traits = self._book.traits(entry.facts.uid)
        if traits is None or entry.state is not GrantState.BOUND or not entry.observed or entry.facts.problem:
            return "what it holds is not settled"
        if traits.priority >= self._priority:
            return f"priority {traits.priority} is not below {self._priority}"
        if traits.protection:
            return traits.protection
        if traits.group and traits.group == self._group:
            return "it belongs to the same gang"
        budgets = self._book.budgets(entry.facts.uid)
        if len(budgets) > 1:
            return f"more than one PodDisruptionBudget: {', '.join(budgets)}"
        spent = [budget for budget in budgets if self._left(budget) < 1]
        return f"PodDisruptionBudget {spent[0]} allows no eviction" if spent else ""

    def unit(self, entry: Holder, ledger: Ledger) -> Unit | None:
        """The pod with its group; None if one of them may not leave."""
        traits = self._book.traits(entry.facts.uid)
        uids = self._book.members(traits.group) if traits is not None and traits.group else (entry.facts.uid,)
        members: list[tuple[PodTraits, int]] = []
        budgets: list[str] = []
        for uid in uids:
            member, one = ledger.pod(uid), self._book.traits(uid)
            if one is None or one.is_leaving or uid in self.promised:
                continue
            if member is None or self.obstacle(member):
                return None
            members.append((one, sum(holding.use.memory for holding in member.holdings.values())))
            budgets += self._book.budgets(uid)
        unit = make_unit(members, budgets) if members else None
        return unit if unit is not None and self.allow([unit]) else None

    def allow(self, units: Iterable[Unit]) -> bool:
        """Whether the budgets let all these leave."""
        counts = Counter(budget for unit in units for budget in unit.budgets)
        return all(count <= self._left(budget) for budget, count in counts.items())

    def _left(self, budget: str) -> int:
        if self._spent is None:
            pods = [uid for uid in self.promised if (one := self._book.traits(uid)) and not one.is_leaving]
            self._spent = Counter(name for uid in pods for name in self._book.budgets(uid))
        return self._book.disruptions_allowed(budget) - self._spent[budget]


class NodeSearch:
    """One question about one node."""

    def __init__(
        self,
        scratch: Scratch,
        book: PodBook,
        pod: PodRequest,
        *,
        priority: int,
        node: str,
        chosen: Iterable[str] = (),
        fewest_first: bool = False,
    ) -> None:
        """`chosen`: victims on the scratch that have left it. `fewest_first`: the number of pods comes before their
        highest priority, because they only move."""
        scratch.look_at(node)
        self._scratch = scratch
        self._ledger = scratch.ledger
        self._book = book
        self._pod = pod
        self._priority = priority
        self.node = node
        self._fewest_first = fewest_first
        self._rules = EvictionRules(book, priority=priority, group=pod.group, promised=scratch.promised.union(chosen))
        self._entries: dict[str, Holder] = {}
        """of all pods that may leave"""
        self._cards: dict[tuple[str, ...], frozenset[str]] = {}
        """by unit, the cards of this node of which it has a part"""
        self.trials = 0
        """of the plain rule, so far"""

    @property
    def work(self) -> int:
        """So far, in units of about 10 microseconds."""
        return WORK_OF_A_POD * len(self._ledger.pods_on(self.node)) + WORK_OF_A_TRIAL * self.trials

    def run(self) -> NodeVictims | None:
        """The result at once; None if no set helps."""
        return finish(self.steps())

    def steps(self) -> Search:
        if any(vendor not in self._ledger.rules for vendor in self._pod.vendors):
            return None
        with self._ledger.begin() as trial:
            placement = self._fit()
            if placement is not None:
                return self._found((), placement)
            yield from self.match_budgets()
            return (yield from self._search(trial))

    def confirm(self, victims: Collection[str]) -> NodeVictims | None:
        """These victims, as it is now; None if they are not enough, one of them could stay or may not leave."""
        units = [unit for unit in self.units() if not frozenset(victims).isdisjoint(unit.uids)]
        if add_up(units)[1] != tuple(sorted(victims)) or not self._rules.allow(units):
            return None
        with self._ledger.begin() as trial:
            placement = self._try(trial, units)
            if placement is None or any(
                self._try(trial, [each for each in units if each is not unit]) is not None for unit in units
            ):
                return None
            return self._found(units, placement)

    # -- what may leave

    def match_budgets(self) -> Generator[None, None, None]:
        """Comes before `units`."""
        yield from islice(self._book.match_budgets(self._guarded()), MAX_MATCHING)

    def _guarded(self) -> Iterator[str]:
        """The pods whose budgets are asked for."""
        yield from self._rules.promised
        for entry in self._ledger.pods_on(self.node):
            traits = self._book.traits(entry.facts.uid)
            if traits is not None and traits.priority < self._priority:
                yield from self._book.members(traits.group) if traits.group else (entry.facts.uid,)

    def units(self) -> list[Unit]:
        """What may be evicted here, the cheapest first."""
        found: dict[tuple[str, ...], Unit] = {}
        vendors = frozenset(self._pod.vendors)
        for entry in self._ledger.pods_on(self.node):
            if vendors.isdisjoint(entry.facts.grants):
                continue
            unit = self._rules.unit(entry, self._ledger)
            if unit is not None:
                same = unit._replace(cost=unit.cost._replace(highest=NO_PRIORITY)) if self._fewest_first else unit
                found[unit.uids] = same
        return sorted(found.values(), key=lambda unit: (unit.cost, unit.uids))

    # -- which of it

    def _search(self, trial: Transaction) -> Search:
        units = self.units()
        for uid in (uid for unit in units for uid in unit.uids):
            entry = self._ledger.pod(uid)
            assert entry is not None  # units are made of pods on the scratch
            self._entries[uid] = entry
        self._cards = {unit.uids: self._cards_of(unit) for unit in units}
        for highest in sorted({unit.cost.highest for unit in units}):
            level = [unit for unit in units if unit.cost.highest <= highest]
            found = yield from self._reprieve(trial, level)
            if found is None and self._may_be_missed(level):
                found = yield from self._one_by_one(trial, level, highest)
            if found is not None:
                return found
        return None

    def _reprieve(self, trial: Transaction, units: Sequence[Unit]) -> Search:
        """Of these units those that have to leave, if it is enough that all do."""
        found = []
        for group in self._groups(units):
            start = trial.mark()
            self._evict(trial, group)
            mark, placement = trial.mark(), self._fit()
            for ordered in self._orders(group) if placement is not None else ():
                assert placement is not None
                chosen = yield from self._put_back(trial, ordered, placement)
                if self._rules.allow(chosen.units):
                    found.append(chosen)
                trial.roll_back(mark)
            trial.roll_back(start)
            if placement is None and len(group) == len(units):
                return None
        return min(found, key=lambda one: one.rank, default=None)

    def _groups(self, units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
        """All units, and those of each card. Where one card is all that matters, the latter are enough."""
        if not self._is_for_one_card():
            yield units
        for uuid in self._ledger.devices(self.node):
            group = [unit for unit in units if uuid in self._cards[unit.uids]]
            if group:
                yield group

    def _orders(self, units: Sequence[Unit]) -> list[list[Unit]]:
        """In which units are put back. Where the budgets do not let all leave, those with a budget come first."""
        holders = Counter(uuid for unit in units for uuid in self._cards[unit.uids])
        spares = not self._rules.allow(units)

        def crowded_first(unit: Unit) -> tuple[Any, ...]:
            return -max((holders[uuid] for uuid in self._cards[unit.uids]), default=0), *smallest_first(unit)

        found: list[list[Unit]] = []
        for key in (dearest_first, smallest_first, crowded_first):
            ordered = sorted(units, key=lambda unit: (not (spares and unit.budgets), *key(unit)))
            if ordered not in found:
                found.append(ordered)
        return found

    def _cards_of(self, unit: Unit) -> frozenset[str]:
        """Of this node."""
        entries = (self._entries[uid] for uid in unit.uids)
        return frozenset(uuid for entry in entries if entry.facts.node == self.node for uuid in entry.holdings)

    def _is_for_one_card(self) -> bool:
        asked = [request for _, request in self._pod.requests]
        is_plain = all(self._ledger.rules[request.vendor].arrays_exact for request in asked)
        return is_plain and sum(each.count for each in asked) == 1 and not self._ledger.quotas.limits_anything

    def _put_back(
        self, trial: Transaction, ordered: Sequence[Unit], placement: Placement
    ) -> Generator[None, None, NodeVictims]:
        """Put units back beside which the pod still fits, several at once while that goes well. `placement`: where it
        goes without them all."""
        chosen: list[Unit] = []
        position, size = 0, max(1, len(ordered) // 2)
        while position < len(ordered):
            yield
            some, mark = ordered[position : position + size], trial.mark()
            self._restore(trial, some)
            found = self._fit()
            if found is not None:
                placement, position, size = found, position + size, 2 * size
                continue
            trial.roll_back(mark)
            if len(some) == 1:
                chosen.append(some[0])
                position += 1
            size = max(1, len(some) // 2)
        return self._found(chosen, placement)

    def _may_be_missed(self, gone: Sequence[Unit]) -> bool:
        """Whether a set may be enough though the reprieve has found none."""
        pod, rules = self._pod, self._ledger.rules
        is_greedy = (
            len(pod.requests) > 1 or bool(pod.matches) or any(not rules[each].arrays_exact for each in pod.vendors)
        )
        return is_greedy or not self._rules.allow(gone)

    def _one_by_one(self, trial: Transaction, units: Sequence[Unit], highest: int) -> Search:
        """The cheapest set that is enough and may leave, of those that reach the highest priority."""
        sizes = (combinations(units, size) for size in range(1, len(units) + 1))
        for chosen in sorted(islice(chain.from_iterable(sizes), MAX_SETS), key=add_up):
            if max(unit.cost.highest for unit in chosen) == highest and self._rules.allow(chosen):
                yield
                placement = self._try(trial, chosen)
                if placement is not None:
                    return self._found(chosen, placement)
        return None

    # -- on the scratch

    def _try(self, trial: Transaction, units: Iterable[Unit]) -> Placement | None:
        """Where the pod goes without these units."""
        mark = trial.mark()
        self._evict(trial, units)
        placement = self._fit()
        trial.roll_back(mark)
        return placement

    def _evict(self, trial: Transaction, units: Iterable[Unit]) -> None:
        for uid in (uid for unit in units for uid in unit.uids):
            trial.remove(uid)

    def _restore(self, trial: Transaction, units: Iterable[Unit]) -> None:
        for entry in (self._entries[uid] for unit in units for uid in unit.uids):
            trial.put(entry.facts, entry.state, observed=entry.observed)

    def _fit(self) -> Placement | None:
        self.trials += 1
        answer = self._ledger.fit(self._pod, self.node)
        return answer if isinstance(answer, Placement) else None

    def _found(self, units: Iterable[Unit], placement: Placement) -> NodeVictims:
        return NodeVictims(self.node, tuple(units), self._scratch.leaving([self.node]), placement)
