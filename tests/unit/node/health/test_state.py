from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.health.roster import (
    FORGIVEN_S,
    GOOD_PROBES,
    QUIET,
    UNKNOWN,
    Health,
    after_fault,
    after_good_probe,
)

Step = tuple[float, str]
"""seconds since the step before, and the fault; empty = a good probe"""

steps = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 5.0, 30.0, 61.0, 2000.0, 30_000.0]), st.sampled_from(["", "", "", "XID 48"])),
    max_size=60,
)


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
