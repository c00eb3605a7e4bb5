from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.host.cards import CardEvent, CardFacts, Found, UnreadableCard
from tessera.node.fleet import Fleet
from tessera.node.health.roster import (
    FORGIVEN_S,
    GONE,
    GOOD_PROBES,
    KEPT_S,
    NOT_READ,
    QUIET,
    UNKNOWN,
    Health,
    Roster,
    after_fault,
    after_good_probe,
)
from tessera.node.health.xids import HealthRules
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import CardModes, DeviceFilter, NodeSettings

Step = tuple[float, str]
"""seconds since the step before, and the fault; empty = a good probe"""

steps = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 5.0, 30.0, 61.0, 2000.0, 30_000.0]), st.sampled_from(["", "", "", "XID 48"])),
    max_size=60,
)

A, B, C = (CardFacts(f"GPU-{name}", index, "NVIDIA H200") for index, name in enumerate("abc"))


def lived(*taken: Step) -> Health:
    health, now = Health(), 0.0
    for wait, problem in taken:
        now += wait
        health = after_fault(health, problem, now=now) if problem else after_good_probe(health, now=now)
    return health


def good(times: int, every: float) -> list[Step]:
    return [(every, "")] * times


@pytest.mark.parametrize(
    ("taken", "healthy"),
    [
        pytest.param([], True, id="nothing-happened"),
        pytest.param(good(5, 30), True, id="only-good-probes"),
        pytest.param([(1, "XID 79")], False, id="a-fault"),
        pytest.param([(1, "XID 79"), *good(2, 60)], False, id="quiet-but-too-few-probes"),
        pytest.param([(1, "XID 79"), *good(11, 5)], False, id="enough-probes-but-not-quiet"),
        pytest.param([(1, "XID 79"), *good(12, 5)], True, id="enough-of-both"),
        pytest.param([(1, "XID 79"), *good(11, 5), (1, "XID 79"), *good(11, 5)], False, id="a-fault-starts-it-anew"),
        pytest.param([(1, "XID 79"), *good(11, 5), (1, "XID 79"), *good(12, 5)], True, id="and-it-ends-all-the-same"),
    ],
)
def test_a_card_comes_back_after_good_probes_and_a_quiet_time(taken: list[Step], healthy: bool) -> None:
    assert lived(*taken).healthy is healthy


def test_a_card_that_falls_again_needs_longer_every_time_up_to_a_bound() -> None:
    needed = []
    health, now = Health(), 0.0
    for _ in range(40):
        health = after_fault(health, "XID 94", now=now)
        start = now
        while not health.healthy:
            now += 5.0
            health = after_good_probe(health, now=now)
        needed.append(now - start)
    assert needed[:7] == [60, 120, 240, 480, 960, QUIET.cap, QUIET.cap]
    assert set(needed[7:]) == {QUIET.cap}


def test_a_card_that_stayed_healthy_for_long_starts_afresh() -> None:
    ill_twice = [(1.0, "XID 94"), *good(12, 5), (1.0, "XID 94"), *good(24, 5)]
    assert lived(*ill_twice, (FORGIVEN_S - 1, "XID 94")).quiet_s == 4 * QUIET.initial
    assert lived(*ill_twice, (FORGIVEN_S, "XID 94")).quiet_s == QUIET.initial


def test_the_first_problem_of_a_spell_is_the_one_that_is_shown() -> None:
    assert lived((1, "XID 79"), (1, "lost")).problem == "XID 79"
    assert lived((1, "XID 79"), (5, ""), (5, "lost")).problem == "lost"


def test_a_fault_without_words_is_still_a_fault() -> None:
    assert after_fault(Health(), "", now=1.0).problem == UNKNOWN


