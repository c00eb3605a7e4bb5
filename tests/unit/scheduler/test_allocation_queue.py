from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices import MigPlacement, MigSlot
from tessera.core.grants import Grant, Placement
from tessera.scheduler.allocation_queue import CARRIED_WAITS_S, Handover, Shape, Slice, shape_of
from tests.support.event_loops import in_fake_time

FORGET = 300.0
TIMEOUT = 20.0


def slices(*uuids: str) -> tuple[Slice, ...]:
    return tuple((uuid, 1000, 10, None) for uuid in uuids)


INSTANCE = MigSlot("1g.10gb", MigPlacement(0, 1))
ONE_ON_A = Shape((slices("a"),))
ONE_ON_B = Shape((slices("b"),))
TWO = Shape((slices("a", "b"),))
ONE_AND_TWO = Shape((slices("c"), slices("a", "b")))
ALONE = Shape((slices("z", "y", "x"),), alone=True)
CARRIED_ON_A = Shape((slices("a"),), carried=True)
CARRIED_ON_B = Shape((slices("b"),), carried=True)
CARRIED_TWO = Shape((slices("a", "b"),), carried=True)


# -- shapes


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        (ONE_ON_A, ONE_ON_A, False),
        (ONE_ON_A, ONE_ON_B, True),
        (ONE_ON_A, Shape(((("a", 2000, 10, None),),)), True),
        (ONE_ON_A, Shape(((("a", 1000, 20, None),),)), True),
        (ONE_ON_A, Shape(((("a", 1000, 10, INSTANCE),),)), True),
        (ONE_ON_A, TWO, False),
        (ONE_AND_TWO, ONE_ON_A, True),
        (ONE_AND_TWO, TWO, True),
        (ONE_AND_TWO, ONE_AND_TWO, False),
        (ONE_AND_TWO, Shape((slices("a", "b"), slices("c"))), True),
        (ALONE, ONE_ON_A, True),
        (ALONE, ALONE, True),
        (ONE_AND_TWO, Shape(ONE_AND_TWO.slices, inits=frozenset({0})), True),
        (CARRIED_ON_A, CARRIED_ON_A, False),
        (CARRIED_ON_A, CARRIED_ON_B, False),
        (CARRIED_ON_A, ONE_ON_A, True),
        (CARRIED_ON_A, ONE_ON_B, True),
        (CARRIED_ON_A, ONE_AND_TWO, True),
        (CARRIED_ON_A, TWO, False),
        (CARRIED_TWO, ONE_AND_TWO, True),
        (CARRIED_ON_A, ALONE, True),
    ],
)
def test_shapes_conflict_where_an_allocate_could_be_meant_for_either(one: Shape, other: Shape, conflict: bool) -> None:
    assert one.conflicts(other) is conflict
    assert other.conflicts(one) is conflict


def test_a_shape_is_what_the_containers_with_devices_get() -> None:
    placement = Placement(
        "n1",
        {
            "Z": ((Grant("z", "Z", 5, 6),), (), ()),
            "A": ((), (Grant("a", "A", 1, 2), Grant("b", "A", 3, 4, mig=INSTANCE)), ()),
        },
    )
    assert shape_of(placement) == Shape(((("a", 1, 2, None), ("b", 3, 4, INSTANCE)), (("z", 5, 6, None),)))
    assert shape_of(placement, alone=True).alone
    assert shape_of(placement, carried=True).carried
    assert shape_of(placement, inits=[1]).inits == {0}


# -- turns


@dataclass
class Line:
    """Pods that ask for their turn on node n, and the order in which they got it."""

    handover: Handover = field(
        default_factory=lambda: Handover(forget_after=FORGET, time=lambda: asyncio.get_running_loop().time())
    )
    got: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def ask(self, uid: str, shape: Shape, *, node: str = "n", timeout: float = TIMEOUT) -> None:
        async def wait() -> None:
            (self.got if await self.handover.turn(node, uid, shape, timeout=timeout) else self.late).append(uid)

        self.tasks[uid] = asyncio.create_task(wait())
        await settle()

    async def over(self, uid: str) -> bool:
        ended = self.handover.over(uid)
        await settle()
        return ended

    @property
    def at_rest(self) -> bool:
        """Nothing in hand, nobody waiting, nothing kept."""
        return (self.handover.in_hand, self.handover.waiting) == (0, 0) and not self.handover._queues


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_fake_time
async def test_pods_that_could_be_mixed_up_take_turns_in_the_order_of_asking() -> None:
    line = Line()
    for i, uid in enumerate(("p1", "p2", "p3")):
        await line.ask(uid, Shape((slices(f"card-{i}"),)))
    assert (line.got, line.handover.in_hand, line.handover.waiting) == (["p1"], 1, 2)
    await line.over("p1")
    assert line.got == ["p1", "p2"]
    await line.over("p2")
    await line.over("p3")
    assert line.got == ["p1", "p2", "p3"]
    assert line.at_rest


