"""Victims for gangs against the best of all sets, on clusters small enough to try every one.

For every gang: the victims are enough, none of them is needless, and they may leave. How often the set is the best one,
and how many more pods leave otherwise, is counted on a fixed sample, and bounded. `GANGS=10000 pytest -s
tests/property/core/search/test_gang_preemption.py` takes a larger sample.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.ledger.ledger import facts_of
from tessera.core.search.gang_trial import Domains, GangMember
from tessera.core.search.gangs import GangMisfit, plan_gang
from tessera.core.search.preemption import Demand, Preemption, VictimSet
from tessera.core.search.selection import Selected
from tessera.core.search.victims import Cost, PodTraits, Unit, add_up, make_unit
from tests.support.builders import Cluster, cluster, gpu_pod, node
from tests.support.pod_book import PlainBook

MEMORY = 8_000
"""MiB of a card"""
PRIORITY = 10
GANGS = int(os.environ.get("GANGS", "100"))
BEST, MISSED, CLOSEST = 0.97, 0.02, 0.97
"""share of gangs of several members that get the best set, of those that get none though there is one, and of those
with domains that are in as few as a set of as many pods allows"""
if os.environ.get("GANGS"):
    pytestmark = pytest.mark.timeout(0)


@dataclass
class Case:
    """A full cluster and a gang that does not fit."""

    built: Cluster
    book: PlainBook
    members: list[GangMember]
    misfit: GangMisfit

    def find(self, domains: Domains | None = None) -> VictimSet | None:
        preemption = Preemption(self.built.selector, self.book)
        demand = Demand(self.members, len(self.members), priority=PRIORITY, fitting=self.misfit.places, domains=domains)
        return preemption.find(demand)

    def units(self) -> list[Unit]:
        """What may leave."""
        groups: dict[str, list[PodTraits]] = {}
        for uid, one in self.book.pods.items():
            groups.setdefault(one.group or f"/{uid}", []).append(one)
        found = []
        for name, pods in groups.items():
            staying = [one for one in pods if not one.is_leaving]
            may_leave = all(one.priority < PRIORITY and not one.protection for one in staying)
            if staying and may_leave and name != "team/own":
                budgets = [budget for one in staying for budget in self.book.budgets(one.uid)]
                found.append(make_unit([(one, self.memory_of(one.uid)) for one in staying], budgets))
        return found

    def memory_of(self, uid: str) -> int:
        entry = self.built.ledger.pod(uid)
        assert entry is not None
        return sum(holding.use.memory for holding in entry.holdings.values())

    def allows(self, units: Sequence[Unit]) -> bool:
        counts = Counter(budget for unit in units for budget in unit.budgets)
        return all(count <= self.book.allowed[budget] for budget, count in counts.items())

    def fits_without(self, victims: Sequence[str], names: Collection[str] | None = None) -> bool:
        """Whether all members fit at the same time on these nodes, or on all, by trying every way."""
        gone = {*victims, *(uid for uid, one in self.book.pods.items() if one.is_leaving)}
        ledger = self.built.ledger
        rooms: list[list[tuple[int, int]]] = []
        for name in ledger.node_names() if names is None else names:
            view = ledger.node(name)
            assert view is not None
            free = {card.device.uuid: [card.device.slots, card.device.memory] for card in view.cards}
            for entry in ledger.pods_on(name):
                if entry.facts.uid not in gone:
                    for uuid, holding in entry.holdings.items():
                        free[uuid][0] -= holding.use.slots
                        free[uuid][1] -= holding.use.memory
            rooms.append([(slots, memory) for slots, memory in free.values()])
        asks = sorted(
            ((asked.count, asked.memory) for member in self.members for _, asked in member.request.requests),
            reverse=True,
        )
        return _place(rooms, asks)

    def is_missed_without(self, victims: Sequence[str]) -> bool:
        """Whether the planner finds no place for the gang once these have left."""
        gone = {*victims, *(uid for uid, one in self.book.pods.items() if one.is_leaving)}
        entries = [entry for uid in sorted(gone) if (entry := self.built.ledger.pod(uid)) is not None]
        for entry in entries:
            self.built.ledger.release(entry.facts.uid)
        answer = plan_gang(self.built.selector, self.members, required=len(self.members))
        for entry in entries:
            self.built.ledger.observe_pod(entry.facts)
        return isinstance(answer, GangMisfit)

    def best(self) -> tuple[Cost, tuple[str, ...]] | None:
        """Of all sets the best one with which the gang fits."""
        units = self.units()
        sets = [chosen for size in range(len(units) + 1) for chosen in combinations(units, size)]
        for cost, victims in sorted(add_up(chosen) for chosen in sets if self.allows(chosen)):
            if self.fits_without(victims):
                return cost, victims
        return None

    def closest(self, cost: Cost, domains: Domains) -> int:
        """The fewest domains that the gang can be in, of all sets with as many pods and no higher priority."""
        units, values = self.units(), sorted(set(domains.by_node.values()))
        sets = [chosen for size in range(len(units) + 1) for chosen in combinations(units, size)]
        costs = [add_up(chosen) for chosen in sets if self.allows(chosen)]
        equal = [victims for total, victims in costs if total[:2] == cost[:2]]
        for count in range(1, len(values) + 1):
            for chosen in combinations(values, count):
                names = [name for name, value in domains.by_node.items() if value in chosen]
                if any(self.fits_without(victims, names) for victims in equal):
                    return count
        raise AssertionError  # the set that was found is one of them


def _place(rooms: list[list[tuple[int, int]]], asks: Sequence[tuple[int, int]]) -> bool:
    if not asks:
        return True
    return any(_place(after, asks[1:]) for after in _ways(rooms, *asks[0]))


def _ways(rooms: list[list[tuple[int, int]]], count: int, memory: int) -> Iterator[list[list[tuple[int, int]]]]:
    for i, cards in enumerate(rooms):
        takes = [j for j, (slots, free) in enumerate(cards) if slots > 0 and free >= memory]
        seen = set()
        for chosen in combinations(takes, count):
            like = tuple(cards[j] for j in chosen)
            if like in seen:
                continue
            seen.add(like)
            after = [
                (slots - 1, free - memory) if j in chosen else (slots, free) for j, (slots, free) in enumerate(cards)
            ]
            yield [*rooms[:i], after, *rooms[i + 1 :]]


def make_case(rng: random.Random, *, size: int, whole: bool = False) -> Case | None:
    """A random case; None if the gang fits as it is. `whole`: many nodes with few cards, and whole cards only."""
    most_nodes, most_cards = (6, 2) if whole else (3, 4)
    nodes = [
        node(f"n{i}").gpus(rng.randint(1, most_cards), memory=MEMORY, slots=4)
        for i in range(rng.randint(1, most_nodes))
    ]
    built, book = cluster(*nodes), PlainBook(allowed={"none": 0, "one": 1, "many": 5})
    for number in range(rng.randint(3, 9)):
        count = rng.choice((1, 1, 1, 2, 4))
        memory = MEMORY // rng.choice((1,) if whole else (1, 1, 2, 4))
        request = gpu_pod(f"p{number}", gpu=count, mem=memory).request()
        answer = built.selector.select(request, built.ledger.node_names())
        if isinstance(answer, Selected):
            built.ledger.observe_pod(facts_of(request, answer.placement))
            book.pods[request.uid] = PodTraits(
                request.uid,
                "team",
                request.name,
                priority=rng.choice((0, 0, 5, 9, 10)),
                started=rng.choice((100, 200, 300)),
                is_leaving=rng.random() < 0.1,
                protection="protected" if rng.random() < 0.05 else "",
                group=rng.choice(("", "", "", "", "", "team/g", "team/own")),
            )
            book.budgets_of[request.uid] = rng.choice(((), (), (), (), ("none",), ("one",), ("many",)))
    equal = rng.random() < 0.5
    asks = [
        (rng.choice((1, 1, 2, 3)), MEMORY // rng.choice((1, 1, 2, 4))) if not whole else (1, MEMORY)
        for _ in range(size)
    ]
    members = [
        GangMember(replace(gpu_pod(f"m{i}", gpu=count, mem=memory).request(), group="team/own"))
        for i, (count, memory) in enumerate([asks[0]] * size if equal else asks)
    ]
    planned = plan_gang(built.selector, members, required=size)
    return Case(built, book, members, planned) if isinstance(planned, GangMisfit) else None


def cases(seed: int, count: int, *sizes: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for _ in range(count):
        case = make_case(rng, size=rng.choice(sizes))
        if case is not None:
            yield case


def check(case: Case, found: VictimSet) -> None:
    """The victims may leave, are enough, and none is needless."""
    units = {unit.uids: unit for unit in case.units()}
    chosen = [unit for unit in units.values() if set(unit.uids) <= set(found.victims)]
    assert sorted(uid for unit in chosen for uid in unit.uids) == list(found.victims)
    assert case.allows(chosen)
    assert found.cost == add_up(chosen)[0]
    for unit in chosen:
        rest = [uid for other in chosen if other is not unit for uid in other.uids]
        needless = case.fits_without(rest)
        # What the planner cannot place is not known to be needless.
        assert not needless or case.is_missed_without(rest), f"{unit.uids} could stay"
    ledger = case.built.ledger
    for uid in (*found.victims, *(uid for uid, one in case.book.pods.items() if one.is_leaving)):
        ledger.release(uid)
    for request, placement in found.places:
        [asked] = [each for _, each in request.requests]
        [grants] = placement.grants["NVIDIA"]
        assert len({grant.uuid for grant in grants}) == asked.count
        ledger.reserve(request, placement, deadline=1.0)
    assert sorted(place.request.uid for place in found.places) == sorted(m.request.uid for m in case.members)
    assert audit(ledger) == []


def test_a_gang_of_one_gets_the_best_of_all_sets() -> None:
    for case in cases(1, GANGS, 1):
        before = case.built.ledger.state()
        found = case.find()
        assert case.built.ledger.state() == before
        best = case.best()
        # Of equally good sets a single pod takes the one on the first node, by name.
        assert (found and found.cost) == (best and best[0])
        if found is not None:
            check(case, found)


def test_most_gangs_get_the_best_of_all_sets_and_the_others_a_minimal_one() -> None:
    counts: Counter[str] = Counter()
    for case in cases(2, GANGS, 2, 3, 4):
        before = case.built.ledger.state()
        found, best = case.find(), case.best()
        assert case.built.ledger.state() == before
        if best is None:
            assert found is None
            continue
        counts["feasible"] += 1
        if found is None:
            counts["missed"] += 1
            continue
        is_best = found.cost == best[0]
        counts["best"] += is_best
        if not is_best:
            counts[f"{len(found.victims) - len(best[1])} more"] += 1
            counts["higher priority"] += found.cost.highest > best[0].highest
        check(case, found)
    print(dict(counts))
    assert counts["feasible"] > GANGS / 10
    assert counts["best"] >= BEST * counts["feasible"], counts
    assert counts["missed"] <= MISSED * counts["feasible"], counts


def test_most_gangs_with_domains_are_in_as_few_as_a_set_of_as_many_pods_allows() -> None:
    counts: Counter[str] = Counter()
    rng = random.Random(3)
    for _ in range(GANGS):
        case = make_case(rng, size=rng.choice((2, 3)), whole=True)
        if case is None:
            continue
        names = case.built.ledger.node_names()
        domains = Domains("rack", {name: rng.choice("abc") for name in names})
        anywhere, found = case.find(), case.find(domains)
        assert (anywhere is None) is (found is None)
        if found is None or anywhere is None:
            continue
        assert found.cost[:2] <= anywhere.cost[:2], "further pods leave so that members are closer together"
        assert found.spread == len({domains.by_node[place.placement.node] for place in found.places})
        counts["found"] += 1
        counts["closest"] += found.spread == case.closest(found.cost, domains)
        spread = len({domains.by_node[place.placement.node] for place in anywhere.places})
        counts["closer than without domains"] += found.spread < spread
        check(case, found)
    print(dict(counts))
    assert counts["found"] > GANGS / 10
    assert counts["closest"] >= CLOSEST * counts["found"], counts
    assert counts["closer than without domains"], counts


def test_a_gang_that_no_domain_holds_goes_to_a_few_large_ones() -> None:
    racks = {"n0": "c", "n1": "d", "n2": "a", "n3": "a", "n4": "b", "n5": "b"}
    built, book = cluster(*(node(name).gpus(1, memory=MEMORY, slots=1) for name in racks)), PlainBook()
    for name in racks:
        request = gpu_pod(f"on-{name}", mem=MEMORY).request()
        answer = built.selector.select(request, [name])
        assert isinstance(answer, Selected)
        built.ledger.observe_pod(facts_of(request, answer.placement))
        book.pods[request.uid] = PodTraits(request.uid, "team", request.name)
    members = [GangMember(gpu_pod(f"m{i}", mem=MEMORY).request()) for i in range(4)]
    demand = Demand(members, len(members), priority=PRIORITY, domains=Domains("rack", racks))
    found = Preemption(built.selector, book).find(demand)
    assert found is not None
    assert sorted(place.placement.node for place in found.places) == ["n2", "n3", "n4", "n5"]
    assert found.spread == 2
