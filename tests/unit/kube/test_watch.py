from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.decoder import UnreadableObject, WatchEvent
from tessera.kube.errors import ApiError, BadResponse, Unreachable
from tessera.kube.transport import BATCH_FROM_LINES_PER_SECOND, BATCH_S, SILENT_S
from tests.support.event_loops import in_fake_time
from tests.support.network import Answer, Exchange, RawServer, close_at_once, refusal, reply, silence, stream


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class Thing(msgspec.Struct, frozen=True):
    metadata: Meta = Meta()


def line(type: str, name: str, version: str = "1") -> bytes:
    return (
        msgspec.json.encode({"type": type, "object": {"metadata": {"name": name, "resourceVersion": version}}}) + b"\n"
    )


def event(type: str, name: str, version: str = "1") -> WatchEvent[Thing]:
    return WatchEvent(type, Thing(Meta(name, version)))


async def watched(
    *script: Answer, seen: list[WatchEvent[Thing]] | None = None, unreadable: list[UnreadableObject] | None = None
) -> list[WatchEvent[Thing]]:
    """All events; those before a fault are in `seen`."""
    events = [] if seen is None else seen
    async with RawServer(*script) as server, KubeClient(Access(server.url), timeout=30.0) as client:
        stream = client.watch(
            "/api/v1/pods",
            Thing,
            resource_version="7",
            timeout_seconds=300,
            on_unreadable=None if unreadable is None else unreadable.append,
        )
        async with aclosing(stream):
            async for found in stream:
                events.append(found)
    return events


ABC = [event("ADDED", "a", "8"), event("MODIFIED", "b", "9"), event("DELETED", "c", "10")]
TEXT = line("ADDED", "a", "8") + line("MODIFIED", "b", "9") + line("DELETED", "c", "10")


MANY = 200
APART_S = 0.5 / BATCH_FROM_LINES_PER_SECOND


async def one_then_many_then_one(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(MANY + 2):
        await asyncio.sleep(APART_S if 0 < number <= MANY else 1.0)
        text = line("MODIFIED", "a", f"{asyncio.get_running_loop().time()}")
        await exchange.send(b"%x\r\n%s\r\n" % (len(text), text))
    await asyncio.Event().wait()


@in_fake_time
async def test_events_are_read_in_batches_while_many_come_and_at_once_otherwise() -> None:
    clock = asyncio.get_running_loop().time
    late: list[float] = []
    moments: set[float] = set()
    async with RawServer(one_then_many_then_one) as server, KubeClient(Access(server.url)) as client:
        found = client.watch("/api/v1/pods", Thing, resource_version="7", timeout_seconds=300)
        async with aclosing(found):
            async for each in found:
                late.append(clock() - float(each.object.metadata.resource_version))
                moments.add(clock())
                if len(late) == MANY + 2:
                    break
    assert max(late[0], late[-1]) < APART_S
    assert BATCH_S / 2 < max(late) < 2 * BATCH_S
    assert len(moments) < MANY / 2


@pytest.mark.parametrize(
    "chunks",
    [
        [TEXT],
        [TEXT[index : index + 1] for index in range(len(TEXT))],
        [TEXT[:70], TEXT[70:75], TEXT[75:]],
        [b"\n\n", TEXT, b"\r\n"],
    ],
    ids=["at once", "byte by byte", "in parts", "with blank lines"],
)
@in_fake_time
async def test_events_arrive_however_the_bytes_are_cut(chunks: list[bytes]) -> None:
    assert await watched(stream(*chunks)) == ABC


@in_fake_time
async def test_a_watch_asks_for_bookmarks_and_an_end() -> None:
    async with RawServer(stream()) as server, KubeClient(Access(server.url)) as client:
        events = client.watch("/api/v1/pods", Thing, resource_version="7", field_selector="b=c", timeout_seconds=300)
        assert [found async for found in events] == []
    assert server.requests[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "300",
        "fieldSelector": "b=c",
    }


@in_fake_time
async def test_a_bookmark_carries_its_version() -> None:
    bookmark = b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"99"}}}\n'
    assert await watched(stream(bookmark)) == [event("BOOKMARK", "", "99")]


