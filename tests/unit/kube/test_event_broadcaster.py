from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster, ObjectRef, truncate
from tests.support.event_loops import in_fake_time
from tests.support.network import Answer, RawServer, close_at_once, refusal, reply, silence

EPOCH = 1_793_880_000.0
"""2026-11-05T12:00:00Z"""
POD = ObjectRef("Pod", "team", "train-0", "uid-1")
CREATED = reply(201, {})


def recorder_on(client: KubeClient, **settings: Any) -> EventBroadcaster:
    clock = asyncio.get_running_loop().time
    return EventBroadcaster(
        client,
        component="hami-scheduler",
        host="host-1",
        rng=random.Random(3),
        now=lambda: EPOCH + clock(),
        **settings,
    )


@asynccontextmanager
async def recording(*script: Answer, **settings: Any) -> AsyncIterator[tuple[RawServer, EventBroadcaster]]:
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        recorder = recorder_on(client, **settings)
        task = asyncio.create_task(recorder.run())
        try:
            yield server, recorder
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@in_fake_time
async def test_an_event_says_who_what_and_when() -> None:
    async with recording(CREATED) as (server, recorder):
        recorder.record(POD, "Normal", "BindingSucceed", "Successfully binding node [n1] to team/train-0")
        await server.wait_for(1)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/team/events")
    event = request.json
    name = event["metadata"].pop("name")
    assert name.startswith("train-0.")
    assert len(name) == len("train-0.") + 16
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "team",
            "name": "train-0",
            "uid": "uid-1",
        },
        "type": "Normal",
        "reason": "BindingSucceed",
        "message": "Successfully binding node [n1] to team/train-0",
        "source": {"component": "hami-scheduler", "host": "host-1"},
        "reportingComponent": "hami-scheduler",
        "reportingInstance": "host-1",
        "firstTimestamp": "2026-11-05T12:00:00Z",
        "lastTimestamp": "2026-11-05T12:00:00Z",
        "count": 1,
    }


@in_fake_time
async def test_an_event_about_a_node_is_in_the_default_namespace() -> None:
    async with recording(CREATED) as (server, recorder):
        recorder.record(ObjectRef("Node", "", "n1", "n1"), "Warning", "DeviceLost", "gone")
        await server.wait_for(1)
    assert server.requests[0].path == "/api/v1/namespaces/default/events"
    assert server.requests[0].json["involvedObject"]["namespace"] == ""


@in_fake_time
async def test_equal_events_become_one_with_a_count() -> None:
    async with recording(CREATED) as (server, recorder):
        for _ in range(3):
            recorder.record(POD, "Warning", "FilteringFailed", "no available node")
        recorder.record(POD, "Warning", "FilteringFailed", "another message")
        await server.wait_for(2)
        await asyncio.sleep(60)
        recorder.record(POD, "Warning", "FilteringFailed", "no available node")
        await server.wait_for(3)
        await asyncio.sleep(1)
        recorder.record(POD, "Warning", "FilteringFailed", "no available node")
        await server.wait_for(4)
    first, _, second, third = server.requests
    assert first.json["count"] == 3
    assert (second.method, second.path) == ("PATCH", f"{first.path}/{first.json['metadata']['name']}")
    assert second.headers["content-type"] == "application/merge-patch+json"
    assert second.json == {"count": 4, "lastTimestamp": "2026-11-05T12:01:00Z"}
    assert third.json["count"] == 5


@in_fake_time
async def test_an_equal_event_after_a_long_time_is_a_new_one() -> None:
    async with recording(CREATED, window=600) as (server, recorder):
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(1)
        await asyncio.sleep(601)
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(2)
    assert [request.method for request in server.requests] == ["POST", "POST"]
    assert server.requests[1].json["count"] == 1


@in_fake_time
async def test_an_event_that_was_cleaned_up_is_created_again() -> None:
    async with recording(CREATED, refusal(404, "NotFound"), CREATED) as (server, recorder):
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(1)
        await asyncio.sleep(1)
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(3)
        await asyncio.sleep(1)
        assert (recorder.dropped, recorder.waiting) == (0, 0)
    assert [request.method for request in server.requests] == ["POST", "PATCH", "POST"]


@in_fake_time
async def test_a_count_that_cannot_be_written_is_tried_again() -> None:
    async with recording(CREATED, refusal(500), CREATED) as (server, recorder):
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(1)
        await asyncio.sleep(1)
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(3)
    assert [request.method for request in server.requests] == ["POST", "PATCH", "PATCH"]
    assert server.requests[2].json["count"] == 2


@in_fake_time
async def test_under_pressure_the_oldest_are_dropped_and_counted() -> None:
    async with RawServer(CREATED) as server, KubeClient(Access(server.url)) as client:
        recorder = recorder_on(client, capacity=10)
        for number in range(25):
            recorder.record(POD, "Normal", "R", f"{number}")
        assert (recorder.waiting, recorder.dropped) == (10, 15)
        assert await recorder.flush(5.0) == 0
    assert sorted(int(request.json["message"]) for request in server.requests) == list(range(15, 25))


@in_fake_time
async def test_many_events_are_written_without_waiting_for_each_other() -> None:
    async with recording(CREATED) as (server, recorder):
        for number in range(900):
            recorder.record(POD, "Normal", "R", f"{number}")
        await server.wait_for(900)
        assert asyncio.get_running_loop().time() < 1.0
    assert 2 <= server.connections <= 8


