"""The state machine of a pod between filter and the end of its handover."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tessera.core.model.grants import Placement
from tessera.scheduler import pod_cycle
from tessera.scheduler.pod_cycle import SHOWN_S, UNSEEN_TICKS, CycleState, IllegalTransition, PodCycle, Transition
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.wire import keys
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.stepwise_scheduler import RESERVATION, World, answering, assert_cycles_match, uid
from tests.support.strategies import examples

POD = gpu_pod("p", mem=1000)
BOUND = POD.on("n1", "n1-0,NVIDIA,1000,0:;")
ALLOCATING = BOUND.annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING))
PLACED = BOUND.facts()


def world() -> World:
    return World(answering(node("n1").gpus(1)), answering(node("n2").gpus(1)))


def reach(here: World, state: CycleState) -> PodCycle:
    """A claimed record in this state, by the way that pods take."""
    here.create(POD)
    if state is CycleState.REFUSED:
        here.filtered(POD, ["stranger"])
    elif state is CycleState.NOMINATED:
        here.filtered(POD, ["stranger"])
        refused = here.cycles.get(uid(POD))
        assert refused is not None
        here.cycles.nominate(refused, PLACED, frozenset({"victim"}), deadline=1.0)
    elif state is not CycleState.PENDING:
        here.chosen(POD, ["n1"])
    cycle = here.cycles.check_out(uid(POD))
    assert cycle is not None
    if state in (CycleState.BINDING, CycleState.UNCERTAIN, CycleState.BOUND):
        here.cycles.start_bind(cycle)
    if state is CycleState.UNCERTAIN:
        here.cycles.mark_written(cycle)
        here.cycles.put_back(cycle)
    elif state is CycleState.BOUND:
        here.cycles.confirm(cycle)
    elif state is CycleState.HANDING_OVER:
        here.create(ALLOCATING)
    elif state is CycleState.SETTLED:
        here.create(BOUND)
    assert cycle.state is state
    return cycle


def prepared(here: World) -> PreparedRequest:
    found = here.engine.request_reader.read(POD.api())
    assert isinstance(found, PreparedRequest)
    return found


TRANSITIONS: dict[str, Callable[[World, PodCycle], object]] = {
    "reserve": lambda here, cycle: here.cycles.reserve(prepared(here), Placement("n1", {})),
    "refuse": lambda here, cycle: here.cycles.refuse(prepared(here).request, here.selector.candidates(["n1"])),
    "start_bind": lambda here, cycle: here.cycles.start_bind(cycle),
    "give_up": lambda here, cycle: here.cycles.give_up(cycle),
    "forget": lambda here, cycle: here.cycles.forget(cycle),
    "nominate": lambda here, cycle: here.cycles.nominate(cycle, PLACED, frozenset(), deadline=1.0),
    "renounce": lambda here, cycle: here.cycles.renounce(cycle),
}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("reserve", {CycleState.PENDING, CycleState.REFUSED, CycleState.NOMINATED}),
        ("refuse", {CycleState.PENDING, CycleState.REFUSED, CycleState.NOMINATED}),
        ("nominate", {CycleState.REFUSED}),
        ("renounce", {CycleState.NOMINATED}),
        ("start_bind", {CycleState.RESERVED, CycleState.UNCERTAIN}),
        ("give_up", {CycleState.RESERVED}),
        ("forget", {CycleState.REFUSED, CycleState.NOMINATED}),
    ],
)
@pytest.mark.parametrize("state", CycleState)
def test_a_transition_that_is_not_drawn_raises_and_changes_nothing(
    name: str, allowed: set[CycleState], state: CycleState
) -> None:
    here = world()
    cycle = reach(here, state)
    if state in allowed:
        TRANSITIONS[name](here, cycle)
        return
    before = here.ledger.state()
    with pytest.raises(IllegalTransition):
        TRANSITIONS[name](here, cycle)
    assert (cycle.state, here.ledger.state()) == (state, before)


def test_the_error_names_the_pod_its_state_and_the_transition() -> None:
    here = world()
    cycle = reach(here, CycleState.BINDING)
    with pytest.raises(IllegalTransition, match="pod uid-p is binding: REFUSE is not possible"):
        TRANSITIONS["refuse"](here, cycle)


@pytest.mark.parametrize("state", CycleState)
def test_what_the_api_shows_is_legal_in_every_state(state: CycleState) -> None:
    here = world()
    cycle = reach(here, state)
    here.create(ALLOCATING)
    assert here.cycle_state(POD) is CycleState.HANDING_OVER
    here.api.delete_pod("default/p")
    here.watch()
    assert here.cycle_state(POD) is CycleState.SETTLED
    here.cycles.check_in(cycle)
    assert list(here.cycles) == []
    assert here.ledger.pods() == []


def test_every_state_can_be_left_and_reached() -> None:
    assert set().union(*(transition.sources for transition in Transition)) == set(CycleState)
    assert {transition.target for transition in Transition} == set(CycleState)


def test_all_states_are_drawn() -> None:
    drawn = (pod_cycle.__doc__ or "").split("What the API shows wins")[0]
    assert {state.name for state in CycleState} <= set(re.findall(r"[A-Z_]{5,}", drawn))


# -- what a state means


def test_a_pod_that_the_api_does_not_show_keeps_no_record_once_it_holds_nothing() -> None:
    here = world()
    here.chosen(POD)
    here.at = RESERVATION
    here.cycles.tick()
    assert list(here.cycles) == []


def test_a_pod_that_the_api_shows_is_pending_again_when_its_reservation_expires() -> None:
    here = world()
    here.create(POD)
    here.chosen(POD)
    here.at = RESERVATION
    here.cycles.tick()
    assert here.cycle_state(POD) is CycleState.PENDING


def test_a_refused_pod_that_the_api_never_shows_is_forgotten() -> None:
    here = world()
    here.filtered(POD, ["stranger"])
    for _ in range(UNSEEN_TICKS):
        here.cycles.tick()
    assert here.cycle_state(POD) is CycleState.REFUSED
    here.cycles.tick()
    assert (here.cycle_state(POD), len(here.unschedulable)) == (None, 0)


def test_a_record_that_a_bind_works_on_outlives_its_pod_and_no_other_bind_gets_it() -> None:
    here = world()
    cycle = reach(here, CycleState.BINDING)
    here.api.delete_pod("default/p")
    here.watch()
    assert here.cycles.check_out(uid(POD)) is None
    assert here.filtered(POD)["Error"] == "pod default/p is being bound"
    here.cycles.void(cycle)
    here.cycles.check_in(cycle)
    assert list(here.cycles) == []


def test_a_write_that_may_land_keeps_the_placement_uncertain_until_it_cannot() -> None:
    here = world()
    cycle = reach(here, CycleState.BINDING)
    here.cycles.mark_written(cycle)
    here.at = RESERVATION * 10
    here.cycles.put_back(cycle)
    assert cycle.state is CycleState.UNCERTAIN
    here.cycles.start_bind(cycle)
    assert cycle.prepared is not None
    here.cycles.renew(cycle, msgspec.structs.replace(cycle.prepared, version="another"))
    here.cycles.put_back(cycle)
    assert (cycle.state, cycle.written_at, cycle.ticket) == (CycleState.RESERVED, None, None)


@in_fake_time
async def test_a_pod_that_another_scheduler_bound_elsewhere_gives_its_turn_back_and_takes_one_there() -> None:
    here = world()
    here.create(POD)
    here.chosen(POD, ["n1"])

    def elsewhere() -> None:
        there = POD.on("n2", "n2-0,NVIDIA,1000,0:;").annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING))
        here.api.add_pod(there)
        here.watch()

    asyncio.get_running_loop().call_later(1, elsewhere)
    from_n1 = gpu_pod("first", mem=10)
    here.create(from_n1.on("n1", "n1-0,NVIDIA,10,0:;").annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING)))
    assert await here.bound(POD) == "pod default/p was deleted or bound meanwhile"
    assert [[ticket.uid for ticket in here.queue.active_on(name)] for name in ("n1", "n2")] == [
        ["uid-first"],
        ["uid-p"],
    ]


# -- any sequence


class Machine(RuleBasedStateMachine):
    """Filter, bind, informer and time in any order: records and ledger always agree, and nothing else is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(answering(node("n1").gpus(2, memory=4000)), answering(node("n2").gpus(1, memory=4000)))
        self.pods = [gpu_pod(f"p{number}", mem=1500) for number in range(4)]
        self.claimed: dict[str, PodCycle] = {}

    def some(self, number: int) -> PodBuilder:
        return self.pods[number]

    @rule(number=st.integers(0, 3), names=st.sampled_from([["n1"], ["n1", "n2"], ["stranger"]]))
    def filter(self, number: int, names: list[str]) -> None:
        self.world.filtered(self.some(number), names)

    @rule(number=st.integers(0, 3))
    def start_bind(self, number: int) -> None:
        asking = self.some(number)
        cycle = self.world.cycles.check_out(uid(asking))
        if cycle is None:
            return
        if cycle.state not in (CycleState.RESERVED, CycleState.UNCERTAIN):
            self.world.cycles.check_in(cycle)
            return
        self.world.cycles.start_bind(cycle)
        self.claimed[cycle.uid] = cycle

    @rule(number=st.integers(0, 3), sent=st.booleans(), end=st.sampled_from(["bound", "failed", "unknown", "void"]))
    def end_bind(self, number: int, sent: bool, end: str) -> None:
        cycle = self.claimed.pop(uid(self.some(number)), None)
        if cycle is None:
            return
        cycles, ticket = self.world.cycles, cycle.ticket
        if sent:
            cycles.mark_written(cycle)
        match end:
            case "bound":
                cycles.confirm(cycle)
            case "void":
                cycles.void(cycle)
            case _:
                if end == "unknown":
                    cycles.mark_written(cycle)
                cycles.put_back(cycle)
        if ticket is not None and cycle.ticket is not ticket:
            self.world.queue.leave(ticket)
        cycles.check_in(cycle)

    @rule(number=st.integers(0, 3), shown=st.sampled_from(["pending", "allocating", "running", "gone"]))
    def show(self, number: int, shown: str) -> None:
        asking, pods = self.some(number), self.world.pods
        key = f"default/{asking.name}"
        bound = asking.on("n1", f"n1-{number % 2},NVIDIA,1500,0:;").annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING))
        match shown:
            case "pending":
                pods.put(key, asking.api())
            case "allocating":
                pods.put(key, bound.api())
            case "running":
                pods.put(key, bound.ended("Running").api())
            case _:
                pods.drop(key)

    @rule(seconds=st.sampled_from([1.0, SHOWN_S, RESERVATION]))
    def pass_time(self, seconds: float) -> None:
        self.world.at += seconds
        self.world.cycles.tick()

    @invariant()
    def records_match_the_ledger(self) -> None:
        assert_cycles_match(self.world.engine)

    def teardown(self) -> None:
        for number, asking in enumerate(self.pods):
            self.end_bind(number, sent=False, end="void")
            self.world.pods.put(f"default/{asking.name}", asking.api())
            self.world.pods.drop(f"default/{asking.name}")
        assert list(self.world.cycles) == []
        assert (self.world.ledger.pods(), len(self.world.unschedulable)) == ([], 0)
        assert (self.world.queue.active, self.world.queue.waiting) == (0, 0)


TestAnySequence = Machine.TestCase
TestAnySequence.settings = examples(1 / 2, stateful_step_count=40)
