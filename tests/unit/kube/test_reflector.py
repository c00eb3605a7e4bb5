"""A reflector against a server that misbehaves on the wire: what the sink holds in the end, and how often was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.reflector import SinkError, UnreadableObjectError
from tests.support.event_loops import in_fake_time
from tests.support.network import (
    Answer,
    Exchange,
    RawServer,
    close_at_once,
    refusal,
    reply,
    reset_at_once,
    silence,
    stream,
)
from tests.support.reflecting import (
    RememberingSink,
    expired_line,
    kinds,
    line,
    page,
    pod,
    reflected,
    reflecting,
    reflector_on,
)

MINUTE = 60.0
HOUR = 60 * MINUTE


HOLD = stream(end="hold")
"""a watch without news"""


@in_fake_time
async def test_what_exists_is_put_and_what_changes_follows() -> None:
    world = RememberingSink()
    changes = stream(
        line("ADDED", pod("c", version="11")),
        line("MODIFIED", pod("a", version="12", node="n1")),
        line("DELETED", pod("b", version="13")),
        end="hold",
    )
    server = await reflected(page(pod("a"), pod("b")), changes, world=world, field_selector="f")
    assert world.story == ["put a", "put b", "synced", "put c", "put a", "drop b"]
    assert world.pods["a"].node == "n1"
    assert kinds(server) == ["list", "watch 10"]
    assert {request.query["fieldSelector"] for request in server.requests} == {"f"}
    assert 300 <= int(server.requests[1].query["timeoutSeconds"]) <= 600


NEWS = line("ADDED", pod("b", version="11"))


@pytest.mark.parametrize(
    "first",
    [
        stream(NEWS),
        stream(NEWS, end="cut"),
        stream(NEWS, end="reset"),
        stream(NEWS, b'{"type":"ADD', end="end"),
        stream(NEWS, b'{"type":"ADD', end="cut"),
        stream(NEWS, b'{"type":"ADD', end="reset"),
    ],
    ids=["end", "plain EOF", "reset", "half a line", "half a line and EOF", "reset in the middle of an event"],
)
@in_fake_time
async def test_a_watch_that_breaks_goes_on_where_it_was(first: Answer) -> None:
    world = RememberingSink()
    server = await reflected(page(pod("a")), first, stream(line("DELETED", pod("a")), end="hold"), world=world)
    assert world.story == ["put a", "synced", "put b", "drop a"]
    assert kinds(server) == ["list", "watch 10", "watch 11"]


@pytest.mark.parametrize(
    "gone",
    [
        stream(NEWS, expired_line()),
        refusal(410, "Expired"),
        stream(NEWS, b"nonsense\n"),
        stream(NEWS, b'{"type":"X"}\n'),
    ],
    ids=["410 as event", "410 as status", "malformed JSON", "no event"],
)
@in_fake_time
async def test_after_a_gap_everything_is_listed_and_what_vanished_is_reported(gone: Answer) -> None:
    world = RememberingSink()
    again = page(pod("b", version="15"), pod("c", uid="new"), pod("d"), version="20")
    server = await reflected(page(pod("a"), pod("c", uid="old")), gone, again, HOLD, world=world)
    assert sorted(world.pods) == ["b", "c", "d"]
    assert world.pods["c"].metadata.uid == "new"
    assert kinds(server) == ["list", "watch 10", "list", "watch 20"]
    after = world.story[world.story.index("synced") + 1 :]
    assert [what for what in after if what != "put b"] == ["drop c", "put c", "put d", "drop a", "synced"]


@in_fake_time
async def test_an_object_replaced_under_its_name_is_dropped_and_put_again() -> None:
    world = RememberingSink()
    changes = stream(
        line("MODIFIED", pod("a", uid="second", version="11")),
        line("DELETED", pod("a", uid="first", version="12")),
        line("DELETED", pod("unknown", version="13")),
        end="hold",
    )
    await reflected(page(pod("a", uid="first")), changes, world=world)
    assert world.story == ["put a", "synced", "drop a", "put a"]


@in_fake_time
async def test_a_bookmark_moves_the_watch_on() -> None:
    world = RememberingSink()
    bookmark = line("BOOKMARK", {"metadata": {"resourceVersion": "500"}})
    odd = line("BOOKMARK", {"metadata": {"resourceVersion": "600"}, "node": 5})
    server = await reflected(page(pod("a")), stream(bookmark), stream(odd), HOLD, world=world)
    assert kinds(server) == ["list", "watch 10", "watch 500", "watch 600"]
    assert world.story == ["put a", "synced"]
    assert world.errors == []


@in_fake_time
async def test_a_watch_that_ends_in_its_time_is_followed_by_the_next_at_once() -> None:
    world = RememberingSink()
    one_minute = stream(lasting=60)
    async with reflecting(page(pod("a")), one_minute, one_minute, HOLD, world=world) as (server, _):
        await server.wait_for(4)
        assert asyncio.get_running_loop().time() == pytest.approx(120, abs=0.01)
    assert kinds(server) == ["list", "watch 10", "watch 10", "watch 10"]


@in_fake_time
async def test_patience_that_the_server_asks_for_is_given() -> None:
    world = RememberingSink()
    script = refusal(429, Retry_After="50"), page(pod("a")), refusal(429, Retry_After="9999"), HOLD
    async with reflecting(*script, world=world) as (server, _):
        clock = asyncio.get_running_loop().time
        times = []
        for count in (1, 2, 3, 4):
            await server.wait_for(count)
            times.append(clock())
    assert 50 <= times[1] - times[0] <= 51
    assert 120 <= times[3] - times[2] <= 121
    assert kinds(server) == ["list", "list", "watch 10", "watch 10"]


@in_fake_time
async def test_a_version_that_the_server_keeps_refusing_is_given_up() -> None:
    world = RememberingSink()
    too_large = refusal(504, "Timeout", "Too large resource version")
    script = page(pod("a"), version="99"), too_large, too_large, too_large, page(pod("b"), version="5"), HOLD
    server = await reflected(*script, world=world)
    assert kinds(server) == ["list", "watch 99", "watch 99", "watch 99", "list", "watch 5"]
    assert list(world.pods) == ["b"]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "fault",
    [
        close_at_once,
        reset_at_once,
        refusal(500),
        refusal(429),
        refusal(403),
        refusal(410, "Expired"),
        reply(200, b"nonsense"),
        reply(200, b"{"),
        reply(204),
    ],
)
@pytest.mark.parametrize("listed", [False, True], ids=["at the start", "after the list"])
@in_fake_time
async def test_twenty_minutes_of_failures_are_not_twenty_minutes_of_hammering(fault: Answer, listed: bool) -> None:
    world = RememberingSink()
    script = (page(pod("a")), fault) if listed else (fault,)
    async with reflecting(*script, world=world) as (server, task):
        await asyncio.sleep(20 * MINUTE)
        assert not task.done()
    assert 40 <= len(server.requests) <= 120
    assert sorted(world.pods) == (["a"] if listed else [])


@in_fake_time
async def test_a_server_that_refuses_connections_and_comes_back_is_found_again() -> None:
    world = RememberingSink()
    async with RawServer(page(pod("a")), HOLD) as server:
        pass
    port = server.port
    attempts = 0

    def count(error: KubeError) -> None:
        nonlocal attempts
        attempts += 1

    async with KubeClient(Access(f"http://127.0.0.1:{port}")) as client:
        reflector = reflector_on(client, world, on_error=count)
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(HOUR)
        assert 120 <= attempts <= 330
        async with RawServer(page(pod("a")), HOLD, port=port) as server:
            await server.wait_for(2)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert list(world.pods) == ["a"]


@pytest.mark.no_cover
@in_fake_time
async def test_a_server_that_ends_every_watch_at_once_is_not_hammered() -> None:
    world = RememberingSink()
    async with reflecting(page(pod("a")), stream(), world=world) as (server, _):
        await asyncio.sleep(HOUR)
    assert 120 <= len(server.requests) <= 330
    assert kinds(server).count("list") == 1
    assert world.errors == []


@pytest.mark.no_cover
@in_fake_time
async def test_a_server_whose_watches_bring_news_and_expire_is_not_asked_for_lists_all_the_time() -> None:
    world = RememberingSink()
    news = (line("MODIFIED", pod("a", version=str(11 + number))) for number in range(10_000))
    script = [answer for event in news for answer in (page(pod("a")), stream(event, expired_line()))]
    async with reflecting(*script, world=world) as (server, _):
        await asyncio.sleep(20 * MINUTE)
    assert 40 <= kinds(server).count("list") <= 120
    assert list(world.pods) == ["a"]


@in_fake_time
async def test_a_silent_server_is_given_up_after_a_deadline() -> None:
    world = RememberingSink()
    async with reflecting(silence, world=world) as (server, _):
        await asyncio.sleep(HOUR)
    assert 60 <= len(server.requests) <= 120


BOOKMARK = line("BOOKMARK", {"metadata": {"resourceVersion": "11"}})


def bookmarking(count: int, *, apart: float, then: bytes = b"") -> Answer:
    """A watch with so many bookmarks, and then nothing; the connection stays open."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(count):
            await asyncio.sleep(apart)
            await exchange.send(b"%x\r\n%s\r\n" % (len(BOOKMARK), BOOKMARK))
        await exchange.send(then)
        await asyncio.Event().wait()

    return answer


