"""Who waits for whom between bind and the last Allocate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.scheduler.queue.allocation_queue import DOWNWARD_API_WAIT_S, AllocationQueue, Ticket, TicketState, blocks
from tessera.scheduler.queue.node_lock import NodeLocks
from tessera.scheduler.settings import NodeLockMode
from tests.support.builders import NOW, vendors
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster
from tests.support.stepwise_scheduler import TURN

OVERDUE = 300.0


# -- turns


def dependent(*counts: int) -> tuple[bool, frozenset[int]]:
    return True, frozenset(counts)


def downward(*counts: int) -> tuple[bool, frozenset[int]]:
    return False, frozenset(counts)


Kind = tuple[bool, frozenset[int]]


@pytest.mark.parametrize(
    ("ahead", "behind", "waits"),
    [
        (dependent(1), dependent(1), True),
        (dependent(1), dependent(2), True),
        (downward(1), downward(1), False),
        (downward(1), downward(1, 2), False),
        (dependent(1), downward(1), True),
        (dependent(1, 2), downward(1), True),
        (dependent(2), downward(1), False),
        (downward(1), dependent(1), True),
        (downward(1), dependent(2), False),
        (downward(1, 2), dependent(2), True),
    ],
)
def test_a_pod_waits_where_an_allocate_could_be_meant_for_another_one(ahead: Kind, behind: Kind, waits: bool) -> None:
    first, second = (Ticket(uid, ("d", uid), "n", *kind) for uid, kind in (("a", ahead), ("b", behind)))
    assert blocks(first, second, now=0.0) is waits


@dataclass
class Line:
    """Pods that ask for their turn on node n, and the order in which they got it."""

    queue: AllocationQueue = field(init=False)
    got: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        time = asyncio.get_running_loop().time
        self.queue = AllocationQueue(
            NodeLocks(FakeCluster(), now=lambda: NOW + time(), time=time),
            vendors(),
            mode=NodeLockMode.AUTO,
            turn_s=TURN,
            lock_s=OVERDUE,
            time=time,
        )

    def ticket(self, uid: str, kind: Kind, *, node: str = "n") -> Ticket:
        ticket = self.tickets[uid] = Ticket(uid, ("default", uid), node, *kind)
        return ticket

    async def ask(self, uid: str, kind: Kind, *, node: str = "n") -> None:
        ticket = self.ticket(uid, kind, node=node)

        async def wait() -> None:
            try:
                (self.late if await self.queue.enter(ticket) else self.got).append(uid)
            except asyncio.CancelledError:
                await self.queue.give_back(ticket)
                raise

        self.tasks[uid] = asyncio.create_task(wait())
        await settle()

    async def leave(self, uid: str) -> None:
        self.queue.leave(self.tickets[uid])
        await settle()

    @property
    def is_empty(self) -> bool:
        return (self.queue.active, self.queue.waiting) == (0, 0) and not self.queue._queues


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_fake_time
async def test_dependent_pods_take_turns_in_the_order_of_asking() -> None:
    line = Line()
    for number, uid in enumerate(("p1", "p2", "p3")):
        await line.ask(uid, dependent(number))
    assert (line.got, line.queue.active, line.queue.waiting) == (["p1"], 1, 2)
    await line.leave("p1")
    assert line.got == ["p1", "p2"]
    await line.leave("p2")
    await line.leave("p3")
    assert line.got == ["p1", "p2", "p3"]
    assert line.is_empty


@in_fake_time
async def test_nodes_do_not_wait_for_each_other() -> None:
    line = Line()
    await line.ask("p1", dependent(1), node="n")
    await line.ask("p2", dependent(1), node="m")
    assert line.got == ["p1", "p2"]


@in_fake_time
async def test_a_turn_that_does_not_come_in_time_is_refused_and_leaves_nothing_behind() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    await line.ask("p2", dependent(1))
    await asyncio.sleep(TURN - 0.001)
    assert line.late == []
    await asyncio.sleep(0.001)
    await settle()
    assert line.late == ["p2"]
    await line.leave("p1")
    assert line.is_empty


@in_fake_time
async def test_a_pod_behind_one_whose_time_is_over_gets_its_turn() -> None:
    line = Line()
    await line.ask("p1", downward(1))
    await line.ask("p2", dependent(1))
    await line.ask("p3", downward(1))
    assert line.got == ["p1"]
    await asyncio.sleep(TURN)
    await settle()
    assert (line.got, line.late) == (["p1", "p3"], ["p2"])


@in_fake_time
async def test_a_turn_that_comes_in_the_last_moment_is_a_turn() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    loop = asyncio.get_running_loop()
    # Before the waiting pod's own timer, which is for the same moment.
    loop.call_at(loop.time() + TURN, line.queue.leave, line.tickets["p1"])
    await line.ask("p2", dependent(1))
    await asyncio.sleep(TURN)
    await settle()
    assert (line.got, line.late) == (["p1", "p2"], [])
    await line.leave("p2")
    assert line.is_empty


@in_fake_time
async def test_a_cancelled_bind_leaves_nothing_behind_and_lets_the_next_go() -> None:
    line = Line()
    await line.ask("p1", downward(1))
    await line.ask("p2", dependent(1))
    await line.ask("p3", downward(1))
    line.tasks["p2"].cancel()
    await settle()
    assert (line.got, line.queue.waiting) == (["p1", "p3"], 0)
    await line.leave("p1")
    await line.leave("p3")
    assert line.is_empty


@in_fake_time
async def test_a_bind_cancelled_in_the_moment_of_its_turn_gives_it_back() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    await line.ask("p2", dependent(1))
    line.queue.leave(line.tickets["p1"])
    line.tasks["p2"].cancel()
    await settle()
    assert line.is_empty


@in_fake_time
async def test_a_bind_cancelled_just_before_its_turn_is_passed_over() -> None:
    line = Line()
    for uid in ("p1", "p2", "p3"):
        await line.ask(uid, dependent(1))
    line.tasks["p2"].cancel()
    line.queue.leave(line.tickets["p1"])
    await settle()
    assert line.got == ["p1", "p3"]
    await line.leave("p3")
    assert line.is_empty


@in_fake_time
async def test_a_pod_that_goes_while_it_waits_is_not_waited_for() -> None:
    line = Line()
    for uid in ("p1", "p2", "p3"):
        await line.ask(uid, dependent(1))
    await line.leave("p2")
    assert line.tasks["p2"].done(), "its bind goes on, and finds out"
    assert line.tickets["p2"].state is TicketState.OUT
    await line.leave("p1")
    assert line.tickets["p3"].state is TicketState.ACTIVE


@in_fake_time
async def test_leaving_twice_changes_nothing() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    await line.ask("p2", dependent(1))
    await line.leave("p1")
    await line.leave("p1")
    assert (line.got, line.queue.active) == (["p1", "p2"], 1)


@in_fake_time
async def test_a_turn_that_no_plugin_ever_ends_ends_by_itself() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    await asyncio.sleep(OVERDUE - 1)
    line.queue.end_overdue()
    assert line.queue.active == 1
    await line.ask("p2", dependent(1))
    await asyncio.sleep(1)
    line.queue.end_overdue()
    await settle()
    assert line.got == ["p1", "p2"]


@in_fake_time
async def test_pods_in_handover_keep_their_turn_over_a_restart() -> None:
    line = Line()
    line.queue.enter_at_once(line.ticket("old", dependent(1)))
    await line.ask("p1", dependent(1))
    assert line.got == []
    await line.leave("old")
    assert line.got == ["p1"]


@in_fake_time
async def test_a_waiting_pod_that_is_seen_in_handover_is_active_at_once_and_its_bind_goes_on() -> None:
    line = Line()
    for uid in ("p1", "p2", "p3"):
        await line.ask(uid, dependent(1))
    line.queue.enter_at_once(line.tickets["p2"])
    await settle()
    assert (line.got, line.queue.active, line.queue.waiting) == (["p1", "p2"], 2, 1)
    await line.leave("p1")
    assert line.got == ["p1", "p2"]
    await line.leave("p2")
    assert line.got == ["p1", "p2", "p3"]
    await line.leave("p3")
    assert line.is_empty


@in_fake_time
async def test_a_pod_that_has_its_turn_does_not_wait_for_itself() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    ticket = line.tickets["p1"]
    assert await line.queue.enter(ticket) == ""
    assert line.queue.active == 1
    await line.leave("p1")
    assert line.is_empty


@in_fake_time
async def test_a_bind_that_waits_is_not_blocked_by_its_own_pod_seen_in_handover() -> None:
    line = Line()
    await line.ask("p1", dependent(1))
    await line.ask("p2", dependent(1))
    waiting = line.tickets["p2"]
    line.queue.enter_at_once(line.ticket("p2", dependent(1)))
    await line.leave("p1")
    assert (line.got, waiting.state) == (["p1", "p2"], TicketState.ACTIVE)
    await line.leave("p2")
    line.queue.leave(waiting)
    assert line.is_empty


# -- beside pods that use the downward API


@in_fake_time
async def test_downward_api_pods_do_not_wait_for_each_other() -> None:
    line = Line()
    for uid, kind in (("p1", downward(1)), ("p2", downward(1)), ("p3", downward(1, 2))):
        await line.ask(uid, kind)
    assert line.got == ["p1", "p2", "p3"]


@pytest.mark.parametrize(("first", "second"), [(downward(1), dependent(1)), (dependent(1), downward(1))])
@in_fake_time
async def test_a_dependent_pod_and_a_downward_api_pod_wait_for_each_other(first: Kind, second: Kind) -> None:
    line = Line()
    await line.ask("p1", first)
    await line.ask("p2", second)
    assert line.got == ["p1"]
    await line.leave("p1")
    assert line.got == ["p1", "p2"]


@in_fake_time
async def test_a_dependent_pod_waits_for_downward_api_pods_until_they_are_handed_over() -> None:
    line = Line()
    await line.ask("p1", downward(1))
    await line.ask("p2", dependent(1))
    await asyncio.sleep(DOWNWARD_API_WAIT_S + 1)
    assert line.got == ["p1"]
    await asyncio.sleep(TURN)
    assert line.late == ["p2"]


@in_fake_time
async def test_a_dependent_pod_that_waits_is_not_overtaken_by_downward_api_pods() -> None:
    line = Line()
    await line.ask("p1", downward(1))
    await line.ask("p2", dependent(1))
    await line.ask("p3", downward(1))
    await line.ask("p4", downward(2))
    assert line.got == ["p1", "p4"], "p4 could not be taken for p2"
    await line.leave("p1")
    await line.leave("p2")
    assert line.got == ["p1", "p4", "p2", "p3"]


@in_fake_time
async def test_a_stuck_dependent_pod_holds_downward_api_pods_up_for_ten_seconds_only() -> None:
    line = Line()
    await line.ask("stuck", dependent(1))
    await line.ask("p1", downward(1))
    await asyncio.sleep(DOWNWARD_API_WAIT_S - 0.001)
    assert line.got == ["stuck"]
    await asyncio.sleep(0.002)
    assert line.got == ["stuck", "p1"]
    await line.ask("p2", downward(1))
    assert line.got == ["stuck", "p1", "p2"], "it is not waited for any more"
    await line.ask("p3", dependent(1))
    for uid in ("p1", "p2"):
        await line.leave(uid)
    assert line.got == ["stuck", "p1", "p2"], "another dependent pod still waits"
    await line.leave("stuck")
    assert line.got == ["stuck", "p1", "p2", "p3"]
    await line.leave("p3")
    assert line.is_empty


@in_fake_time
async def test_a_downward_api_pod_waits_for_each_dependent_pod_ahead_from_its_own_turn() -> None:
    line = Line()
    await line.ask("d1", dependent(1))
    await line.ask("d2", dependent(1))
    await asyncio.sleep(1)
    await line.ask("p1", downward(1))
    await asyncio.sleep(8)
    await line.leave("d1")
    assert line.got == ["d1", "d2"], "d2 begins now, and must not be taken for p1"
    await asyncio.sleep(DOWNWARD_API_WAIT_S - 0.001)
    assert line.got == ["d1", "d2"]
    await asyncio.sleep(0.002)
    assert line.got == ["d1", "d2", "p1"]


@in_fake_time
async def test_a_downward_api_pod_is_refused_rather_than_bound_beside_a_binding_that_is_new() -> None:
    line = Line()
    await line.ask("slow", dependent(1, 1))
    await line.ask("p1", downward(1))
    for _ in range(5):
        await asyncio.sleep(TURN / 5)
        line.queue.restart_clock(line.tickets["slow"])
    await settle()
    assert (line.got, line.late) == (["slow"], ["p1"]), "the agent would take p1 for slow"


@in_fake_time
async def test_a_downward_api_pod_is_not_refused_because_of_pods_that_wait_ahead() -> None:
    line = Line()
    await line.ask("stuck", dependent(2))
    await asyncio.sleep(DOWNWARD_API_WAIT_S)
    for uid in ("d1", "d2"):
        await line.ask(uid, dependent(1))
    await line.ask("p1", downward(1))
    await asyncio.sleep(TURN)
    assert line.got == ["stuck", "p1"]


@in_fake_time
async def test_the_ten_seconds_begin_when_the_binding_is_written() -> None:
    line = Line()
    await line.ask("slow", dependent(1))
    await asyncio.sleep(DOWNWARD_API_WAIT_S)
    line.queue.restart_clock(line.tickets["slow"])
    await line.ask("p1", downward(1))
    assert line.got == ["slow"]
    await line.leave("slow")
    assert line.got == ["slow", "p1"]


# -- any sequence

KINDS = (dependent(1), dependent(2), dependent(1, 2), downward(1), downward(1, 2))
pods = st.integers(0, 7).map("p{}".format)
steps = st.one_of(
    st.tuples(st.just("ask"), pods, st.sampled_from(KINDS), st.sampled_from(["n", "m"])),
    st.tuples(st.just("leave"), pods),
    st.tuples(st.just("cancel"), pods),
    st.tuples(st.just("pass"), st.sampled_from([1.0, DOWNWARD_API_WAIT_S, TURN, OVERDUE])),
)


@given(st.lists(steps, max_size=40))
def test_whatever_happens_one_dependent_pod_is_active_and_no_free_turn_is_withheld(
    script: Sequence[tuple[object, ...]],
) -> None:
    @in_fake_time
    async def play() -> None:
        line = Line()
        for step in script:
            await act(line, step)
            check(line.queue)
        for task in line.tasks.values():
            task.cancel()
        await settle()
        await asyncio.sleep(OVERDUE)
        line.queue.end_overdue()
        assert line.is_empty

    play()


async def act(line: Line, step: tuple[object, ...]) -> None:
    match step:
        case ("ask", str(uid), (bool(depends), frozenset() as counts), str(node)):
            # One bind of a pod at a time, and one ticket: the record of the pod sees to it.
            if uid not in line.tasks or line.tickets[uid].state is TicketState.OUT:
                await line.ask(uid, (depends, counts), node=node)
        case ("leave", str(uid)) if uid in line.tickets:
            await line.leave(uid)
        case ("cancel", str(uid)) if uid in line.tasks:
            line.tasks[uid].cancel()
        case ("pass", float(seconds)):
            await asyncio.sleep(seconds)
            line.queue.end_overdue()
    await settle()


def check(queue: AllocationQueue) -> None:
    now = asyncio.get_running_loop().time()
    for found in queue._queues.values():
        assert sum(ticket.depends_on_allocate for ticket in found.active) <= 1
        ahead = list(found.active)
        for waiting in found.waiting:
            assert any(blocks(each, waiting, now) for each in ahead), "its turn was free"
            ahead.append(waiting)