@given(steps)
def test_no_card_comes_back_before_it_was_quiet_and_every_fault_is_counted(taken: list[Step]) -> None:
    health, now, faults, last_fault, probes = Health(), 0.0, 0, 0.0, 0
    for wait, problem in taken:
        now += wait
        before = health
        if problem:
            health, faults, last_fault, probes = after_fault(health, problem, now=now), faults + 1, now, 0
            assert not health.healthy
        else:
            health, probes = after_good_probe(health, now=now), probes + 1
        assert health.faults == faults
        assert QUIET.initial <= health.quiet_s <= QUIET.cap
        if health.healthy and not before.healthy:
            assert now - last_fault >= before.quiet_s
            assert probes >= GOOD_PROBES


def settings(*, uuid: tuple[str, ...] = (), index: tuple[int, ...] = (), health_checks: bool = True) -> AgentSettings:
    node = NodeSettings(filtered=DeviceFilter(uuid=uuid, index=index))
    return AgentSettings(node_name="n1", node=node, health=HealthRules(health_checks=health_checks))


def roster(*found: Found, chosen: AgentSettings | None = None) -> Roster:
    """After one scan at moment 0."""
    made = Roster(chosen or settings())
    made.on_scan(found, now=0.0)
    return made


def problems(of: Roster) -> dict[str, str]:
    return {card.facts.uuid: card.problem for card in of.fleet}


def test_before_the_first_scan_nothing_is_known() -> None:
    assert Roster(settings()).fleet == NOT_READ


def test_cards_are_listed_in_order_of_index_and_healthy() -> None:
    made = roster(C, A, B)
    assert [card.facts for card in made.fleet] == [A, B, C]
    assert made.is_well
    assert made.fleet.problem == ""


@pytest.mark.parametrize(
    "chosen",
    [settings(index=(0,)), settings(uuid=("GPU-a",)), settings(uuid=("GPU-a", "GPU-x"), index=(0, 7))],
)
def test_a_card_that_is_filtered_is_nowhere(chosen: AgentSettings) -> None:
    made = roster(A, B, chosen=chosen)
    assert problems(made) == {"GPU-b": ""}
    assert made.to_listen == ("GPU-b",)
    assert made.on_event(CardEvent("GPU-a", xid=79), now=1.0) is False
    made.on_scan([UnreadableCard(0, "lost", "GPU-a"), B], now=2.0)
    assert problems(made) == {"GPU-b": ""}
    assert made.is_well


def test_a_filtered_index_that_cannot_be_read_at_all_is_nowhere_too() -> None:
    made = roster(UnreadableCard(0, "lost"), B, chosen=settings(index=(0,)))
    assert (problems(made), made.strangers) == ({"GPU-b": ""}, {})


def test_a_filter_by_index_keeps_its_card_when_the_driver_numbers_the_others_anew() -> None:
    made = roster(A, B, chosen=settings(index=(0,)))
    made.on_scan([replace(B, index=0)], now=30.0)
    assert problems(made) == {"GPU-b": ""}


def test_one_unreadable_card_leaves_the_other_as_it_was() -> None:
    made = roster(A, B)
    made.on_scan([A, UnreadableCard(1, "GPU is lost", "GPU-b")], now=30.0)
    assert problems(made) == {"GPU-a": "", "GPU-b": "GPU is lost"}
    assert made.fleet.card("GPU-b") is not None
    assert [card.facts for card in made.fleet] == [A, B]
    assert made.to_listen == ("GPU-a",)


def test_a_card_that_does_not_even_tell_its_uuid_is_known_by_its_index() -> None:
    made = roster(A, B)
    made.on_scan([UnreadableCard(1, "GPU is lost"), A], now=30.0)
    assert problems(made) == {"GPU-a": "", "GPU-b": "GPU is lost"}


