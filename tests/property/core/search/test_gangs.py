"""Plans of gangs against all ways to place them, on clusters small enough to try every one.

A plan never takes more than there is and is all or nothing. The search is not complete: how often it misses a plan that
exists is counted on a fixed sample, and bounded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit import screen
from tessera.core.fit.card_rules.base import Codes, Columns, Question
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.audit import audit
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import CardArrays
from tessera.core.model.devices import NodeFacts
from tessera.core.model.requests import HostRequest
from tessera.core.search.gang_trial import MAX_REFUSED, MAX_VAIN_DOMAINS, REFUSAL_STEPS, Domains, GangMember
from tessera.core.search.gangs import FEW_MEMBERS, GangMisfit, GangPlan, GangPlanning, plan_gang
from tests.support.builders import Cluster, PodBuilder, cluster, gpu_pod, node

MEMORY = 8_000
"""MiB of a card"""
MIXED_MISSES = 0.01
"""share of feasible gangs of different members, with slices on several cards, that may be missed"""


@dataclass(frozen=True)
class Ask:
    """What a member asks for: cards, and memory of each."""

    count: int
    memory: int

    def pod(self, number: int) -> PodBuilder:
        return gpu_pod(f"m{number}", gpu=self.count, mem=self.memory)


@dataclass(frozen=True)
class Case:
    cards: tuple[tuple[int, ...], ...]
    """by node: free slots of each card"""
    asks: tuple[Ask, ...]

    def build(self) -> Cluster:
        built = []
        for i, slots in enumerate(self.cards):
            one = node(f"n{i}")
            for j, free in enumerate(slots):
                one = one.gpu(f"n{i}-{j}", memory=MEMORY, slots=free)
            built.append(one)
        return cluster(*built)

    def members(self) -> list[GangMember]:
        return [GangMember(ask.pod(i).request()) for i, ask in enumerate(self.asks)]

    def is_feasible(self) -> bool:
        room = [[(free, MEMORY) for free in slots] for slots in self.cards]
        return _place(room, sorted(self.asks, key=lambda ask: (-ask.count, -ask.memory)))


def _place(room: list[list[tuple[int, int]]], asks: Sequence[Ask]) -> bool:
    if not asks:
        return True
    first, rest = asks[0], asks[1:]
    return any(_place(after, rest) for after in _ways(room, first))


def _ways(room: list[list[tuple[int, int]]], ask: Ask) -> Iterator[list[list[tuple[int, int]]]]:
    for i, cards in enumerate(room):
        takes = [j for j, (slots, memory) in enumerate(cards) if slots > 0 and memory >= ask.memory]
        for chosen in combinations(takes, ask.count):
            after = [
                (slots - 1, memory - ask.memory) if j in chosen else (slots, memory)
                for j, (slots, memory) in enumerate(cards)
            ]
            yield [*room[:i], after, *room[i + 1 :]]


ASKS = st.builds(Ask, st.sampled_from((1, 1, 2, 3)), st.sampled_from((MEMORY // 4, MEMORY // 2, MEMORY)))
CARDS = st.lists(st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3)
CASES = st.builds(Case, CARDS.map(tuple), st.lists(ASKS, min_size=1, max_size=5).map(tuple))
WHOLE = st.builds(
    lambda cards, ask, count: Case(cards, (ask,) * count),
    CARDS.map(tuple),
    st.builds(Ask, st.sampled_from((1, 2, 3)), st.just(MEMORY))
    | st.builds(Ask, st.just(1), ASKS.map(lambda a: a.memory)),
    st.integers(1, 6),
)
"""equal members that ask for whole cards, or for a slice of one card"""


def check_plan(case: Case, built: Cluster, answer: GangPlan) -> None:
    """All of it can be taken at the same time, and each member gets exactly what it asks for."""
    assert sorted(place.request.uid for place in answer.places) == sorted(m.request.uid for m in case.members())
    for request, placement in answer.places:
        [asked] = [each for _, each in request.requests]
        [grants] = placement.grants["NVIDIA"]
        assert len({grant.uuid for grant in grants}) == asked.count
        assert {grant.memory for grant in grants} == {asked.memory}
        built.ledger.reserve(request, placement, deadline=1.0)
    assert audit(built.ledger) == []


@given(CASES)
def test_a_plan_never_takes_more_than_there_is_and_a_misfit_takes_nothing(case: Case) -> None:
    built = case.build()
    before = built.ledger.state()
    answer = plan_gang(built.selector, case.members(), required=len(case.asks))
    assert built.ledger.state() == before
    if isinstance(answer, GangPlan):
        assert case.is_feasible()
        check_plan(case, built, answer)
    else:
        assert isinstance(answer, GangMisfit)
        assert len(answer.places) < len(case.asks)
        assert f"{len(answer.places)} of {len(case.asks)} members fit" in answer.text


@given(WHOLE)
def test_equal_members_with_whole_cards_or_one_slice_are_placed_wherever_that_is_possible(case: Case) -> None:
    built = case.build()
    answer = plan_gang(built.selector, case.members(), required=len(case.asks))
    assert isinstance(answer, GangPlan) is case.is_feasible()


@given(WHOLE, st.lists(st.sets(st.integers(0, 2)), min_size=6, max_size=6), st.integers(1, 6))
def test_equal_members_that_may_use_different_nodes_are_placed_wherever_that_is_possible(
    case: Case, allowed: list[set[int]], required: int
) -> None:
    built = case.build()
    members = [
        GangMember(member.request, built.selector.candidates([f"n{i}" for i in nodes if i < len(case.cards)]))
        for member, nodes in zip(case.members(), allowed, strict=False)
    ]
    most = _most_placed(
        [[(free, MEMORY) for free in slots] for slots in case.cards], case.asks[0], allowed[: len(members)]
    )
    required = min(required, len(members))
    answer = plan_gang(built.selector, members, required=required)
    assert isinstance(answer, GangPlan) is (most >= required)
    assert isinstance(answer, GangPlan | GangMisfit)
    assert len(answer.places) == most
    may_use = {member.request.uid: nodes for member, nodes in zip(members, allowed, strict=False)}
    assert all(int(place.placement.node[1:]) in may_use[place.request.uid] for place in answer.places)
    for request, placement in answer.places:
        built.ledger.reserve(request, placement, deadline=1.0)
    assert audit(built.ledger) == []


def _most_placed(room: list[list[tuple[int, int]]], ask: Ask, allowed: list[set[int]]) -> int:
    """Of equal members, the first of which may use the first set of nodes, by trying every way."""
    if not allowed:
        return 0
    here = [
        1 + _most_placed(after, ask, allowed[1:])
        for after in _ways(room, ask)
        if any(room[i] != after[i] for i in allowed[0] if i < len(room))
    ]
    return max([*here, _most_placed(room, ask, allowed[1:])])


@given(CASES, st.integers(1, 4))
def test_a_plan_for_some_members_has_at_least_as_many(case: Case, required: int) -> None:
    built = case.build()
    required = min(required, len(case.asks))
    answer = plan_gang(built.selector, case.members(), required=required)
    assert not isinstance(answer, GangPlan) or required <= len(answer.places) <= len(case.asks)


@given(CASES)
def test_domains_change_where_members_go_but_not_whether_equal_ones_fit(case: Case) -> None:
    case = Case(case.cards, (Ask(1, MEMORY),) * len(case.asks))
    built = case.build()
    domains = Domains("rack", {f"n{i}": f"r{i % 2}" for i in range(len(case.cards) - 1)})
    plain = plan_gang(built.selector, case.members(), required=len(case.asks))
    close = plan_gang(built.selector, case.members(), required=len(case.asks), domains=domains)
    assert isinstance(plain, GangPlan) is isinstance(close, GangPlan)
    if isinstance(close, GangPlan):
        check_plan(case, built, close)
        holds = [sum(map(len, case.cards[:-1][i::2])) for i in range(2)]
        used = {domains.by_node.get(place.placement.node) for place in close.places}
        if max(holds) >= len(case.asks):
            assert len(used) == 1
            assert None not in used


class Mirror:
    """A ledger that is made of what a listener is told."""

    def __init__(self, built: Cluster) -> None:
        self.ledger = Ledger(built.ledger.rules)
        for name in built.ledger.node_names():
            view = built.ledger.node(name)
            assert view is not None
            self.ledger.observe_node(view.facts)
        built.ledger.listener = self

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        if state is None:
            assert self.ledger.release(facts.uid), "it was never told of"
        else:
            assert self.ledger.pod(facts.uid) is None, "it was told of before"
            self.ledger.put_pod(facts, state, observed=observed)

    def on_node(self, name: str, facts: NodeFacts | None) -> None: ...
    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None: ...
    def on_quota(self, namespace: str, name: str, facts: QuotaFacts | None) -> None: ...
    def on_host(self, name: str, free: HostRequest | None) -> None: ...


@given(CASES, st.sets(st.integers(0, 8)), st.booleans())
def test_in_each_pause_and_in_the_end_the_listener_knows_what_is_held(
    case: Case, pauses: set[int], keeps: bool
) -> None:
    built = case.build()
    mirror, before = Mirror(built), built.ledger.state()
    planning = GangPlanning(built.selector, case.members(), required=len(case.asks))
    steps = planning.steps()
    for number in count():
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value
            break
        if number in pauses:
            planning.pause()
            assert mirror.ledger.state() == built.ledger.state()
            planning.resume()
    if keeps and isinstance(answer, GangPlan):
        assert len(planning.keep()) == len(case.asks)
        assert len(built.ledger.pods()) == len(case.asks)
        assert audit(built.ledger) == []
    else:
        planning.take_back()
        assert built.ledger.state() == before
    assert mirror.ledger.state() == built.ledger.state()
    assert built.ledger.listener is mirror


def test_few_feasible_gangs_of_different_members_are_missed() -> None:
    rng, feasible, missed = random.Random(7), 0, 0
    for _ in range(1_000):
        cards = tuple(tuple(rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 3)))
        asks = tuple(
            Ask(rng.choice((1, 1, 2, 3)), rng.choice((MEMORY // 4, MEMORY // 2, MEMORY)))
            for _ in range(rng.randint(2, 5))
        )
        case = Case(cards, asks)
        if case.is_feasible():
            feasible += 1
            answer = plan_gang(case.build().selector, case.members(), required=len(asks))
            missed += isinstance(answer, GangMisfit)
    assert feasible > 150
    assert missed <= MIXED_MISSES * feasible, f"{missed} of {feasible} missed"


# -- what gangs cost that do not fit


def different(size: int) -> list[GangMember]:
    """Members of as many shapes, none of which fits any card."""
    return [GangMember(gpu_pod(f"m{i}", mem=1_000_000 + i).request()) for i in range(size)]


def steps_of(built: Cluster, members: list[GangMember], domains: Domains | None = None) -> int:
    planning = GangPlanning(built.selector, members, required=len(members), domains=domains)
    steps = sum(1 for _ in planning.steps())
    planning.take_back()
    return steps


def test_a_refusal_counts_for_several_places_and_few_kinds_are_refused() -> None:
    built = cluster(node("n0").gpus(1))
    assert steps_of(built, different(FEW_MEMBERS + 1)) == MAX_REFUSED * REFUSAL_STEPS


def test_members_like_one_that_fits_are_placed_however_many_kinds_are_refused() -> None:
    built = cluster(node("n0").gpus(2, slots=1))
    asking = gpu_pod("m").request()
    nowhere = [GangMember(asking, built.selector.candidates([])) for _ in range(MAX_REFUSED)]
    members = [GangMember(asking), *nowhere, GangMember(asking)]
    answer = plan_gang(built.selector, members, required=2)
    assert isinstance(answer, GangPlan)
    assert len(answer.places) == 2


def test_few_domains_are_tried_in_vain() -> None:
    names = [f"n{i}" for i in range(4 * MAX_VAIN_DOMAINS)]
    built = cluster(*(node(name).gpus(1) for name in names))
    members = [different(1)[0]] * (FEW_MEMBERS + 1)
    domains = Domains("host", {name: name for name in names})
    assert steps_of(built, members, domains) == (MAX_VAIN_DOMAINS + 1) * REFUSAL_STEPS


def test_domains_are_estimated_once_for_members_of_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{i}" for i in range(6)]
    built = cluster(*(node(name).gpus(1, slots=1) for name in names))
    judged: list[object] = []
    judge = screen.judge

    def counted(arrays: CardArrays, question: Question, columns: Columns) -> Codes:
        judged.append(question)
        return judge(arrays, question, columns)

    monkeypatch.setattr(screen, "judge", counted)
    members = [GangMember(gpu_pod("m").request())] * 6
    plan_gang(built.selector, members[:1], required=1)
    judged.clear()
    answer = plan_gang(built.selector, members, required=6, domains=Domains("host", {name: name for name in names}))
    assert isinstance(answer, GangPlan)
    assert len(judged) == len(members), "once for all domains, and once after each place but the last"


def test_a_member_is_placed_on_its_own_candidates_whichever_domain_is_tried() -> None:
    built = cluster(*(node(f"n{i}").gpu(f"n{i}-0", memory=MEMORY) for i in range(2)))
    member = GangMember(gpu_pod("m", mem=1000).request(), built.selector.candidates(["n1"]))
    domains = Domains("rack", {"n0": "tried first", "n1": "tried then"})
    answer = plan_gang(built.selector, [member], required=1, domains=domains)
    assert isinstance(answer, GangPlan)
    assert [place.placement.node for place in answer.places] == ["n1"]
