"""What the listener bears of its clients: how long they take, and how much they send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from tessera.http11.limits import LARGE_BODY_BYTES, MAX_BUFFERED_BYTES
from tessera.http11.request_reader import BODY_S, HEAD_S, MAX_BODY_BYTES
from tessera.http11.server import KEEP_ALIVE_S, LINGER_S
from tessera.services.common_settings import ListenerLimits
from tessera.services.listener import EXPIRE_EVERY_S
from tests.support.event_loops import in_fake_time, on_uvloop
from tests.support.listening import MIB, Client, Served, get, post, serving
from tests.support.logs import captured
from tests.support.scheduler_process import until

# -- time


async def ends_after(client: Client) -> float:
    """Seconds until the server ends the connection."""
    time = asyncio.get_running_loop().time
    began = time()
    assert await client.ends()
    return time() - began


@pytest.mark.parametrize("answered", [False, True])
@in_fake_time
async def test_an_idle_connection_is_closed_in_the_end(answered: bool) -> None:
    async with serving() as served:
        client = await served.connect()
        if answered:
            await asyncio.sleep(KEEP_ALIVE_S - 1)
            client.send(post("/echo", b"abc"))
            assert await client.answer() == (200, b"abc")
        assert KEEP_ALIVE_S <= await ends_after(client) <= KEEP_ALIVE_S + EXPIRE_EVERY_S


@pytest.mark.parametrize(
    ("start", "seconds"),
    [(b"POST /echo HTTP/1.1\r\nX: ", HEAD_S), (post("/echo", b"x" * 1000)[:-1000], BODY_S)],
    ids=["head", "body"],
)
@in_fake_time
async def test_a_request_must_be_complete_in_time_however_often_a_byte_comes(start: bytes, seconds: float) -> None:
    async with serving() as served:
        client = await served.connect()
        time = asyncio.get_running_loop().time
        began = time()
        client.send(start)
        ended = asyncio.create_task(client.ends())
        while not ended.done():
            assert time() - began <= seconds + EXPIRE_EVERY_S
            client.send(b"x")
            await asyncio.wait([ended], timeout=1)
        assert time() - began >= seconds


@in_fake_time
async def test_a_running_request_has_all_the_time_it_needs() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"abc") + b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
        await asyncio.sleep(10 * KEEP_ALIVE_S)
        served.gate.set()
        assert await client.answer() == (200, b"abc")
        client.send(b"def")
        assert await client.answer() == (200, b"def")


@in_fake_time
async def test_a_refused_client_that_goes_on_sending_is_cut_off() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer())[0] == 400
        time = asyncio.get_running_loop().time
        began = time()
        while not client.writer.transport.is_closing():
            assert time() - began <= LINGER_S + 2 * EXPIRE_EVERY_S
            client.send(b"more nonsense\r\n\r\n")
            await asyncio.sleep(0.5)
        assert time() - began >= LINGER_S


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@in_fake_time
async def test_a_client_that_never_reads_its_answer_is_cut_off(connection: str) -> None:
    async with serving() as served:
        served.size = 64 * 2**20
        client = await served.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post("/echo", Connection=connection))
        await until(lambda: served.asked)
        await asyncio.sleep(KEEP_ALIVE_S + LINGER_S + 2 * EXPIRE_EVERY_S)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.answer()


# -- limits


async def is_cut(client: Client) -> bool:
    try:
        return await client.ends()
    except ConnectionError:
        return True


async def handshakes(served: Served) -> Client:
    """A connection that says nothing, where the server waits for TLS."""
    at = served.listener.address
    client = Client(*await asyncio.open_connection(at.host, at.port))
    served.clients.append(client)
    return client


@pytest.mark.parametrize("connect", [Served.connect, handshakes], ids=["plain", "before the handshake"])
@on_uvloop
async def test_connections_above_the_limit_of_their_address_are_refused(
    connect: Callable[[Served], Awaitable[Client]],
) -> None:
    with captured() as logs:
        limits = ListenerLimits(connections=20, connections_per_peer=3)
        async with serving(tls=connect is handshakes, limits=limits) as served:
            held = [await connect(served) for _ in range(3)]
            await until(lambda: len(served.listener._state.connections) == 3)
            refused = [await connect(served) for _ in range(5)]
            assert all([await is_cut(client) for client in refused])
            held[0].cut()
            await until(lambda: len(served.listener._state.connections) == 2)
            client = await served.connect()
            client.send(post("/echo", b"abc"))
            assert await client.answer() == (200, b"abc")
    [event] = logs.events
    assert (event["event"], event["last_peer"]) == ("requests refused", "127.0.0.1")


@on_uvloop
async def test_peers_that_the_guard_admits_have_no_limit_of_connections() -> None:
    limits = ListenerLimits(connections=2, connections_per_peer=1)
    async with serving(limits=limits) as served:
        served.refusal = None
        for client in [await served.connect() for _ in range(10)]:
            client.send(post("/echo", b"abc"))
            assert await client.answer() == (200, b"abc")


@in_fake_time
async def test_a_handshake_must_be_complete_in_time() -> None:
    with captured() as logs:
        async with serving(tls=True) as served:
            silent = await handshakes(served)
            assert HEAD_S <= await ends_after(silent) <= HEAD_S + EXPIRE_EVERY_S
            wrong = await handshakes(served)
            wrong.send(get("/large"))
            assert b"HTTP" not in await wrong.reader.read()
    assert [event["counts"] for event in logs.events] == [{"no TLS handshake": 1}]


@in_fake_time
async def test_clients_that_stop_in_the_middle_of_large_bodies_hold_a_bounded_number_of_bytes() -> None:
    async with serving(limits=ListenerLimits()) as served:
        served.listener._state.timer = lambda: 0.0
        clients = [await served.connect() for _ in range(24)]
        for client in clients:
            client.send(post("/echo", b"x" * MAX_BODY_BYTES)[: -MAX_BODY_BYTES + MIB])
        await asyncio.sleep(BODY_S / 2)
        connections = served.listener._state.connections
        assert 0 < sum(len(piece) for each in connections for piece in each._body) <= MAX_BUFFERED_BYTES
        assert len(connections) < len(clients)
        other = await served.connect()
        other.send(post("/echo", b"abc"))
        assert await other.answer() == (200, b"abc")
        await asyncio.sleep(BODY_S)
        assert sum(len(each._body) for each in connections) == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /large HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(101)) + b"\r\n", 431),
        (b"GET /large HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(102)), 431),
        (get("/large") * 1000, 400),
    ],
    ids=["headers", "headers without an end", "requests ahead"],
)
@on_uvloop
async def test_what_costs_more_than_its_bytes_is_refused_with_one_line_in_the_log(data: bytes, status: int) -> None:
    with captured() as logs:
        async with serving(limits=ListenerLimits()) as served:
            for _ in range(5):
                client = await served.connect()
                client.send(data)
                found = 200
                while found == 200:
                    found, headers, _ = await client.whole()
                assert (found, headers["Connection"]) == (status, "close")
    assert [event["event"] for event in logs.events] == ["requests refused"]


@pytest.mark.parametrize("admitted", [False, True])
@in_fake_time
async def test_a_peer_that_uses_much_of_the_event_loop_waits_for_its_share(admitted: bool) -> None:
    async with serving(limits=ListenerLimits()) as served:
        if admitted:
            served.refusal = None
        # Every look at the clock is half a second later: that is what a request seems to cost.
        ticks = count(step=0.5)
        served.listener._state.timer = lambda: next(ticks)
        time = asyncio.get_running_loop().time
        began = time()
        clients = [await served.connect() for _ in range(4)]
        for client in clients:
            client.send(post("/echo", b"abc"))
        for client in clients:
            assert await client.answer() == (200, b"abc")
        assert (time() - began > 0.5) is not admitted


@in_fake_time
async def test_a_small_request_does_not_wait_for_a_large_one_before_it_on_the_same_connection() -> None:
    async with serving(limits=ListenerLimits()) as served:
        ticks = count(step=0.05)  # seconds that each step seems to cost: ten of waiting for a large request
        served.listener._state.timer = lambda: next(ticks)
        time = asyncio.get_running_loop().time
        client = await served.connect()
        large = b"x" * (LARGE_BODY_BYTES + 1)
        waits = []
        for body in (large, b"abc", large):
            began = time()
            client.send(post("/echo", body))
            assert await client.answer() == (200, body)
            waits.append(time() - began)
        assert waits[1] < 5 < waits[2]
