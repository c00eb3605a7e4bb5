"""When decisions are written as events: warnings soon, successes when there is time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from tessera.core.model.misfits import CardMisfit, Reason, cards_misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Refused
from tessera.kube.event_broadcaster import EventBroadcaster
from tessera.scheduler import event_recorder
from tessera.scheduler.event_recorder import EventRecorder
from tessera.scheduler.observer import BindEvent, PlacedEvent, RefusedEvent
from tests.support.event_loops import in_fake_time

EPOCH = 1_793_880_000.0
"""2026-11-05T12:00:00Z"""


class Written:
    """The apiserver's events; while it is `down` nothing is answered."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.up = asyncio.Event()
        self.up.set()

    async def create(self, path: str, body: Any) -> None:
        await self.up.wait()
        self.events.append(body)

    async def patch(self, path: str, body: Any) -> None:
        raise AssertionError("no event here happens twice")

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in self.events]


@asynccontextmanager
async def told(*, hami_texts: bool = False) -> AsyncIterator[tuple[Written, EventRecorder]]:
    clock = asyncio.get_running_loop().time
    began = clock()

    def now() -> float:
        return EPOCH + clock() - began

    written = Written()
    events = EventBroadcaster(written, component="hami-scheduler", host="", now=now)
    recorder = EventRecorder(events, now=now, hami_texts=hami_texts)
    tasks = [asyncio.create_task(events.run()), asyncio.create_task(recorder.run())]
    try:
        yield written, recorder
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def pod(number: int) -> PodRequest:
    return PodRequest(f"uid-{number}", "team", f"p{number}", ())


def placed(number: int) -> PlacedEvent:
    return PlacedEvent(pod(number), lambda: f"all nodes of p{number}", lambda: f"one node of p{number}")


def refused(number: int, *, is_first: bool = True) -> RefusedEvent:
    return RefusedEvent(pod(number), Refused({}), is_first, lambda: f"no node for p{number}")


def bound(number: int, error: str = "") -> BindEvent:
    return BindEvent("team", f"p{number}", f"uid-{number}", error, "n1")


@in_fake_time
async def test_a_success_is_told_once_decisions_pause() -> None:
    async with told() as (written, recorder):
        recorder.on_placed(placed(1))
        await asyncio.sleep(0)
        recorder.on_bind(bound(1))
        await asyncio.sleep(10 * event_recorder.QUIET_S)
        assert written.said == [
            ("FilteringSucceed", "all nodes of p1"),
            ("BindingSucceed", "Successfully binding node [n1] to team/p1"),
        ]
        assert {event["type"] for event in written.events} == {"Normal"}


@in_fake_time
async def test_warnings_are_written_while_successes_wait() -> None:
    async with told() as (written, recorder):
        for number in range(100):
            recorder.on_placed(placed(number))
            if number == 50:
                recorder.on_refused(refused(1000))
                recorder.on_bind(bound(1001, "no answer"))
            await asyncio.sleep(event_recorder.QUIET_S / 10)
        trouble = [event for event in written.events if event["type"] == "Warning"]
        assert sorted(event["message"] for event in trouble) == ["no answer", "no node for p1000"]
        assert len(written.said) == len(trouble)


@in_fake_time
async def test_only_the_first_refusal_of_a_pod_is_written() -> None:
    async with told() as (written, recorder):
        recorder.on_refused(refused(1))
        recorder.on_refused(refused(1, is_first=False))
        await asyncio.sleep(10 * event_recorder.QUIET_S)
        assert written.said == [("FilteringFailed", "no node for p1")]


@pytest.mark.no_cover
@in_fake_time
async def test_a_backlog_that_is_refused_again_and_again_makes_one_event_per_pod_at_a_bounded_rate() -> None:
    pods, described = 5000, 0
    alike = Refused({})

    def describe() -> str:
        nonlocal described
        described += 1
        return "no card is large enough"

    async with told() as (written, recorder):
        clock = asyncio.get_running_loop().time
        for is_first in (True, False, False, False):
            for number in range(pods):
                recorder.on_refused(RefusedEvent(pod(number), alike, is_first, describe))
        assert described == 0, "sentences are not made while decisions are"
        began = clock()
        turns = 0
        while len(written.events) < pods:
            await asyncio.sleep(event_recorder.QUIET_S)
            turns += 1
            assert len(written.events) <= event_recorder.REFUSALS * (turns + 1)
            assert turns < 2 * pods
        assert clock() - began >= (pods / event_recorder.REFUSALS - 1) * event_recorder.QUIET_S
        assert described <= pods / event_recorder.REFUSALS + 1, "pods that are refused alike share a sentence"
        await asyncio.sleep(60.0)
        assert len(written.events) == pods
        assert {event["count"] for event in written.events} == {1}
        assert recorder.dropped == 0


