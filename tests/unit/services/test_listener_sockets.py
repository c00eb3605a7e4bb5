"""Requests and answers of the listener, byte for byte on raw sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tessera.http11.request_reader import MAX_BODY_BYTES
from tessera.http11.router import Response
from tessera.http11.server import WRITE_S
from tessera.services.common_settings import ListenerLimits
from tessera.services.listener import EXPIRE_EVERY_S
from tests.support.event_loops import in_fake_time, in_real_time, on_uvloop
from tests.support.listening import MIB, PIECES, TURNS, Client, either, get, post, serving
from tests.support.logs import captured
from tests.support.scheduler_process import until

# -- requests and answers


@pytest.mark.parametrize("loop", [in_real_time, on_uvloop], ids=["asyncio", "uvloop"])
@either
def test_requests_of_one_connection_are_answered_one_after_the_other(
    loop: Callable[[Callable[[], object]], Callable[[], None]], tls: bool
) -> None:
    async def talk() -> None:
        async with serving(tls=tls) as served:
            served.gate.set()
            client = await served.connect()
            for path in ("/echo", "/later") * 3:
                client.send(post(path, path.encode()))
                assert await client.answer() == (200, path.encode())
            assert len(served.guarded) == 1

    loop(talk)()


@on_uvloop
async def test_requests_sent_ahead_wait_for_the_one_before() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"0"), *(post("/echo", b"%d" % i) for i in range(1, 20)))
        await until(lambda: served.asked)
        client.send(*(post("/later", b"%d" % i) for i in range(20, 30)))
        other = await served.connect()
        other.send(post("/echo", b"other"))
        assert await other.answer() == (200, b"other")
        assert served.asked == [b"0", b"other"]
        served.gate.set()
        assert [await client.answer() for _ in range(30)] == [(200, b"%d" % i) for i in range(30)]


@pytest.mark.no_cover
@on_uvloop
async def test_requests_of_a_client_that_does_not_read_wait() -> None:
    async with serving() as served:
        served.size = 8 * 2**20
        client = await served.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*(post("/echo", b"%d" % i) for i in range(20)))
        await until(lambda: served.asked)
        assert len(served.asked) < 20
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = [await client.answer() for _ in range(20)]
        assert [body.rstrip(b"x") for _, body in answers] == [b"%d" % i for i in range(20)]


@on_uvloop
async def test_nothing_more_is_read_while_requests_wait() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"abc"))
        await until(lambda: served.asked)
        client.send(*[post("/none", b"x" * MAX_BODY_BYTES)] * 8)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert client.writer.transport.get_write_buffer_size() > 4 * MAX_BODY_BYTES
        served.gate.set()
        assert [(await client.answer())[0] for _ in range(9)] == [200, *[404] * 8]


@pytest.mark.parametrize(
    ("version", "connection", "said"),
    [
        ("1.1", None, None),
        ("1.1", "keep-alive", None),
        ("1.1", "close", "close"),
        ("1.0", None, "close"),
        ("1.0", "Keep-Alive", "close"),
    ],
)
@either
@on_uvloop
async def test_a_connection_is_kept_as_its_client_wishes(
    version: str, connection: str | None, said: str | None, tls: bool
) -> None:
    async with serving(tls=tls) as served:
        client = await served.connect()
        headers = {"Connection": connection} if connection else {}
        client.send(post("/echo", b"abc", version=version, **headers))
        status, found, body = await client.whole()
        assert (status, body, found["Content-Type"]) == (200, b"abc", "application/json")
        assert found.get("Connection") == said
        if said == "close":
            assert await client.ends()
        else:
            client.send(post("/echo", b"again"))
            assert await client.answer() == (200, b"again")


@on_uvloop
async def test_what_is_not_served_is_refused_and_the_connection_stays() -> None:
    async with serving() as served:
        served.size = 3
        client = await served.connect()
        client.send(get("/none"), get("/echo"), post("/large", b"abc"), get("/large", "HEAD"), get("/large"))
        assert (await client.answer())[0] == 404
        status, headers, _ = await client.whole()
        assert (status, headers["Allow"]) == (405, "POST")
        status, headers, _ = await client.whole()
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        status, headers, _ = await client.whole(has_body=False)
        assert (status, headers["Content-Length"]) == (200, "3")
        assert await client.answer() == (200, b"xxx")


@either
@on_uvloop
async def test_what_is_not_http_is_told_so_after_the_answers_before_it(tls: bool) -> None:
    async with serving(tls=tls) as served:
        client = await served.connect()
        client.send(post("/later", b"first") + b"nonsense\r\n\r\n" + post("/echo"))
        await until(lambda: served.asked)
        served.gate.set()
        assert await client.answer() == (200, b"first")
        status, headers, _ = await client.whole()
        assert (status, headers["Connection"]) == (400, "close")
        assert await client.ends()
        assert served.asked == [b"first"]


@pytest.mark.parametrize("chunked", [False, True])
@either
@on_uvloop
async def test_a_body_that_is_too_large_is_refused_while_it_is_sent(chunked: bool, tls: bool) -> None:
    async with serving(tls=tls) as served:
        client = await served.connect()
        client.send(post("/echo", b"x" * MAX_BODY_BYTES))
        status, body = await client.answer()
        assert (status, len(body)) == (200, MAX_BODY_BYTES)
        if chunked:
            client.send(b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (2 * MAX_BODY_BYTES))
            client.send(b"x" * (MAX_BODY_BYTES + 1))
        else:
            client.send(post("/echo", b"x" * (MAX_BODY_BYTES + 1)))
        status, headers, _ = await client.whole()
        assert (status, headers["Connection"]) == (413, "close")
        assert await client.ends()
        assert [len(body) for body in served.asked] == [MAX_BODY_BYTES]


@on_uvloop
async def test_a_client_that_asks_before_it_sends_is_answered_in_turn() -> None:
    asking = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
    async with serving() as served:
        client = await served.connect()
        client.send(asking % (b"/echo", 3))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"abc")
        assert await client.answer() == (200, b"abc")
        client.send(post("/later", b"first") + asking % (b"/echo", 3))
        await until(lambda: len(served.asked) == 2)
        served.gate.set()
        assert await client.answer() == (200, b"first")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"def", asking % (b"/echo", MAX_BODY_BYTES + 1))
        assert [await client.answer(), (await client.answer())[0]] == [(200, b"def"), 413]
        assert await client.ends()


@either
@on_uvloop
async def test_guarded_routes_serve_only_peers_that_the_guard_admits(tls: bool) -> None:
    async with serving(tls=tls) as served:
        allowed = await served.connect()
        allowed.send(post("/own", b"abc"))
        assert await allowed.answer() == (200, b"abc")
        served.refusal = Response(403, b"not you\n")
        refused = await served.connect()
        refused.send(post("/own", b"abc"), post("/echo", b"abc"), post("/own", b"abc"))
        assert [await refused.answer() for _ in range(3)] == [(403, b"not you\n"), (200, b"abc"), (403, b"not you\n")]
        allowed.send(post("/own", b"abc"))
        assert await allowed.answer() == (200, b"abc")
        assert len(served.guarded) == 2


# -- faults


@pytest.mark.parametrize("path", ["/fails", "/fails-later"])
@on_uvloop
async def test_a_handler_that_fails_is_logged_and_its_connection_goes_on(path: str) -> None:
    with captured() as logs:
        async with serving() as served:
            client = await served.connect()
            client.send(post(path), post("/echo", b"abc"))
            assert await client.answer() == (500, b"internal error, see the log\n")
            assert await client.answer() == (200, b"abc")
    [event] = logs.events
    assert (event["event"], event["level"], event["target"]) == ("the handler of a request failed", "error", path)
    assert repr(event["exc_info"]) == "RuntimeError('a bug')"


@on_uvloop
async def test_a_handler_that_was_cancelled_ends_its_connection_and_no_other() -> None:
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        client.send(post("/gives-up"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.answer()
        other.send(post("/echo", b"abc"))
        assert await other.answer() == (200, b"abc")


@either
@on_uvloop
async def test_a_client_that_goes_away_does_not_end_what_it_asked_for(tls: bool) -> None:
    async with serving(tls=tls) as served:
        client = await served.connect()
        client.send(post("/later", b"abc"))
        await until(lambda: served.asked)
        client.cut()
        other = await served.connect()
        other.send(post("/echo"))
        await other.answer()
        served.gate.set()
        await until(lambda: served.ended)
        assert served.ended == [b"abc"]


# -- responses in pieces


async def chunks(client: Client) -> list[bytes]:
    found = []
    while size := int(await client.reader.readline(), 16):
        found.append(await client.reader.readexactly(size))
        await client.reader.readline()
    await client.reader.readline()
    return found


@pytest.mark.parametrize("limits", [None, ListenerLimits()], ids=["admitted", "limited"])
@either
@on_uvloop
async def test_a_response_is_sent_while_it_is_made(tls: bool, limits: ListenerLimits | None) -> None:
    async with serving(tls=tls, limits=limits) as served:
        client = await served.connect()
        client.send(get("/pieces"), get("/pieces", "HEAD"), post("/echo", b"abc"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"\r\nTransfer-Encoding: chunked\r\n" in head
        assert await chunks(client) == [b"%d " % number for number in range(PIECES)]
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"\r\nTransfer-Encoding: chunked\r\n" in head
        assert await client.answer() == (200, b"abc")
        client.send(b"GET /pieces HTTP/1.0\r\n\r\n")
        head, body = (await client.reader.read()).split(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body == b"".join(b"%d " % number for number in range(PIECES))


@on_uvloop
async def test_a_response_is_made_no_faster_than_it_is_read() -> None:
    async with serving(limits=ListenerLimits()) as served:
        served.size = 4 * MIB
        client = await served.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/pieces"))
        await until(lambda: served.made)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert served.made < PIECES / 2
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.reader.readuntil(b"\r\n\r\n")
        assert [len(chunk) for chunk in await chunks(client)] == [
            len(b"%d " % number) + 4 * MIB for number in range(PIECES)
        ]


@in_fake_time
async def test_a_client_that_stops_reading_a_response_in_pieces_is_cut_off() -> None:
    async with serving() as served:
        served.size = 4 * MIB
        client = await served.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(get("/pieces"))
        await asyncio.sleep(WRITE_S + EXPIRE_EVERY_S)
        assert not served.listener._state.connections
        assert not served.listener._state.tasks
        assert 0 < served.made < PIECES


@on_uvloop
async def test_a_response_that_fails_half_way_ends_without_its_last_chunk() -> None:
    with captured() as logs:
        async with serving() as served:
            served.fails_at = 3
            client = await served.connect()
            client.send(get("/pieces"))
            assert b"0\r\n\r\n" not in await client.reader.read()
    assert [event["event"] for event in logs.events] == ["the handler of a request failed"]