@pytest.mark.parametrize(
    ("found", "name", "why"),
    [
        (UnreadableCard(1, "lost"), "index 1", "lost"),
        (UnreadableCard(1, "lost", "GPU-b"), "GPU-b", "lost"),
    ],
)
def test_a_card_of_which_nothing_is_known_is_left_out_and_named(found: Found, name: str, why: str) -> None:
    made = roster(A, found)
    assert problems(made) == {"GPU-a": ""}
    assert made.strangers == {name: why}
    assert not made.is_well
    made.on_scan([A, B], now=5.0)
    assert problems(made) == {"GPU-a": "", "GPU-b": ""}
    assert made.is_well


def test_a_card_that_vanishes_is_unhealthy_for_ten_minutes_and_then_gone() -> None:
    made = roster(A, B)
    made.on_scan([A], now=KEPT_S - 1)
    assert problems(made) == {"GPU-a": "", "GPU-b": GONE}
    made.on_scan([A], now=KEPT_S)
    assert problems(made) == {"GPU-a": ""}


def test_a_vanished_card_that_comes_back_in_time_is_not_trusted_at_once() -> None:
    made = roster(A, B)
    made.on_scan([A], now=30.0)
    made.on_scan([A, B], now=35.0)
    assert problems(made)["GPU-b"] == GONE
    for now in (60.0, 89.0, 90.0):
        made.on_scan([A, B], now=now)
    assert problems(made) == {"GPU-a": "", "GPU-b": ""}


def test_hardware_that_cannot_be_asked_keeps_its_cards_as_unhealthy() -> None:
    made = roster(A, B)
    made.on_scan_failed("driver not loaded", now=30.0)
    assert problems(made) == {"GPU-a": "driver not loaded", "GPU-b": "driver not loaded"}
    assert made.fleet.problem == "driver not loaded"
    made.on_scan([A, B], now=35.0)
    assert made.fleet.problem == ""
    assert not made.is_well


def test_facts_that_change_are_the_ones_that_are_shown() -> None:
    made = roster(A)
    made.on_scan([replace(A, mig_enabled=True)], now=30.0)
    card = made.fleet.card("GPU-a")
    assert card is not None
    assert card.facts.mig_enabled
    assert card.healthy


@pytest.mark.parametrize(
    ("event", "ill"),
    [
        (CardEvent("GPU-a", xid=79), {"GPU-a"}),
        (CardEvent("GPU-a", xid=31), set()),
        (CardEvent("GPU-a", uncorrectable=True), {"GPU-a"}),
        (CardEvent(None, xid=79), {"GPU-a", "GPU-b"}),
        (CardEvent("GPU-of-nobody", xid=79), set()),
        (CardEvent("GPU-a", xid=2**63), {"GPU-a"}),
    ],
)
def test_an_event_concerns_its_card_and_one_without_a_card_all_of_them(event: CardEvent, ill: set[str]) -> None:
    made = roster(A, B)
    assert made.on_event(event, now=1.0) is bool(ill)
    assert {uuid for uuid, problem in problems(made).items() if problem} == ill
    assert {uuid for uuid, faults in made.faults.items() if faults} == ill


def test_without_health_checks_nobody_listens_and_nothing_counts() -> None:
    made = roster(A, chosen=settings(health_checks=False))
    assert made.to_listen == ()
    assert made.on_event(CardEvent("GPU-a", xid=79), now=1.0) is False


def test_a_card_that_cannot_be_heard_is_unhealthy_until_it_can() -> None:
    made = roster(A, B)
    made.on_listening({"GPU-b": "no memory"}, now=1.0)
    assert problems(made) == {"GPU-a": "", "GPU-b": "its events cannot be received: no memory"}
    for now in (30.0, 60.0, 90.0, 120.0):
        made.on_scan([A, B], now=now)
    assert made.some_deaf
    assert problems(made)["GPU-b"]
    made.on_listening({}, now=121.0)
    assert not made.some_deaf
    for now in (130.0, 150.0, 179.0, 180.0):
        made.on_scan([A, B], now=now)
    assert made.is_well