@pytest.mark.parametrize(
    ("stalled", "heard", "version"),
    [
        (HOLD, 0, 10),
        (bookmarking(2, apart=60), 120, 11),
        (bookmarking(1, apart=60, then=b"40\r\n" + NEWS[:10]), 60, 11),
    ],
    ids=["nothing ever comes", "bookmarks, then nothing", "half a line, then nothing"],
)
@in_fake_time
async def test_a_watch_that_stalls_is_replaced_within_two_minutes_and_loses_nothing(
    stalled: Answer, heard: float, version: int
) -> None:
    world = RememberingSink()
    gone = stream(line("DELETED", pod("a", version="12")), end="hold")
    async with reflecting(page(pod("a")), stalled, gone, world=world) as (server, _):
        await server.wait_for(3)
        assert heard + 75 <= asyncio.get_running_loop().time() <= heard + 120
        await asyncio.sleep(1)
    assert world.story == ["put a", "synced", "drop a"]
    assert kinds(server) == ["list", "watch 10", f"watch {version}"]


@in_fake_time
async def test_a_watch_that_has_nothing_but_bookmarks_is_left_alone_and_one_without_them_is_no_fault() -> None:
    world = RememberingSink()
    async with reflecting(page(pod("a")), bookmarking(3, apart=75), HOLD, world=world) as (server, _):
        await asyncio.sleep(3 * 75 + 1)
        assert kinds(server) == ["list", "watch 10"]
        await server.wait_for(3)
    assert world.errors == []
    assert kinds(server) == ["list", "watch 10", "watch 11"]


