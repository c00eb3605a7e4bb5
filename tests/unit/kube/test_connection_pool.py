"""The connection pool: which connections are used again, responses in every form of HTTP, and proxies."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from typing import Any

import pytest

from tessera.http11.client import ClientConnection, ClientResponse
from tessera.kube import connection_pool
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.connection_pool import KEEP_ALIVE_S
from tessera.kube.credentials import FixedHeaders
from tessera.kube.errors import ApiError, BadName, Unreachable
from tests.support.event_loops import in_fake_time
from tests.support.network import Answer, Exchange, RawServer, raw, refusal, reply, silence

THING = "/api/v1/namespaces/team/pods/a"
BODY = b'{"name":"a"}'
COMPLETE = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + BODY


def client_of(server: RawServer, **settings: Any) -> KubeClient:
    return KubeClient(Access(server.url), **settings)


def and_more(first: bytes, later: bytes, *, turns: int = 0) -> Answer:
    """Sends bytes that were not asked for, in the same packet or some turns of the loop later."""

    async def answer(exchange: Exchange) -> bool:
        if not turns:
            await exchange.send(first + later)
            return True
        await exchange.send(first)
        for _ in range(turns):
            await asyncio.sleep(0)
        await exchange.send(later)
        return True

    return answer


async def byte_by_byte(exchange: Exchange) -> bool:
    for byte in COMPLETE:
        await exchange.send(bytes([byte]))
        await asyncio.sleep(0.001)
    return True


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raw(COMPLETE), id="with its length"),
        pytest.param(byte_by_byte, id="byte by byte"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\n\r\n" + BODY), id="until the connection ends"),
        pytest.param(
            raw(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
                + BODY[:5]
                + b"\r\n7\r\n"
                + BODY[5:]
                + b"\r\n0\r\n\r\n"
            ),
            id="in chunks",
        ),
        pytest.param(
            raw(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Length: 99\r\nLink: x\r\n\r\n"
                + COMPLETE
            ),
            id="after other news",
        ),
    ],
)
@in_fake_time
async def test_a_response_is_read_in_every_form(answer: Answer) -> None:
    async with RawServer(answer) as server, client_of(server) as client:
        assert await client.get(THING, dict[str, Any]) == {"name": "a"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raw(b"220 ready\r\n"), "not HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Length: 13\r\n\r\n" + BODY), "not HTTP"),
        (raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"), "not HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (ClientConnection.max_stalled_bytes + 1)), "too large"),
        (raw(COMPLETE[:-1]), "ended before"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), "ended before"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n"), "ended before"),
    ],
)
@in_fake_time
async def test_a_malformed_response_counts_as_lost(answer: Answer, problem: str) -> None:
    async with RawServer(answer) as server, client_of(server) as client:
        with pytest.raises(Unreachable, match=problem):
            await client.get(THING, dict[str, Any])


REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nRETRY-After: 3\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raw(REFUSED), id="at once"),
        pytest.param(raw(b"HTTP/1.1 103 Early Hints\r\nRetry-After: 99\r\n\r\n" + REFUSED), id="after other news"),
        pytest.param(and_more(REFUSED[:40], REFUSED[40:], turns=5), id="in two pieces"),
        pytest.param(and_more(REFUSED, b"HTTP/1.1 200 OK\r\nRetry-After: 99\r\n\r\n"), id="before what is not its own"),
    ],
)
@in_fake_time
async def test_headers_are_those_of_the_final_response(answer: Answer) -> None:
    async with RawServer(answer) as server, client_of(server) as client:
        with pytest.raises(ApiError) as refused:
            await client.get(THING, dict[str, Any])
    assert refused.value.retry_after == 3.0


@in_fake_time
async def test_a_connection_is_used_again() -> None:
    async with RawServer(reply(200, {}), refusal(404), reply(200, {})) as server, client_of(server) as client:
        await client.get(THING, dict[str, Any])
        with pytest.raises(Exception, match="404"):
            await client.get(THING, dict[str, Any])
        await client.create("/api/v1/pods", {})
    assert (len(server.requests), server.connections) == (3, 1)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply(200, {}, Connection="close"), id="it says so"),
        pytest.param(and_more(COMPLETE, COMPLETE), id="more came than was asked for"),
        pytest.param(and_more(COMPLETE, b"HTTP/1.1 200 OK\r\n", turns=5), id="something comes without being asked for"),
    ],
)
@in_fake_time
async def test_a_connection_that_is_out_of_step_is_not_used_again(answer: Answer) -> None:
    last = reply(200, {"name": "mine"})
    async with RawServer(answer, last) as server, client_of(server) as client:
        await client.get(THING, dict[str, Any])
        await asyncio.sleep(1.0)
        assert await client.get(THING, dict[str, Any]) == {"name": "mine"}
    assert server.connections == 2


@in_fake_time
async def test_the_connection_of_a_request_that_was_given_up_is_closed_and_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_pool, "MAX_CONNECTIONS", 1)
    async with RawServer(silence, reply(200, {"name": "mine"})) as server, client_of(server, timeout=5.0) as client:
        with pytest.raises(Unreachable):
            await client.get(THING, dict[str, Any])
        assert await client.get(THING, dict[str, Any]) == {"name": "mine"}
    assert server.connections == 2


@pytest.mark.parametrize(("idle_s", "connections"), [(KEEP_ALIVE_S - 1.0, 1), (KEEP_ALIVE_S + 1.0, 2)])
@in_fake_time
async def test_an_idle_connection_is_given_up_before_the_server_does_it(idle_s: float, connections: int) -> None:
    async with RawServer(reply(200, {})) as server, client_of(server) as client:
        await client.get(THING, dict[str, Any])
        await asyncio.sleep(idle_s)
        await client.get(THING, dict[str, Any])
    assert server.connections == connections


@in_fake_time
async def test_requests_at_once_have_a_connection_each_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "MAX_CONNECTIONS", 2)
    at_once = most = 0

    async def slow(exchange: Exchange) -> bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(1.0)
        at_once -= 1
        await exchange.send(COMPLETE)
        return True

    async with RawServer(slow) as server, client_of(server) as client:
        await asyncio.gather(*(client.get(THING, dict[str, Any]) for _ in range(6)))
    assert (most, server.connections, len(server.requests)) == (2, 2, 6)


@in_fake_time
async def test_a_connection_that_never_came_about_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "MAX_CONNECTIONS", 1)
    with socket.socket() as deaf:
        # It has the port and does not listen, so every connection is refused.
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        async with KubeClient(Access(f"http://127.0.0.1:{port}")) as client:
            for _ in range(3):
                with pytest.raises(Unreachable, match=f"cannot connect to 127.0.0.1 port {port}"):
                    await client.get(THING, dict[str, Any])


@in_fake_time
async def test_a_client_that_closes_ends_what_is_under_way() -> None:
    async with RawServer(silence) as server:
        async with client_of(server) as client:
            asking = asyncio.create_task(client.create("/api/v1/pods", {}))
            await server.wait_for(1)
        with pytest.raises(Unreachable) as caught:
            await asking
    assert caught.value.maybe_done


@pytest.mark.parametrize(("name", "value"), [("X-Note", "a\r\nX-Other: b"), ("X-Note\n", "a"), ("X-Note", "a\0b")])
@in_fake_time
async def test_a_header_that_would_break_out_of_its_line_is_never_sent(name: str, value: str) -> None:
    async with RawServer(reply(200, {})) as server:
        async with KubeClient(Access(server.url, credentials=FixedHeaders({name: value}))) as client:
            with pytest.raises(BadName):
                await client.get(THING, dict[str, Any])
        assert server.requests == []


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX: y", "/a\x7f"])
@in_fake_time
async def test_a_path_that_would_break_out_of_its_line_is_never_sent(target: str) -> None:
    async with RawServer(reply(200, {})) as server:
        async with client_of(server) as client:
            with pytest.raises(BadName):
                await client.get(target, dict[str, Any])
        assert server.requests == []


@in_fake_time
async def test_a_connection_that_ends_as_soon_as_it_is_there_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_pool, "MAX_CONNECTIONS", 1)
    async with RawServer(reply(200, {"name": "a"})) as server, client_of(server) as client:
        with monkeypatch.context() as ended:
            ended.setattr(ClientConnection, "connection_made", _made_and_lost)
            for _ in range(3):
                with pytest.raises(Unreachable, match="ended before it was used") as caught:
                    await client.create("/api/v1/pods", {})
                assert not caught.value.maybe_done
        lost = server.connections
        await asyncio.gather(*(client.get(THING, dict[str, Any]) for _ in range(3)))
    assert server.connections == lost + 1, "there is one place, and it was given back once each time"


def _made_and_lost(connection: ClientConnection, transport: asyncio.Transport) -> None:
    connection._transport = transport
    transport.abort()
    connection.connection_lost(None)
    connection.connection_lost = lambda error: None  # type: ignore[method-assign]


@in_fake_time
async def test_a_request_cancelled_as_its_response_arrives_does_not_close_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is free for other requests before the task that waited for the response runs again."""
    async with RawServer(reply(200, {"name": "first"}), reply(200, {"name": "second"})) as server:
        async with client_of(server) as client:
            asking = asyncio.create_task(client.get(THING, dict[str, Any]))
            with monkeypatch.context() as patched:
                wake = ClientResponse.wake

                def wake_and_cancel(self: ClientResponse) -> bool:
                    woken = wake(self)
                    asking.cancel()
                    return woken

                patched.setattr(ClientResponse, "wake", wake_and_cancel)
                with pytest.raises(asyncio.CancelledError):
                    await asking
            assert await client.get(THING, dict[str, Any]) == {"name": "second"}
        assert server.connections == 1


@in_fake_time
async def test_a_connection_that_is_being_ended_is_not_used_again() -> None:
    async with RawServer(reply(200, {"name": "a"})) as server, client_of(server) as client:
        await client.get(THING, dict[str, Any])
        (idle,) = client._transport._pool._idle  # type: ignore[union-attr]
        # Nothing was asked for: the connection is useless now, but its end takes a turn of the loop.
        idle.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        assert await client.get(THING, dict[str, Any]) == {"name": "a"}
    assert server.connections == 2


@in_fake_time
async def test_a_bind_is_written_to_its_connection_within_four_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every coroutine between a verb and the socket costs time for every pod."""
    frames: list[str] = []
    send = ClientConnection.send

    def noted(self: ClientConnection, request: bytes) -> ClientResponse:
        frames.extend(frame.f_code.co_qualname for frame, _ in traceback.walk_stack(sys._getframe(1)))
        return send(self, request)

    monkeypatch.setattr(ClientConnection, "send", noted)
    async with RawServer(reply(201, {})) as server, client_of(server) as client:
        await client.bind("team", "a", uid="u", node="n")
    assert frames[:3] == ["ConnectionPool.round_trip", "Transport.request", "KubeClient.bind"]