@in_fake_time
async def test_equal_shapes_and_different_counts_go_in_parallel() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_A)
    await line.ask("p3", TWO)
    assert line.got == ["p1", "p2", "p3"]


@in_fake_time
async def test_nodes_do_not_wait_for_each_other() -> None:
    line = Line()
    await line.ask("p1", ALONE, node="n")
    await line.ask("p2", ALONE, node="m")
    assert line.got == ["p1", "p2"]


@in_fake_time
async def test_nobody_overtakes_a_waiter_that_it_would_keep_waiting() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_B)
    await line.ask("p3", ONE_ON_A)
    assert line.got == ["p1"], "p3 equals the pod in hand but would starve p2"
    await line.ask("p4", TWO)
    assert line.got == ["p1", "p4"], "p4 is in nobody's way"
    await line.over("p1")
    assert line.got == ["p1", "p4", "p2"]
    await line.over("p2")
    assert line.got == ["p1", "p4", "p2", "p3"]


@in_fake_time
async def test_a_turn_that_does_not_come_in_time_is_refused_and_leaves_nobody_behind() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_B)
    await line.ask("p3", ONE_ON_A, timeout=100.0)
    await asyncio.sleep(TIMEOUT - 0.001)
    assert line.late == []
    await asyncio.sleep(0.001)
    await settle()
    assert line.late == ["p2"]
    assert line.got == ["p1", "p3"], "p3 equals p1 and waited only for p2"
    await line.over("p1")
    await line.over("p3")
    assert line.at_rest


@in_fake_time
async def test_a_turn_that_comes_with_the_last_moment_is_a_turn() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    loop = asyncio.get_running_loop()
    # Before the waiter's own timer, which is for the same moment.
    loop.call_at(loop.time() + TIMEOUT, line.handover.over, "p1")
    await line.ask("p2", ONE_ON_B)
    await asyncio.sleep(TIMEOUT)
    await settle()
    assert (line.got, line.late) == (["p1", "p2"], [])
    assert await line.over("p2")
    assert line.at_rest


@in_fake_time
async def test_a_cancelled_waiter_leaves_nothing_behind_and_lets_the_next_go() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_B)
    await line.ask("p3", ONE_ON_A)
    line.tasks["p2"].cancel()
    await settle()
    assert (line.got, line.handover.waiting) == (["p1", "p3"], 0)
    await line.over("p1")
    await line.over("p3")
    assert line.at_rest


@in_fake_time
async def test_a_bind_cancelled_in_the_moment_of_its_turn_gives_it_back() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_B)
    line.handover.over("p1")
    line.tasks["p2"].cancel()
    await settle()
    assert line.at_rest


@in_fake_time
async def test_a_bind_cancelled_just_before_its_turn_is_passed_over() -> None:
    line = Line()
    await line.ask("p1", ALONE)
    await line.ask("p2", ALONE)
    await line.ask("p3", ALONE)
    line.tasks["p2"].cancel()
    line.handover.over("p1")
    await settle()
    assert line.got == ["p1", "p3"]
    await line.over("p3")
    assert line.at_rest


@in_fake_time
async def test_ending_what_is_not_in_hand_changes_nothing() -> None:
    line = Line()
    assert not await line.over("nobody")
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_B)
    assert not await line.over("p2")
    assert line.got == ["p1"]


@in_fake_time
async def test_a_turn_that_no_agent_ever_ends_is_forgotten() -> None:
    line = Line()
    await line.ask("p1", ONE_ON_A)
    await line.ask("p2", ONE_ON_B, timeout=1000.0)
    await asyncio.sleep(FORGET - 1)
    assert line.handover.forget_old() == []
    await asyncio.sleep(1)
    assert line.handover.forget_old() == ["p1"]
    await settle()
    assert line.got == ["p1", "p2"]


@in_fake_time
async def test_a_forgotten_turn_is_not_taken_up_again_until_the_pod_is_gone() -> None:
    line = Line()
    line.handover.resume("n", "p1", ALONE)
    await asyncio.sleep(FORGET)
    line.handover.forget_old()
    line.handover.resume("n", "p1", ALONE)
    assert line.at_rest, "every later event of that pod would block the node again"
    line.handover.over("p1")
    line.handover.resume("n", "p1", ALONE)
    assert line.handover.in_hand == 1