def test_when_no_events_can_be_heard_all_cards_are_unhealthy() -> None:
    made = roster(A, B)
    made.on_listening_failed("unknown error", now=1.0)
    assert set(problems(made).values()) == {"events cannot be received: unknown error"}


def test_other_settings_take_cards_away_and_let_sick_ones_be_sick() -> None:
    made = roster(A, B, C)
    made.on_event(CardEvent("GPU-a", xid=79), now=1.0)
    made.on_listening({"GPU-b": "no memory"}, now=1.0)
    made.use(settings(index=(2,), health_checks=False))
    assert list(problems(made)) == ["GPU-a", "GPU-b"]
    assert problems(made)["GPU-a"].startswith("XID 79")
    assert not made.some_deaf
    made.use(settings())
    made.on_scan([A, B, C], now=2.0)
    assert list(problems(made)) == ["GPU-a", "GPU-b", "GPU-c"]


Happening = Callable[[Roster, float], object]


only_about_b: st.SearchStrategy[Happening] = st.sampled_from(
    [
        lambda made, now: made.on_event(CardEvent("GPU-b", xid=79), now=now),
        lambda made, now: made.on_event(CardEvent("GPU-b", uncorrectable=True), now=now),
        lambda made, now: made.on_scan([A, B, C], now=now),
        lambda made, now: made.on_scan([A, UnreadableCard(1, "lost", "GPU-b"), C], now=now),
        lambda made, now: made.on_scan([UnreadableCard(1, "lost"), C, A], now=now),
        lambda made, now: made.on_scan([C, A], now=now),
        lambda made, now: made.on_listening({"GPU-b": "deaf"}, now=now),
        lambda made, now: made.on_listening({}, now=now),
    ]
)


@given(st.lists(st.tuples(st.sampled_from([0.0, 5.0, 30.0, 700.0]), only_about_b), max_size=40))
def test_whatever_happens_to_one_card_changes_no_other(happenings: list[tuple[float, Happening]]) -> None:
    made, now = roster(A, B, C), 0.0
    for wait, happening in happenings:
        now += wait
        happening(made, now)
        fleet: Fleet = made.fleet
        assert [card.facts for card in fleet if card.facts != B] == [A, C]
        assert all(card.healthy for card in fleet if card.facts != B)
        assert len({card.facts.uuid for card in fleet}) == len(fleet.cards)


def with_modes(*entries: CardModes) -> AgentSettings:
    return AgentSettings(node_name="n1", node=NodeSettings(card_modes=entries))


def modes(of: Roster) -> dict[str, str]:
    return {card.facts.uuid: card.mode for card in of.fleet}


def test_a_card_keeps_its_mode_when_the_driver_renumbers_the_others() -> None:
    made = roster(A, B, chosen=with_modes(CardModes(mode="mps", index=(1,))))
    assert modes(made) == {"GPU-a": "hami-core", "GPU-b": "mps"}
    made.on_scan([replace(B, index=0)], now=1.0)
    assert modes(made)["GPU-b"] == "mps"


def test_other_settings_decide_anew_and_none_name_no_mode() -> None:
    made = roster(A, B)
    assert modes(made) == {"GPU-a": "", "GPU-b": ""}
    made.use(with_modes(CardModes(mode="mig", uuid=("GPU-a",))))
    assert modes(made) == {"GPU-a": "mig", "GPU-b": "hami-core"}
    made.use(settings())
    assert modes(made) == {"GPU-a": "", "GPU-b": ""}


def test_names_of_cards_that_are_not_there_are_known_once_the_cards_are_read() -> None:
    chosen = with_modes(CardModes(mode="mps", index=(1, 7), uuid=("GPU-a", "GPU-x")))
    assert Roster(chosen).unknown_names == ()
    made = roster(A, B, chosen=chosen)
    assert made.unknown_names == ("GPU-x", "index 7")
    made.on_scan([A, B, replace(C, uuid="GPU-x", index=7)], now=1.0)
    assert not made.unknown_names
