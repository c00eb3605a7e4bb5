"""The work of claims' filters on many cards: each different thing is asked about once, in parts, and not for ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.core.model import published_cards
from tessera.core.model.devices import HAMI_CORE, Device, NodeFacts, Published
from tessera.core.model.misfits import Reason
from tessera.core.model.published_cards import CARD_COST, CLUSTER_COST
from tessera.core.model.requests import Constraint, ContainerRequest, FilterAnswer, PodRequest, Request, Role
from tessera.core.search import evaluation, finish
from tessera.core.search.evaluation import UNITS_OF_A_CHECK
from tessera.core.search.gang_trial import GangMember
from tessera.core.search.gangs import GangPlanning
from tessera.core.search.selection import Refused, Selected, Selector, Unfinished
from tests.support.builders import vendors
from tests.support.claims import publish

Rule = Callable[[Published], FilterAnswer]


def yes(published: Published) -> FilterAnswer:
    return FilterAnswer(accepts=True, cost=100)


def no(published: Published) -> FilterAnswer:
    return FilterAnswer(accepts=False, cost=100)


@dataclass(eq=False)
class CountedFilter:
    """Says what it is told to, and remembers what it was asked about."""

    rule: Rule = yes
    reads_own: bool = False
    reading: str = "model"
    asked: list[Published] = field(default_factory=list)

    def reads(self, published: Published) -> Hashable:
        return published if self.reads_own else published.attribute(f"gpu.tessera.io/{self.reading}")

    def answer(self, published: Published) -> FilterAnswer:
        self.asked.append(published)
        return self.rule(published)


def cards_of(name: str, *, cards: int = 4, model: str = "T4") -> NodeFacts:
    devices = [
        Device(f"{name}-{index}", "NVIDIA", index, 10, 16_384, model=model, mode=HAMI_CORE) for index in range(cards)
    ]
    return NodeFacts(name, tuple(map(publish, devices)))


def ledger_of(nodes: int, *, cards: int = 4) -> Ledger:
    ledger = Ledger(vendors())
    for number in range(nodes):
        ledger.observe_node(cards_of(f"n{number}", cards=cards, model=("T4", "H100")[number % 2]))
    return ledger


def claiming(*filters: CountedFilter, uid: str = "uid") -> PodRequest:
    return PodRequest(
        uid,
        "team",
        "p",
        tuple(
            ContainerRequest(
                f"c:r{number}",
                Role.CLAIM,
                (Request("NVIDIA", 1, 1_000, accepts=Constraint(mode=HAMI_CORE, filter=each)),),
            )
            for number, each in enumerate(filters)
        ),
    )


def finished(selector: Selector, pod: PodRequest, work: float) -> tuple[Selected | Refused, int]:
    """The decision, and how many calls it took."""
    names = list(selector.ledger.node_names())
    for calls in range(1, 10_000):
        answer = selector.select_within(pod, names, work)
        if not isinstance(answer, Unfinished):
            return answer, calls
    raise AssertionError("no decision")


def test_cards_that_are_the_same_to_a_filter_are_one_question() -> None:
    """However they differ otherwise: here in their index and uuid."""
    accepts = CountedFilter(no)
    answer, _ = finished(Selector(ledger_of(50, cards=8)), claiming(accepts), 10_000)
    assert isinstance(answer, Refused)
    assert len(accepts.asked) == 2, "there are two models"


def test_each_card_is_asked_about_once_where_its_own_is_read_however_many_there_are() -> None:
    accepts = CountedFilter(no, reads_own=True)
    ledger = ledger_of(640, cards=8)  # more than 4096 cards
    selector = Selector(ledger)
    for _ in range(3):
        finished(selector, claiming(accepts), 10_000)
    assert len(accepts.asked) == 640 * 8
    # A node that registers again is asked about again, and only that one.
    ledger.observe_node(cards_of("n7", cards=7))
    del accepts.asked[:]
    finished(selector, claiming(accepts), 10_000)
    assert {each.own[0].value for each in accepts.asked} == {f"n7-{index}" for index in range(7)}


@pytest.mark.parametrize("reads_own", [True, False])
def test_a_decision_goes_on_where_the_last_call_ended(reads_own: bool) -> None:
    """No call asks for more than it may, but for the last card."""
    accepts = CountedFilter(yes, reads_own=reads_own, reading="uuid")
    ledger, most = ledger_of(100), 10
    selector = Selector(ledger)
    asked = 0
    names = list(ledger.node_names())
    while isinstance(selector.select_within(claiming(accepts), names, most), Unfinished):
        assert 0 < len(accepts.asked) - asked <= most * UNITS_OF_A_CHECK / 100 + 1
        asked = len(accepts.asked)
    answer, calls = finished(selector, claiming(accepts), most)
    assert isinstance(answer, Selected)
    assert calls == 1


def test_filters_that_take_too_much_work_on_all_cards_are_refused_with_a_reason() -> None:
    accepts = CountedFilter(lambda published: FilterAnswer(accepts=True, cost=CLUSTER_COST // 20), reads_own=True)
    ledger = ledger_of(8)
    selector = Selector(ledger)
    answer, _ = finished(selector, claiming(accepts), 10_000)
    assert isinstance(answer, Refused)
    [(misfit, count)] = answer.verdicts
    assert count == 8
    assert misfit.counts == ((Reason.SELECTORS_TOO_COSTLY, 0),)
    assert misfit.text.startswith("claim c, request r0: its selectors take too much work on the cards of this cluster")
    assert len(accepts.asked) == 21, "and are asked no more"
    # What counts are the cards that are there.
    for number in range(4):
        ledger.forget_node(f"n{number}")
    answer, _ = finished(selector, claiming(accepts), 10_000)
    assert isinstance(answer, Selected)


def test_the_filters_of_a_pod_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    dear = [CountedFilter(lambda published: FilterAnswer(accepts=True, cost=CARD_COST // 2 + 1)) for _ in range(2)]
    answer, _ = finished(Selector(ledger_of(2)), claiming(*dear), 10_000)
    assert isinstance(answer, Refused)
    assert "request r1" in next(iter(answer.misfits.values())).text
    for module in (published_cards, evaluation):
        monkeypatch.setattr(module, "CLUSTER_COST", 2_000)
    many = [CountedFilter(yes, reads_own=True) for _ in range(4)]
    answer, _ = finished(Selector(ledger_of(2)), claiming(*many), 10_000)
    assert isinstance(answer, Refused)
    assert "request r2" in next(iter(answer.misfits.values())).text
    assert many[3].asked == []


def test_a_card_that_costs_too_much_is_refused_with_a_reason_and_others_are_taken() -> None:
    def rule(published: Published) -> FilterAnswer:
        model = published.attribute("gpu.tessera.io/model")
        is_too_costly = model is not None and model.value == "T4"
        return FilterAnswer(accepts=not is_too_costly, cost=CARD_COST, is_too_costly=is_too_costly)

    selector = Selector(ledger_of(2))
    answer, _ = finished(selector, claiming(CountedFilter(rule)), 10_000)
    assert isinstance(answer, Selected)
    assert answer.placement.node == "n1"
    only = selector.select(claiming(CountedFilter(rule)), ["n0"])
    assert isinstance(only, Refused)
    assert only.misfits["n0"].text == "4/4 CardSelectorTooCostly"
    plain = selector.ledger.fit(claiming(CountedFilter(rule)), "n0")
    assert plain.counts == only.misfits["n0"].counts  # type: ignore[union-attr]  # it does not fit


def test_what_decides_nothing_asks_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence about cards, or an estimate, must not take what a decision takes in many steps."""
    monkeypatch.setattr(published_cards, "COST_AT_ONCE", 1_000)
    accepts = CountedFilter(yes, reads_own=True)
    arrays = ledger_of(100).arrays
    assert int(arrays.selected(accepts, slice(None)).sum()) == len(accepts.asked) == 10
    assert int(arrays.selected(accepts, slice(None)).sum()) == len(accepts.asked) == 20


def test_answers_of_many_filters_are_forgotten_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_cards, "KEPT_FILTERS", 3)
    selector = Selector(ledger_of(2))
    filters = [CountedFilter(no) for _ in range(4)]
    for each in (*filters[:3], filters[0], filters[3], filters[0], filters[1]):
        finished(selector, claiming(each), 10_000)
    assert [len(each.asked) for each in filters] == [2, 4, 2, 2], "the second one was used longest ago"


def test_the_plan_of_a_gang_ends_unfinished_when_its_filters_take_too_long() -> None:
    """Each of its members may ask for something else."""
    selector = Selector(ledger_of(40))
    filters = [CountedFilter(yes, reads_own=True) for _ in range(8)]
    members = [GangMember(claiming(each, uid=f"m{number}"), None) for number, each in enumerate(filters)]
    work = 200
    plans = 0
    while isinstance(answer := finish(GangPlanning(selector, members, required=8, work=work).steps()), Unfinished):
        asked = sum(len(each.asked) for each in filters)
        plans += 1
        assert asked <= plans * (2 * work * UNITS_OF_A_CHECK / 100 + 2)
    assert len(answer.places) == 8
    assert plans > 1