def trickling(exchange: Exchange) -> Awaitable[None]:
    """A watch whose first line never ends."""

    async def answer() -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await exchange.send(b"1\r\n{\r\n")
            await asyncio.sleep(60)

    return answer()


@pytest.mark.parametrize(
    ("stalled", "watches", "within"),
    [(HOLD, 2, 200), (stream(lasting=50), 4, 240), (trickling, 1, 700)],
    ids=["silent", "ended by the server before it says anything", "a line that never ends"],
)
@in_fake_time
async def test_after_two_windows_without_an_event_the_list_is_read_again(
    stalled: Answer, watches: int, within: float
) -> None:
    world = RememberingSink()
    script = page(pod("a")), *[stalled] * watches, page(pod("b", version="20"), version="20"), HOLD
    async with reflecting(*script, world=world) as (server, _):
        await server.wait_for(watches + 3)
        assert asyncio.get_running_loop().time() <= within
    assert kinds(server) == ["list", *["watch 10"] * watches, "list", "watch 20"]
    assert world.story == ["put a", "synced", "put b", "drop a", "synced"]


@in_fake_time
async def test_a_watch_that_goes_on_after_an_outage_needs_no_list() -> None:
    world = RememberingSink()
    news = stream(NEWS, end="hold")
    async with reflecting(page(pod("a")), *[close_at_once] * 30, news, world=world) as (server, _):
        await server.wait_for(32)
        assert asyncio.get_running_loop().time() > 300
    assert kinds(server) == ["list", *["watch 10"] * 31]