@in_fake_time
async def test_a_forgotten_pod_may_be_bound_again() -> None:
    line = Line()
    await line.ask("p1", ALONE)
    await asyncio.sleep(FORGET)
    line.handover.forget_old()
    await line.ask("p1", ALONE)
    assert (line.got, line.handover.in_hand) == (["p1", "p1"], 1)


@in_fake_time
async def test_pods_in_handover_keep_their_turn_over_a_restart() -> None:
    line = Line()
    line.handover.resume("n", "old", ONE_ON_A)
    line.handover.resume("n", "old", ONE_ON_B)
    await line.ask("p1", ONE_ON_B)
    assert line.got == []
    await line.over("old")
    assert line.got == ["p1"]


@in_fake_time
async def test_a_pod_that_has_its_turn_does_not_wait_for_itself() -> None:
    line = Line()
    await line.ask("p1", ALONE)
    await line.ask("p1", ALONE)
    assert (line.got, line.handover.in_hand) == (["p1", "p1"], 1)
    await line.over("p1")
    assert line.at_rest


@in_fake_time
async def test_a_pod_that_goes_to_another_node_gives_its_turn_back() -> None:
    line = Line()
    await line.ask("p1", ALONE, node="n")
    await line.ask("p2", ALONE, node="n")
    await line.ask("p1", ALONE, node="m")
    assert (sorted(line.got), line.handover.in_hand) == (["p1", "p1", "p2"], 2)
    await line.over("p1")
    await line.over("p2")
    assert line.at_rest


@in_fake_time
async def test_a_waiter_whose_pod_is_seen_in_handover_meanwhile_is_not_in_its_own_way() -> None:
    line = Line()
    await line.ask("p1", ALONE)
    await line.ask("p2", ALONE)
    line.handover.resume("n", "p2", ALONE)
    await line.over("p1")
    assert line.got == ["p1", "p2"]
    await line.over("p2")
    assert line.at_rest


# -- beside pods that carry their slices


@in_fake_time
async def test_pods_that_carry_their_slices_wait_for_none_of_their_kind() -> None:
    line = Line()
    for uid, shape in (("p1", CARRIED_ON_A), ("p2", CARRIED_ON_B), ("p3", CARRIED_TWO)):
        await line.ask(uid, shape)
    assert line.got == ["p1", "p2", "p3"]


@pytest.mark.parametrize(("first", "second"), [(CARRIED_ON_A, ONE_ON_A), (ONE_ON_A, CARRIED_ON_A)])
def test_a_dependent_pod_and_one_that_carries_wait_for_each_other(first: Shape, second: Shape) -> None:
    @in_fake_time
    async def check() -> None:
        line = Line()
        await line.ask("p1", first)
        await line.ask("p2", second)
        assert line.got == ["p1"]
        await line.over("p1")
        assert line.got == ["p1", "p2"]

    check()


@in_fake_time
async def test_a_dependent_pod_waits_for_those_that_carry_until_they_are_handed_over() -> None:
    line = Line()
    await line.ask("p1", CARRIED_ON_A)
    await line.ask("p2", ONE_ON_B)
    await asyncio.sleep(CARRIED_WAITS_S + 1)
    assert line.got == ["p1"]
    await asyncio.sleep(TIMEOUT)
    assert line.late == ["p2"]


@in_fake_time
async def test_a_dependent_pod_that_waits_is_not_overtaken_by_those_that_carry() -> None:
    line = Line()
    await line.ask("p1", CARRIED_ON_A)
    await line.ask("p2", ONE_ON_A)
    await line.ask("p3", CARRIED_ON_B)
    await line.ask("p4", CARRIED_TWO)
    assert line.got == ["p1", "p4"], "p4 could not be taken for p2"
    await line.over("p1")
    await line.over("p2")
    assert line.got == ["p1", "p4", "p2", "p3"]


@in_fake_time
async def test_a_stuck_dependent_pod_holds_up_those_that_carry_for_a_moment_only() -> None:
    line = Line()
    await line.ask("stuck", ONE_ON_A)
    await line.ask("p1", CARRIED_ON_A)
    await asyncio.sleep(CARRIED_WAITS_S - 0.001)
    assert line.got == ["stuck"]
    await asyncio.sleep(0.002)
    assert line.got == ["stuck", "p1"]
    await line.ask("p2", CARRIED_ON_B)
    assert line.got == ["stuck", "p1", "p2"], "nobody waits for it any more"
    await line.ask("p3", ONE_ON_B)
    for uid in ("p1", "p2"):
        await line.over(uid)
    assert line.got == ["stuck", "p1", "p2"], "another dependent pod still does"
    await line.over("stuck")
    assert line.got == ["stuck", "p1", "p2", "p3"]
    await line.over("p3")
    assert line.at_rest


