"""The record of a gang: which transitions are legal, and what each part keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera.scheduler.features.gangs.gang import Gang, GangState, IllegalGangTransition, Member, MemberState
from tessera.wire.pod_groups import PodGroup
from tests.support.builders import gpu_pod

WAITING, NOMINATED, PLANNED = GangState.WAITING, GangState.NOMINATED, GangState.PLANNED
COMPLETING, WHOLE = GangState.COMPLETING, GangState.WHOLE

STEPS: dict[str, Callable[[Gang], object]] = {
    "nominate": lambda gang: gang.nominate(frozenset({"victim"}), 9.0),
    "begin_plan": lambda gang: gang.begin_plan(1.0, patience=20.0, longest=120.0),
    "open": lambda gang: gang.open(5.0),
    "complete": lambda gang: gang.complete(5.0),
    "become_whole": lambda gang: gang.become_whole(),
    "begin_again": lambda gang: gang.begin_again(7.0),
}
WAYS = {
    WAITING: (),
    NOMINATED: ("nominate",),
    PLANNED: ("begin_plan",),
    COMPLETING: ("begin_plan", "open"),
    WHOLE: ("become_whole",),
}
LEGAL = {
    WAITING: {"nominate": NOMINATED, "begin_plan": PLANNED, "complete": COMPLETING, "become_whole": WHOLE},
    NOMINATED: {"begin_plan": PLANNED},
    PLANNED: {"open": COMPLETING, "become_whole": WHOLE},
    COMPLETING: {"complete": COMPLETING, "become_whole": WHOLE, "begin_again": WAITING},
    WHOLE: {"begin_again": WAITING},
}


def gang_in(state: GangState) -> Gang:
    gang = Gang("default", PodGroup("g", 2, 2), 0.0)
    for step in WAYS[state]:
        STEPS[step](gang)
    return gang


@pytest.mark.parametrize(("state", "step"), [(state, step) for state in GangState for step in STEPS])
def test_a_transition_leads_where_it_is_drawn_and_raises_elsewhere(state: GangState, step: str) -> None:
    gang = gang_in(state)
    if step in LEGAL[state]:
        STEPS[step](gang)
        assert gang.state is LEGAL[state][step]
        return
    with pytest.raises(IllegalGangTransition, match=f"gang default/g is {state.value}"):
        STEPS[step](gang)
    assert gang.state is state


def test_a_plan_that_is_given_up_is_no_plan_of_the_gang_any_more() -> None:
    gang = gang_in(PLANNED)
    plan = gang.plan
    assert plan is not None
    assert plan.until == 21.0
    assert gang.give_up() is plan
    assert (gang.state, gang.plan) == (WAITING, None)


def test_what_it_was_nominated_for_ends_with_the_nomination_and_with_the_plan() -> None:
    gang = gang_in(NOMINATED)
    assert gang.renounce().victims == {"victim"}
    assert (gang.state, gang.preemption.nomination) == (WAITING, None)
    STEPS["nominate"](gang)
    STEPS["begin_plan"](gang)
    assert gang.preemption.nomination is None


def test_holds_expire_once_members_are_bound_and_not_before() -> None:
    gang = gang_in(PLANNED)
    assert gang.holds_end == float("inf")
    gang.open(5.0)
    assert gang.holds_end == 5.0
    assert gang_in(WHOLE).holds_end == 0.0, "it never had a plan here"


def test_a_transition_makes_the_next_plan_worth_trying() -> None:
    gang = gang_in(PLANNED)
    gang.wait.tried = "something"
    gang.give_up()
    assert gang.wait.tried is None


def test_members_are_counted_by_state() -> None:
    gang = gang_in(WAITING)
    for name in ("a", "b", "c"):
        gang.members.add(Member(gpu_pod(name).called(name, uid=name).request(), MemberState.PENDING))
    gang.members.set_state(gang.members["b"], MemberState.BOUND)
    gang.members.remove("c")
    assert (gang.present, gang.members.count(MemberState.PENDING), list(gang.members)) == (2, 1, ["a", "b"])
    gang.members.set_state(gang.members["a"], MemberState.DONE)
    assert (gang.present, gang.required) == (1, 1)
