"""The listener on httptools, byte for byte on raw sockets."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest
import trustme

from tessera.http11.limits import LARGE_BODY_BYTES, MAX_BUFFERED_BYTES
from tessera.http11.responses import MAX_BODY_BYTES
from tessera.http11.router import Request, Response, Route
from tessera.http11.server import BODY_S, HEAD_S, KEEP_ALIVE_S, LINGER_S, WRITE_S
from tessera.services.addresses import Address
from tessera.services.common_settings import ListenerLimits
from tessera.services.listener import EXPIRE_EVERY_S, Listener
from tests.support.event_loops import in_fake_time, in_real_time, on_uvloop
from tests.support.logs import captured
from tests.support.scheduler_process import LOOPBACK, trusting, until

GRACE = 5.0
MIB = 2**20
PIECES = 20
TURNS = 2000
"""of the loop, several times what reading all that is sent would take"""
HEAD_OF_ALL = re.compile(
    rb"HTTP/1\.1 (\d+) [A-Za-z ]+\r\nContent-Type: ([^\r]+)\r\nContent-Length: (\d+)\r\n"
    rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n"
    rb"(Connection: close\r\n|Connection: keep-alive\r\n)?(Allow: [A-Z, ]+\r\n)?\r\n"
)
"""every header that is ever sent"""


def post(path: str, body: bytes = b"", *, version: str = "1.1", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return f"POST {path} HTTP/{version}\r\nContent-Length: {len(body)}\r\n{''.join(lines)}\r\n".encode() + body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *data: bytes) -> None:
        self.writer.writelines(data)

    async def answer(self, *, has_body: bool = True) -> tuple[int, bytes]:
        status, _, body = await self.whole(has_body=has_body)
        return status, body

    async def whole(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = HEAD_OF_ALL.fullmatch(head)
        assert found, head
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        body = await self.reader.readexactly(int(found[3])) if has_body else b""
        return int(found[1]), headers, body

    async def ends(self) -> bool:
        """Whether the server ends the connection, with nothing more sent."""
        return await self.reader.read() == b""

    def cut(self) -> None:
        self.writer.transport.abort()


@dataclass
class Service:
    """Handlers that can be told apart, and what they were asked."""

    asked: list[bytes] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    guarded: list[object] = field(default_factory=list)
    refusal: Response | None = None
    size: int = 0
    made: int = 0
    """pieces"""
    fails_at: int = 0

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/echo", self._echo),
            Route("POST", "/later", self._later),
            Route("POST", "/own", self._echo, guarded=True),
            Route("POST", "/fails", self._fails),
            Route("POST", "/fails-later", self._fails_later),
            Route("POST", "/gives-up", self._gives_up),
            Route("GET", "/large", lambda _request: Response(200, b"x" * self.size)),
            Route("GET", "/pieces", lambda _request: Response(200, pieces=self._pieces())),
            Route("GET", "/followed", lambda _request: Response(200, pieces=self._followed())),
        ]

    def guard(self, transport: asyncio.BaseTransport) -> Response | None:
        self.guarded.append(transport)
        return self.refusal

    def _echo(self, request: Request) -> Response:
        self.asked.append(request.body)
        return Response(200, request.body + b"x" * self.size, "application/json")

    async def _later(self, request: Request) -> Response:
        self.asked.append(request.body)
        await self.gate.wait()
        self.ended.append(request.body)
        return Response(200, request.body)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        for number in range(PIECES):
            self.made += 1
            if self.made == self.fails_at:
                raise RuntimeError("a bug")
            yield b"%d " % number + b"x" * self.size

    async def _followed(self) -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await self.gate.wait()

    def _fails(self, _request: Request) -> Response:
        raise RuntimeError("a bug")

    async def _fails_later(self, _request: Request) -> Response:
        raise RuntimeError("a bug")

    async def _gives_up(self, _request: Request) -> Response:
        raise asyncio.CancelledError


@dataclass
class Served(Service):
    """A service behind a listener."""

    listener: Listener = field(init=False)
    trust: ssl.SSLContext | None = None
    clients: list[Client] = field(default_factory=list)

    async def connect(self, address: Address | None = None) -> Client:
        at = address or self.listener.address
        client = Client(*await asyncio.open_connection(at.host or "127.0.0.1", at.port, ssl=self.trust, limit=2**24))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(
    *, tls: bool = False, grace: float = GRACE, at: Address = LOOPBACK, limits: ListenerLimits | None = None
) -> AsyncIterator[Served]:
    """With `limits` the peers have them, and are not admitted by the guard."""
    context: ssl.SSLContext | None = None
    served = Served(refusal=Response(403) if limits else None)
    if tls:
        authority = trustme.CA()
        served.trust = trusting(authority)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
    served.listener = Listener(at, served.routes(), guard=served.guard, tls=context, limits=limits, grace=grace)
    await served.listener.start()
    try:
        yield served
    finally:
        served.gate.set()
        for client in served.clients:
            client.cut()
        await served.listener.stop()


either = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


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
async def test_a_request_that_comes_byte_by_byte_is_answered() -> None:
    chunked = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving() as served:
        client = await served.connect()
        for byte in post("/echo", b"abc") + chunked:
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [await client.answer(), await client.answer()] == [(200, b"abc"), (200, b"abcde")]


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
        ("1.1", "keep-alive", "keep-alive"),
        ("1.1", "close", "close"),
        ("1.0", None, "close"),
        ("1.0", "Keep-Alive", "keep-alive"),
        ("1.0", "close", "close"),
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


# -- starting and stopping


@either
@on_uvloop
async def test_before_a_planned_end_every_response_ends_its_connection_and_none_is_cut(tls: bool) -> None:
    async with serving(tls=tls) as served:
        kept = await served.connect()
        kept.send(post("/echo", b"before"))
        assert await kept.answer() == (200, b"before")
        served.listener.announce_end()
        fresh = await served.connect()
        for client in (kept, fresh):
            client.send(post("/echo", b"after"))
            status, headers, body = await client.whole()
            assert (status, body, headers["Connection"]) == (200, b"after", "close")
            assert await client.ends()


@in_fake_time
async def test_stopping_needs_no_time_where_nothing_runs() -> None:
    async with serving() as served:
        idle, fresh = await served.connect(), await served.connect()
        idle.send(post("/echo"))
        await idle.answer()
        time = asyncio.get_running_loop().time
        began, at = time(), served.listener.address
        await served.listener.stop()
        assert time() == began
        assert await idle.ends()
        assert await fresh.ends()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(at.host, at.port)


@either
@on_uvloop
async def test_stopping_lets_requests_end_that_have_begun(tls: bool) -> None:
    async with serving(tls=tls) as served:
        running, arriving = await served.connect(), await served.connect()
        whole = post("/echo", b"abcdef")
        running.send(post("/later", b"abc"))
        arriving.send(post("/echo"), whole[:-3])
        await arriving.answer()
        await until(lambda: len(served.asked) == 2)
        stopping = asyncio.create_task(served.listener.stop())
        await asyncio.sleep(0)
        arriving.send(whole[-3:])
        served.gate.set()
        for client, body in ((running, b"abc"), (arriving, b"abcdef")):
            status, headers, found = await client.whole()
            assert (status, found, headers["Connection"]) == (200, body, "close")
            client.writer.close()
        await stopping


@in_fake_time
async def test_the_end_of_a_response_in_pieces_ends_its_connection_once_the_listener_stops() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(get("/followed"))
        assert (await client.reader.readuntil(b"begun")).startswith(b"HTTP/1.1 200")
        time = asyncio.get_running_loop().time
        began = time()
        stopping = asyncio.create_task(served.listener.stop())
        await asyncio.sleep(0)
        served.gate.set()
        await stopping
        assert time() == began
        assert await client.reader.read() == b"\r\n0\r\n\r\n"


@in_fake_time
async def test_what_does_not_end_within_the_grace_period_is_cut() -> None:
    async with serving() as served:
        running, arriving = await served.connect(), await served.connect()
        running.send(post("/later", b"abc"))
        arriving.send(post("/echo") + post("/echo", b"abcdef")[:-3])
        await arriving.answer()
        await until(lambda: len(served.asked) == 2)
        time = asyncio.get_running_loop().time
        began = time()
        await served.listener.stop()
        assert time() - began == GRACE
        assert await running.ends()
        assert await arriving.ends()
        assert served.ended == []


@in_fake_time
async def test_a_request_without_its_client_is_waited_for_too() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"abc"))
        await until(lambda: served.asked)
        client.cut()
        asyncio.get_running_loop().call_later(GRACE / 2, served.gate.set)
        await served.listener.stop()
        assert served.ended == [b"abc"]


@on_uvloop
async def test_after_a_cut_no_response_is_sent_and_no_handler_runs() -> None:
    before = asyncio.all_tasks()
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"abc"))
        await until(lambda: served.asked)
        served.listener.cut()
        served.gate.set()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.answer()
        await served.listener.stop()
        assert served.ended == []
        assert asyncio.all_tasks() == before


@on_uvloop
async def test_a_port_that_is_taken_is_a_fault_at_the_start() -> None:
    async with serving() as served:
        second = Listener(served.listener.address, [], grace=GRACE)
        with pytest.raises(OSError, match="address"):
            await second.start()
        await second.stop()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::1"])
@on_uvloop
async def test_a_listener_is_where_it_was_asked_to_be(host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(at=Address(host, 0)) as served:
        assert (served.listener.address.host, served.listener.address.port > 0) == (host, True)
        client = await served.connect()
        client.send(post("/echo", b"abc"))
        assert await client.answer() == (200, b"abc")
