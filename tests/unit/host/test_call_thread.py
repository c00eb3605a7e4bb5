"""What follows a call is done in its turn and disturbs nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from tessera.host.call_thread import AsyncComputeModes, AsyncInventory, CallThread, CallTimeout
from tessera.host.cards import CardError, CardEvent, CardFacts, ComputeMode, Found, InventoryError, Links, TopologyLevel
from tessera.host.simulated.description import parse_description
from tessera.node.health.hardware_watch import HardwareWatch
from tessera.node.settings import AgentSettings
from tests.support.cards import FaultyCards
from tests.support.event_loops import in_real_time
from tests.support.fake_mps import A, FakeModes
from tests.support.logs import captured

CARD = CardFacts("GPU-a", 0, "NVIDIA H200")
AT_ONCE = 0.01
"""seconds, for calls that cannot end before a test lets them"""
LONG = 30.0

DEFAULT, PROHIBITED, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS


async def test_a_follow_up_is_done_before_the_next_call_and_its_fault_is_nobodys() -> None:
    thread = CallThread("test")
    done: list[str] = []

    def fails() -> None:
        done.append("failed")
        raise OSError("no room")

    thread.follow_up(lambda: done.append("too early"))
    await thread.call(lambda: done.append("call"), deadline=10.0)
    thread.follow_up(fails)
    thread.follow_up(lambda: done.append("second"))
    await thread.call(lambda: done.append("last"), deadline=10.0)
    assert done == ["call", "failed", "second", "last"]
    await thread.close(patience=1.0)


class ScriptedInventory:
    """Does what a test says in `work`, whatever is asked, and remembers which thread asked."""

    def __init__(self, work: Callable[[], object] = lambda: None) -> None:
        self.work = work
        self.threads: dict[str, int] = {}

    def scan(self) -> list[Found]:
        self._note("scan")
        return [CARD]

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        self._note("links")
        return {(uuids[0], uuids[1]): Links(TopologyLevel.NODE)}

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        self._note("listen")
        return {uuids[0]: "no memory"}

    def wait(self, timeout: float) -> CardEvent | None:
        self._note("wait")
        return CardEvent("GPU-a", xid=79)

    def close(self) -> None:
        raise AssertionError("its owner closes it")

    def _note(self, what: str) -> None:
        self.threads[what] = threading.get_ident()
        self.work()


@asynccontextmanager
async def asked(inventory: ScriptedInventory, *, scan_deadline: float = LONG) -> AsyncIterator[AsyncInventory]:
    made = AsyncInventory(inventory, scan_deadline=scan_deadline)
    try:
        yield made
    finally:
        await made.close()


@in_real_time
async def test_answers_come_back_from_two_threads_of_their_own() -> None:
    inventory = ScriptedInventory()
    async with asked(inventory) as asking:
        assert list(await asking.scan()) == [CARD]
        assert dict(await asking.links(["a", "b"])) == {("a", "b"): Links(TopologyLevel.NODE)}
        assert dict(await asking.listen(["GPU-a"])) == {"GPU-a": "no memory"}
        assert await asking.wait(0.5) == CardEvent("GPU-a", xid=79)
    threads = inventory.threads
    assert threads["scan"] == threads["links"]
    assert threads["listen"] == threads["wait"]
    assert len({*threads.values(), threading.get_ident()}) == 3


def failing(error: Exception) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InventoryError("driver not loaded"), "driver not loaded"),
        (CardError("GPU-a", "lost"), "GPU-a: lost"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
    ],
)
@in_real_time
async def test_whatever_a_driver_raises_is_an_error_of_the_inventory(error: Exception, text: str) -> None:
    async with asked(ScriptedInventory(failing(error))) as asking:
        with pytest.raises(InventoryError) as caught:
            await asking.scan()
        assert str(caught.value) == text
        assert isinstance(caught.value, CardError) is isinstance(error, CardError)


@in_real_time
async def test_a_driver_that_hangs_is_an_error_and_scans_go_on_when_it_answers_again() -> None:
    answers = threading.Event()
    inventory = ScriptedInventory(answers.wait)
    async with asked(inventory, scan_deadline=AT_ONCE) as asking:
        for _ in range(3):
            with pytest.raises(InventoryError, match="no answer within"):
                await asking.scan()
        answers.set()
    async with asked(inventory) as asking:
        assert list(await asking.scan()) == [CARD]


@in_real_time
async def test_nobody_queues_up_behind_a_call_that_hangs() -> None:
    thread, began, answers, calls = CallThread("t"), threading.Event(), threading.Event(), []

    def hang() -> None:
        began.set()
        answers.wait()

    # On a busy machine the deadline may pass before the thread takes the call, which is never made then.
    while not began.is_set():
        with pytest.raises(CallTimeout):
            await thread.call(hang, deadline=AT_ONCE)
    for _ in range(3):
        with pytest.raises(CallTimeout):
            await thread.call(lambda: calls.append("early"), deadline=AT_ONCE)
    answers.set()
    await thread.call(lambda: calls.append("late"), deadline=LONG)
    assert calls == ["late"]
    await thread.close(patience=LONG)


@in_real_time
async def test_a_call_that_never_got_its_turn_is_never_made() -> None:
    thread, began, answers, calls = CallThread("t"), threading.Event(), threading.Event(), []

    def hang() -> str:
        began.set()
        answers.wait()
        return "first"

    first = asyncio.create_task(thread.call(hang, deadline=LONG))
    await asyncio.to_thread(began.wait)
    with pytest.raises(CallTimeout):
        await thread.call(lambda: calls.append("second"), deadline=AT_ONCE)
    answers.set()
    assert await first == "first"
    assert await thread.call(lambda: len(calls), deadline=LONG) == 0
    await thread.close(patience=LONG)


@in_real_time
async def test_stopping_waits_for_a_call_in_flight_but_not_for_ever() -> None:
    thread, began, answers, ended = CallThread("t"), threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        answers.wait()
        ended.set()

    call = asyncio.create_task(thread.call(hang, deadline=LONG))
    await asyncio.to_thread(began.wait)
    call.cancel()
    await asyncio.wait({call})
    await thread.close(patience=AT_ONCE)
    assert not ended.is_set()
    answers.set()
    await asyncio.to_thread(ended.wait)
    await thread.close(patience=LONG)  # a second time there is nothing left to end


@in_real_time
async def test_an_answer_that_comes_after_the_loop_is_closed_disturbs_nobody() -> None:
    thread, answers = CallThread("t"), threading.Event()

    async def abandon() -> None:
        with pytest.raises(CallTimeout):
            await thread.call(answers.wait, deadline=AT_ONCE)

    await asyncio.to_thread(lambda: asyncio.run(abandon()))
    answers.set()
    assert await thread.call(lambda: "still there", deadline=LONG) == "still there"
    await thread.close(patience=LONG)


@in_real_time
async def test_what_happens_to_simulated_cards_is_seen_in_the_fleet() -> None:
    description = parse_description("cards: [{model: H200, count: 2}]", file="cards.yaml")
    hardware = FaultyCards(lambda: description, node_name="n1")
    first, second = (str(card.uuid) for card in hardware.scan())
    asking = AsyncInventory(hardware)
    watch = HardwareWatch(asking, AgentSettings(node_name="n1"))
    running = asyncio.create_task(watch.run())

    async def until(problems: dict[str, str]) -> None:
        async with aclosing(watch.fleet.changes()) as fleets:
            async for fleet in fleets:
                if {card.facts.uuid: card.problem for card in fleet} == problems:
                    return

    with captured():
        await until({first: "", second: ""})
        hardware.push(CardEvent(first, xid=31))
        hardware.push(CardEvent(first, xid=79))
        await until({first: "XID 79: the card has fallen off the bus", second: ""})
        hardware.lose(second)
        hardware.push(CardEvent(first, xid=79))  # makes it look at once
        await until({first: "XID 79: the card has fallen off the bus", second: "GPU is lost"})
        running.cancel()
        await asyncio.wait({running})
    await asking.close()
    hardware.close()


# -- compute modes, asked from a thread


@pytest.mark.parametrize(
    ("now", "before", "after"),
    [
        (EXCLUSIVE, DEFAULT, DEFAULT),
        (PROHIBITED, DEFAULT, DEFAULT),
        (EXCLUSIVE, EXCLUSIVE, EXCLUSIVE),
        (DEFAULT, EXCLUSIVE, DEFAULT),
    ],
)
async def test_the_mode_before_comes_back_unless_somebody_chose_another(
    now: ComputeMode, before: ComputeMode, after: ComputeMode
) -> None:
    hardware = FakeModes(A, mode=now)
    modes = AsyncComputeModes(hardware)
    await modes.restore(A, before)
    assert hardware.modes[A] is after
    await modes.close()


async def test_a_mode_that_is_right_is_not_set_again() -> None:
    hardware = FakeModes(A, mode=EXCLUSIVE)
    modes = AsyncComputeModes(hardware)
    await modes.ensure(A, EXCLUSIVE)
    assert hardware.changes == []
    await modes.close()