@in_fake_time
async def test_the_age_of_a_watch_says_when_the_apiserver_was_last_heard() -> None:
    world = RememberingSink()
    script = page(pod("a")), bookmarking(1, apart=60), silence
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        reflector = reflector_on(client, world, on_error=world.errors.append)
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(50)
        assert reflector.age == pytest.approx(50, abs=1)
        await asyncio.sleep(20)
        assert reflector.age == pytest.approx(10, abs=1)
        await asyncio.sleep(600)
        # No other watch was ever answered.
        assert reflector.age == pytest.approx(610, abs=1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "good", [stream(NEWS, end="cut"), stream(lasting=6, end="cut")], ids=["brought something", "lasted"]
)
@in_fake_time
async def test_after_a_success_the_waits_are_short_again(good: Answer) -> None:
    world = RememberingSink()
    script = page(pod("a")), *[close_at_once] * 12, good, close_at_once, HOLD
    async with reflecting(*script, world=world) as (server, _):
        clock = asyncio.get_running_loop().time
        await server.wait_for(14)
        assert clock() > 60
        await server.wait_for(15)
        before = clock()
        await server.wait_for(16)
        assert clock() - before <= 2.0


@in_fake_time
async def test_a_sink_that_fails_on_one_object_gets_the_others() -> None:
    world = RememberingSink()
    world.poison = {"put b", "drop a", "synced"}
    changes = stream(line("DELETED", pod("a", version="11")), line("ADDED", pod("d", version="12")), end="hold")
    await reflected(page(pod("a"), pod("b"), pod("c")), changes, world=world)
    assert world.story == ["put a", "put b", "put c", "synced", "drop a", "put d"]
    faults = [(error.action, error.key, str(error.__cause__)) for error in world.errors if isinstance(error, SinkError)]
    assert faults == [
        ("put", "b", "cannot put b"),
        ("synced", "", "cannot synced"),
        ("drop", "a", "cannot drop a"),
    ]
    assert len(world.errors) == 3


@in_fake_time
async def test_an_object_that_cannot_be_read_is_neither_lost_nor_in_the_way() -> None:
    world = RememberingSink()
    script = (
        page(pod("a"), pod("b"), pod("z")),
        stream(line("MODIFIED", pod("a", version="11", node=5)), line("ADDED", pod("c", version="12")), expired_line()),
        page(pod("a", node=5), pod("c"), version="20"),
        stream(line("DELETED", pod("a", version="21", node=5)), line("ADDED", pod("d", version="22"))),
        HOLD,
    )
    server = await reflected(*script, world=world)
    assert sorted(world.pods) == ["c", "d"]
    assert world.story == [
        "put a", "put b", "put z", "synced", "put c",
        "put c", "drop b", "drop z", "synced",
        "drop a", "put d",
    ]  # fmt: skip
    found = [error.found.name for error in world.errors if isinstance(error, UnreadableObjectError)]
    assert found == ["a", "a", "a"]
    assert kinds(server) == ["list", "watch 10", "list", "watch 20", "watch 22"]


@in_fake_time
async def test_a_report_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: KubeError) -> None:
        raise RuntimeError("no report")

    world = RememberingSink()
    await reflected(refusal(500), page(pod("a")), HOLD, world=world, on_error=fail)
    assert list(world.pods) == ["a"]
    assert "on_error failed" in caplog.text


@in_fake_time
async def test_errors_are_logged_unless_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    world = RememberingSink()
    world.poison = {"put a"}
    async with (
        RawServer(refusal(500, message="etcd is gone"), page(pod("a")), HOLD) as server,
        KubeClient(Access(server.url)) as client,
    ):
        task = asyncio.create_task(reflector_on(client, world).run())
        await server.wait_for(3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert "500: etcd is gone" in caplog.text
    assert "RuntimeError: cannot put a" in caplog.text


@pytest.mark.no_cover
@in_fake_time
async def test_a_slow_list_of_80_000_pods_comes_through_and_leaves_the_loop_to_others() -> None:
    world = RememberingSink()
    total, size = 80_000, 500

    async def pages(exchange: Exchange) -> bool:
        start = int(exchange.request.query.get("continue", "0"))
        await asyncio.sleep(5)
        more = str(start + size) if start + size < total else ""
        pods = [pod(f"pod-{number}") for number in range(start, start + size)]
        return bool(await page(*pods, version="80000", more=more)(exchange))

    async def others() -> int:
        """How often another task runs between the first put and the end of the list."""
        await world.begun.wait()
        turns = 0
        while world.story[-1] != "synced":
            await asyncio.sleep(1)
            turns += 1
        return turns

    script = [pages] * (total // size)
    async with reflecting(*script, HOLD, world=world) as (server, _):
        assert await others() >= total // size
        await server.wait_for(len(script) + 1)
    assert len(world.pods) == total
    assert kinds(server) == ["list"] * len(script) + ["watch 80000"]