async def unframed(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n" + TEXT)


@pytest.mark.parametrize("answer", [stream(TEXT, end="cut"), unframed], ids=["without the last chunk", "unframed"])
@in_fake_time
async def test_an_end_between_two_lines_is_an_end(answer: Answer) -> None:
    assert await watched(answer) == ABC


@pytest.mark.parametrize("end", ["end", "cut", "reset"])
@in_fake_time
async def test_an_end_in_the_middle_of_a_line_is_a_fault(end: str) -> None:
    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(Unreachable):
        await watched(stream(TEXT + b'{"type":"ADD', end=end), seen=seen)
    assert seen == ABC


@in_fake_time
async def test_a_watch_that_never_begins_is_a_fault() -> None:
    with pytest.raises(Unreachable):
        await watched(close_at_once)
    with pytest.raises(Unreachable, match="in time"):
        await watched(silence)
    assert asyncio.get_running_loop().time() == pytest.approx(30.0)


@in_fake_time
async def test_a_watch_that_never_ends_is_a_fault() -> None:
    async def go_on(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await exchange.send(b"%x\r\n%s\r\n" % (len(TEXT), TEXT))
            await asyncio.sleep(60)

    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(Unreachable, match="in time"):
        await watched(go_on, seen=seen)
    assert seen == ABC * 6
    assert asyncio.get_running_loop().time() == pytest.approx(330.0)


@in_fake_time
async def test_a_watch_that_says_nothing_for_longer_than_bookmarks_take_ends() -> None:
    assert await watched(stream(TEXT, end="hold")) == ABC
    assert asyncio.get_running_loop().time() == pytest.approx(SILENT_S)


@in_fake_time
async def test_a_slow_reader_is_not_a_slow_server() -> None:
    async with RawServer(stream(TEXT, end="hold")) as server, KubeClient(Access(server.url)) as client:
        events = client.watch("/api/v1/pods", Thing, resource_version="7", timeout_seconds=10)
        for expected in ABC:
            assert await anext(events) == expected
            await asyncio.sleep(100)
        with pytest.raises(Unreachable, match="in time"):
            await anext(events)


@in_fake_time
async def test_a_watch_can_be_left_early() -> None:
    async with RawServer(stream(TEXT, end="hold")) as server, KubeClient(Access(server.url)) as client:
        async with aclosing(client.watch("/x", Thing, resource_version="7", timeout_seconds=10)) as events:
            assert await anext(events) == ABC[0]
        assert await anext(client.watch("/x", Thing, resource_version="7", timeout_seconds=10)) == ABC[0]
    assert server.connections == 2


def error_line(**status: Any) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": {"kind": "Status", **status}}) + b"\n"


@pytest.mark.parametrize(
    ("answer", "status", "expired"),
    [
        (stream(error_line(code=410, reason="Expired", message="too old resource version")), 410, True),
        (stream(error_line(code=504, reason="Timeout", message="Too large resource version")), 504, False),
        (stream(error_line(message="no code")), 500, False),
        (stream(b'{"type":"ERROR","object":"what"}\n'), 500, False),
        (refusal(410, "Expired"), 410, True),
        (refusal(403, "Forbidden"), 403, False),
    ],
)
@in_fake_time
async def test_a_refused_watch_says_why(answer: Answer, status: int, expired: bool) -> None:
    with pytest.raises(ApiError) as caught:
        await watched(answer)
    assert (caught.value.status, caught.value.expired) == (status, expired)


@in_fake_time
async def test_a_response_that_is_not_a_watch_is_a_fault() -> None:
    with pytest.raises(Unreachable, match="answered with status 204"):
        await watched(reply(204))


@pytest.mark.parametrize(
    "text", [b"nonsense\n", b'{"type":"ADDED"}\n', b"[]\n", b"<html>\n", b'{"type":5,"object":{}}\n', b"\xff\xfe\n"]
)
@in_fake_time
async def test_a_line_that_is_not_an_event_is_a_bad_response(text: bytes) -> None:
    seen: list[WatchEvent[Thing]] = []
    with pytest.raises(BadResponse):
        await watched(stream(TEXT, text), seen=seen, unreadable=[])
    assert seen == ABC


@in_fake_time
async def test_an_unreadable_object_does_not_end_the_watch() -> None:
    bad = b'{"type":"MODIFIED","object":{"metadata":{"name":["x"]}}}\n'
    unreadable: list[UnreadableObject] = []
    assert await watched(stream(line("ADDED", "a", "8"), bad, line("ADDED", "b", "9")), unreadable=unreadable) == [
        event("ADDED", "a", "8"),
        event("ADDED", "b", "9"),
    ]
    assert [(found.type, found.name) for found in unreadable] == [("MODIFIED", "")]
    with pytest.raises(BadResponse):
        await watched(stream(bad))