@in_fake_time
async def test_few_sentences_are_made_at_a_time_where_every_pod_needs_its_own() -> None:
    made: list[int] = []
    async with told() as (written, recorder):
        for number in range(100):
            describe = partial(_noted, made, number)
            recorder.on_refused(RefusedEvent(pod(number), Refused({}), True, describe))
        before = 0
        while len(made) < 100:
            await asyncio.sleep(event_recorder.QUIET_S)
            assert len(made) - before <= 2 * event_recorder.SENTENCES
            before = len(made)
        assert made == list(range(100)), "the oldest first"
        await asyncio.sleep(60.0)
        assert len(written.events) == 100


def _noted(made: list[int], number: int) -> str:
    made.append(number)
    return f"sentence {number}"


@in_fake_time
async def test_a_pod_that_is_placed_before_its_turn_is_not_told_that_it_was_refused() -> None:
    async with told() as (written, recorder):
        for number in range(2 * event_recorder.REFUSALS):
            recorder.on_refused(refused(number))
        recorder.on_placed(placed(2 * event_recorder.REFUSALS - 1))
        await asyncio.sleep(60.0)
        said = [event for event in written.events if event["reason"] == "FilteringFailed"]
        assert len(said) == 2 * event_recorder.REFUSALS - 1


@in_fake_time
async def test_refusals_that_wait_are_bounded_and_the_oldest_are_given_up() -> None:
    async with told() as (_, recorder):
        for number in range(event_recorder.MAX_REFUSED + 5):
            recorder.on_refused(refused(number))
        assert recorder.dropped == 5


@in_fake_time
async def test_hamis_texts_are_written_for_those_who_parse_them() -> None:
    async with told(hami_texts=True) as (written, recorder):
        refusal = Refused({"n1": cards_misfit([CardMisfit("u", Reason.CARD_CORDONED)], total=1, vendor="NVIDIA")})
        recorder.on_refused(RefusedEvent(pod(1), refusal, True, lambda: "a sentence"))
        await asyncio.sleep(10 * event_recorder.QUIET_S)
        assert written.said == [
            ("FilteringFailed", "1 nodes CardCordoned(n1)"),
            ("FilteringFailed", "no available node, 1 nodes do not meet"),
        ]


@pytest.mark.no_cover
@in_fake_time
async def test_in_a_lasting_rush_successes_are_told_slowly() -> None:
    async with told() as (written, recorder):
        periods = int(2 * event_recorder.PATIENCE_S / event_recorder.QUIET_S)
        for number in range(10 * periods):
            recorder.on_placed(placed(number))
            await asyncio.sleep(event_recorder.QUIET_S / 10)
        assert 0 < len(written.said) <= periods / 2 + 1


@in_fake_time
async def test_successes_that_never_stop_but_are_few_are_told_as_they_come() -> None:
    async with told() as (written, recorder):
        for number in range(1, 101):
            recorder.on_bind(bound(number))
            await asyncio.sleep(2 * event_recorder.QUIET_S / event_recorder.BUSY)
            assert len(written.said) >= number - 2 * event_recorder.BUSY
        assert recorder.dropped == 0


@in_fake_time
async def test_a_success_keeps_the_time_of_the_decision() -> None:
    async with told() as (written, recorder):
        recorder.on_bind(bound(1))
        for number in range(100):
            await asyncio.sleep(0.1)
            recorder.on_refused(refused(number))  # the recorder is never idle, so that successes wait
        assert await recorder.flush(5.0) == 0
        (event,) = (event for event in written.events if event["reason"] == "BindingSucceed")
        assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-11-05T12:00:00Z"


@in_fake_time
async def test_in_a_rush_only_the_first_sentences_name_all_nodes() -> None:
    async with told() as (written, recorder):
        for number in range(2 * event_recorder.DETAILED):
            recorder.on_placed(placed(number))
            await asyncio.sleep(0)
        assert await recorder.flush(5.0) == 0
        full = [message for _, message in written.said if message.startswith("all nodes")]
        assert len(full) == event_recorder.DETAILED
        assert len(written.said) == 2 * event_recorder.DETAILED


@in_fake_time
async def test_under_lasting_pressure_the_oldest_successes_are_given_up_and_counted() -> None:
    async with told() as (written, recorder):
        for number in range(event_recorder.MAX_WAITING + 5):
            recorder.on_bind(bound(number))
        assert recorder.dropped == 5
        assert await recorder.flush(5.0) == 0
        assert len(written.said) == event_recorder.MAX_WAITING
        assert written.said[0][1].endswith("team/p5")


@in_fake_time
async def test_successes_wait_for_an_apiserver_that_has_no_time_and_push_no_trouble_out() -> None:
    async with told() as (written, recorder):
        written.up.clear()
        for number in range(event_recorder.MAX_WAITING):
            recorder.on_bind(bound(number))
        await asyncio.sleep(60.0)
        recorder.on_refused(refused(1))
        await asyncio.sleep(60.0)
        assert recorder.dropped == 0
        written.up.set()
        await asyncio.sleep(120.0)
        assert len(written.said) == event_recorder.MAX_WAITING + 1
        assert ("FilteringFailed", "no node for p1") in written.said[: 3 * event_recorder.BATCH]