@in_fake_time
async def test_those_that_carry_wait_no_longer_than_one_timeout_for_several_dependent_pods() -> None:
    line = Line()
    await line.ask("d1", ONE_ON_A)
    await line.ask("d2", ONE_ON_B, timeout=100.0)
    await asyncio.sleep(1)
    await line.ask("p1", CARRIED_ON_A)
    await asyncio.sleep(8)
    await line.over("d1")
    assert line.got == ["d1", "d2"], "p1 waits for d2 from the moment of its turn"
    await asyncio.sleep(CARRIED_WAITS_S - 0.001)
    assert line.got == ["d1", "d2"]
    await asyncio.sleep(0.002)
    assert line.got == ["d1", "d2", "p1"]
    await line.ask("p2", CARRIED_ON_A, timeout=0.5)
    assert line.got == ["d1", "d2", "p1", "p2"]


@in_fake_time
async def test_the_moment_begins_when_the_binding_is_written() -> None:
    line = Line()
    await line.ask("slow", ONE_ON_A)
    await asyncio.sleep(CARRIED_WAITS_S)
    line.handover.begun("slow")
    line.handover.begun("nobody")
    await line.ask("p1", CARRIED_ON_A)
    assert line.got == ["slow"]
    await line.over("slow")
    assert line.got == ["slow", "p1"]


@in_fake_time
async def test_a_pod_that_carries_and_stops_waiting_leaves_nothing_behind() -> None:
    line = Line()
    await line.ask("stuck", ONE_ON_A)
    await line.ask("p1", CARRIED_ON_A)
    await line.ask("p2", CARRIED_ON_A)
    line.tasks["p1"].cancel()
    await asyncio.sleep(CARRIED_WAITS_S)
    await settle()
    assert (line.got, line.handover.in_hand, line.handover.waiting) == (["stuck", "p2"], 2, 0)
    await line.over("stuck")
    await line.over("p2")
    assert line.at_rest


# -- any sequence

SHAPES = (ONE_ON_A, ONE_ON_B, TWO, ONE_AND_TWO, ALONE, CARRIED_ON_A, CARRIED_TWO)
pods = st.integers(0, 7).map("p{}".format)
steps = st.one_of(
    st.tuples(st.just("ask"), pods, st.sampled_from(SHAPES), st.sampled_from(["n", "m"])),
    st.tuples(st.just("over"), pods),
    st.tuples(st.just("cancel"), pods),
    st.tuples(st.just("pass"), st.sampled_from([1.0, CARRIED_WAITS_S, TIMEOUT, FORGET])),
)


@given(st.lists(steps, max_size=40))
def test_whatever_happens_no_two_conflicting_pods_are_in_hand_and_no_free_turn_is_withheld(
    script: Sequence[tuple[object, ...]],
) -> None:
    @in_fake_time
    async def play() -> None:
        line = Line()
        for step in script:
            await act(line, step)
            check(line.handover)
        for task in line.tasks.values():
            task.cancel()
        await settle()
        await asyncio.sleep(FORGET)
        line.handover.forget_old()
        assert line.at_rest

    play()


async def act(line: Line, step: tuple[object, ...]) -> None:
    match step:
        case ("ask", str(uid), Shape() as shape, str(node)):
            # One bind of a pod at a time: the binder sees to it.
            if uid not in line.tasks or line.tasks[uid].done():
                await line.ask(uid, shape, node=node)
        case ("over", str(uid)):
            await line.over(uid)
        case ("cancel", str(uid)) if uid in line.tasks:
            line.tasks[uid].cancel()
        case ("pass", float(seconds)):
            await asyncio.sleep(seconds)
            line.handover.forget_old()
    await settle()


def check(handover: Handover) -> None:
    for queue in handover._queues.values():
        in_hand = [pod.shape for pod in queue.in_hand.values()]
        for i, one in enumerate(in_hand):
            # Those that carry pass a dependent pod after a moment.
            assert not any(one.conflicts(other) and not (one.carried or other.carried) for other in in_hand[i + 1 :])
        before = in_hand
        for waiter in queue.waiting:
            assert any(waiter.pod.shape.conflicts(shape) for shape in before), "its turn was free"
            before = [*before, waiter.pod.shape]