@in_fake_time
async def test_what_fails_is_tried_again_and_lost_answers_are_not_written_twice() -> None:
    script = close_at_once, refusal(503), refusal(429, Retry_After="1"), refusal(409, "AlreadyExists"), CREATED
    async with recording(*script) as (server, recorder):
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(4)
        await asyncio.sleep(100)
        assert (recorder.dropped, recorder.waiting) == (0, 0)
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(5)
    assert len({request.json["metadata"]["name"] for request in server.requests[:4]}) == 1
    assert server.requests[4].method == "PATCH"


@in_fake_time
async def test_repetitions_while_a_write_fails_are_counted_in_it() -> None:
    async with recording(silence, CREATED) as (server, recorder):
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(1)
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(2)
        await asyncio.sleep(1)
        assert recorder.waiting == 0
    assert server.requests[1].json["count"] == 2
    assert server.requests[1].json["firstTimestamp"] == "2026-11-05T12:00:00Z"


@pytest.mark.parametrize(
    ("answer", "requests"), [(refusal(403, "Forbidden"), 1), (refusal(409, "Conflict"), 1), (refusal(500), 8)]
)
@in_fake_time
async def test_what_cannot_be_written_is_dropped_and_counted(answer: Answer, requests: int) -> None:
    async with recording(answer) as (server, recorder):
        recorder.record(POD, "Normal", "R", "m")
        recorder.record(POD, "Normal", "R", "m")
        await asyncio.sleep(600)
        assert (recorder.dropped, recorder.waiting) == (2, 0)
    assert len(server.requests) == requests


@pytest.mark.no_cover
@in_fake_time
async def test_twenty_minutes_without_an_apiserver_are_not_twenty_minutes_of_hammering() -> None:
    async with recording(close_at_once) as (server, recorder):
        for number in range(2000):
            recorder.record(POD, "Normal", "R", f"{number}")
        await asyncio.sleep(20 * 60)
        assert recorder.waiting <= 1000
    assert len(server.requests) <= 8 * 100


@pytest.mark.parametrize("ref", [ObjectRef("Pod", "..", "x", "u"), ObjectRef("Pod", "team", "\ud800", "u")])
@in_fake_time
async def test_a_name_that_cannot_be_written_is_dropped(ref: ObjectRef) -> None:
    async with recording(CREATED) as (server, recorder):
        recorder.record(ref, "Normal", "R", "m")
        recorder.record(POD, "Normal", "R", "m")
        await server.wait_for(1)
        assert (recorder.dropped, recorder.waiting) == (1, 0)
    assert asyncio.get_running_loop().time() < 1.0


@in_fake_time
async def test_a_flush_gives_up_at_its_deadline_and_keeps_what_is_left() -> None:
    async with RawServer(silence) as server, KubeClient(Access(server.url)) as client:
        recorder = recorder_on(client)
        for number in range(20):
            recorder.record(POD, "Normal", "R", f"{number}")
        assert await recorder.flush(3.0) == 20
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert recorder.dropped == 0


@in_fake_time
async def test_what_a_stopped_task_was_writing_is_there_for_the_flush() -> None:
    async with RawServer(silence, silence, CREATED) as server, KubeClient(Access(server.url)) as client:
        recorder = recorder_on(client)
        task = asyncio.create_task(recorder.run())
        recorder.record(POD, "Normal", "R", "1")
        recorder.record(POD, "Normal", "R", "2")
        await server.wait_for(2)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert recorder.waiting == 2
        assert await recorder.flush(5.0) == 0
    assert sorted(request.json["message"] for request in server.requests[2:]) == ["1", "2"]


@in_fake_time
async def test_what_is_remembered_for_counting_is_bounded() -> None:
    async with recording(CREATED, capacity=2) as (server, recorder):
        for number in (1, 2, 3):
            recorder.record(POD, "Normal", "R", f"{number}")
            await server.wait_for(number)
            await asyncio.sleep(1)
        recorder.record(POD, "Normal", "R", "3")
        recorder.record(POD, "Normal", "R", "1")
        await server.wait_for(5)
    assert sorted(request.method for request in server.requests[3:]) == ["PATCH", "POST"]


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("", ""),
        ("short", "short"),
        ("x" * 1024, "x" * 1024),
        ("x" * 5000, "x" * 1024),
        ("x" * 1023 + "é", "x" * 1023),
        ("x" * 1022 + "é", "x" * 1022 + "é"),
        ("\N{GRINNING FACE}" * 300, "\N{GRINNING FACE}" * 256),
        ("lone \ud800", "lone ?"),
    ],
)
def test_a_message_is_cut_at_a_whole_character(message: str, kept: str) -> None:
    assert truncate(message) == kept


@in_fake_time
async def test_a_long_name_leaves_room_for_the_rest_of_the_events_name() -> None:
    async with recording(CREATED) as (server, recorder):
        recorder.record(ObjectRef("Pod", "team", "a" * 235 + "." + "b" * 17, "u"), "Normal", "R", "m")
        await server.wait_for(1)
    name = server.requests[0].json["metadata"]["name"]
    assert name.startswith("a" * 235 + ".")
    assert len(name) == 252
