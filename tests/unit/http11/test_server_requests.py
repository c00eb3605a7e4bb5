"""Bytes in, requests out: the same ones however the bytes were split."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.http11.limits import ServerState
from tessera.http11.request_reader import (
    BODY_TOO_LARGE,
    CONTINUE,
    HEAD_TOO_LARGE,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    NO_UPGRADE,
    NOT_HTTP,
)
from tessera.http11.router import Response, Route, Router
from tessera.http11.server import ServerConnection
from tessera.services.common_settings import ListenerLimits

FORBIDDEN = Response(403, b"not you\n")
ROUTER = Router(
    [
        Route("POST", "/echo", lambda request: Response(200, request.body)),
        Route("POST", "/own", lambda request: Response(200, request.body), guarded=True),
        Route("GET", "/hello", lambda _request: Response(200, b"hello")),
    ]
)
CONVERSATION = (
    b"POST /echo?timeout=5s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"
    b"\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"
    b"HEAD /hello HTTP/1.1\r\nHost: x\r\nCONNECTION: Keep-Alive\r\n\r\n"
    b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
)


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass


def connected(
    wire: Wire, router: Router = ROUTER, refusal: Response | None = None, pieces: Sequence[bytes] = ()
) -> ServerConnection:
    """A connection that has received this; its requests stay where they are, since nothing can be written."""

    async def connect() -> ServerConnection:
        made = ServerConnection(ServerState(router, ListenerLimits(), guard=lambda _transport: refusal))
        made.connection_made(wire)
        made.pause_writing()
        for piece in pieces:
            made.data_received(piece)
        return made

    with asyncio.Runner() as runner:
        return runner.run(connect())


def read(*pieces: bytes, refusal: Response | None = None) -> ServerConnection:
    return connected(Wire(), refusal=refusal, pieces=pieces)


@given(st.lists(st.integers(1, len(CONVERSATION) - 1), max_size=12).map(sorted))
def test_requests_are_the_same_wherever_their_bytes_are_split(cuts: list[int]) -> None:
    bounds = [0, *cuts, len(CONVERSATION)]
    made = read(*(CONVERSATION[a:b] for a, b in pairwise(bounds)))
    assert [(r.request.target, r.request.body, r.keeps_connection, r.is_head) for r in made.requests] == [
        (b"/echo?timeout=5s", b"abcde", True, False),
        (b"/echo", b"abcde", True, False),
        (b"/hello", b"", True, True),
        (b"/none", b"", False, False),
    ]
    assert not made.is_reading
    assert not made.is_over


def test_one_byte_at_a_time_is_enough() -> None:
    made = read(*(bytes([byte]) for byte in CONVERSATION))
    assert [request.request.body for request in made.requests] == [b"abcde", b"abcde", b"", b""]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", NOT_HTTP),
        (b"hello\r\n\r\n", NOT_HTTP),
        (b"GET /hello HTTP/1.1\n\n", NOT_HTTP),
        (b"GET /hello HTTP/3.0\r\n\r\n", NOT_HTTP),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NOT_HTTP),
        (b"POST /echo HTTP/1.1\r\nContent-Length: two\r\n\r\n", NOT_HTTP),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", NOT_HTTP),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", NOT_HTTP),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", NOT_HTTP),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nabc", NOT_HTTP),
        (b"GET /hello HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", NO_UPGRADE),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", NO_UPGRADE),
        (b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), BODY_TOO_LARGE),
        (b"POST /none HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), BODY_TOO_LARGE),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), BODY_TOO_LARGE),
        (b"GET /hello HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES, HEAD_TOO_LARGE),
        (b"GET /" + b"x" * MAX_HEAD_BYTES, HEAD_TOO_LARGE),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + b"x" * 9, None),
    ],
)
def test_what_cannot_be_served_is_refused_and_ends_the_reading(data: bytes, answer: Response | None) -> None:
    made = read(data)
    assert [request.handle for request in made.requests] == ([] if answer is None else [answer])
    assert (made.is_over, made.is_reading) == (answer is not None, answer is None)


@pytest.mark.parametrize(
    "start",
    [
        b"GET /hello HTTP/1.1\r\nX: ",
        b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["head", "trailer", "chunk extension"],
)
def test_what_never_comes_to_an_end_is_refused_after_some_kilobytes(start: bytes) -> None:
    made = read(start, *[b"x" * 1000] * 200)
    assert [request.handle for request in made.requests] == [HEAD_TOO_LARGE]


def test_requests_before_a_bad_one_are_served_and_nothing_after_it() -> None:
    good = b"GET /hello HTTP/1.1\r\n\r\n"
    made = read(good + good + b"nonsense\r\n" + good, good)
    assert [request.is_complete for request in made.requests] == [True, True, False]


@pytest.mark.parametrize("chunk", [64, 2**16])
def test_chunks_count_together(chunk: int) -> None:
    head = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    framed = b"%x\r\n%s\r\n" % (chunk, b"x" * chunk)
    whole = read(head, framed * (MAX_BODY_BYTES // chunk), b"0\r\n\r\n")
    assert [len(request.request.body) for request in whole.requests] == [MAX_BODY_BYTES]
    over = read(head, framed * (MAX_BODY_BYTES // chunk), b"1\r\nx\r\n")
    assert [request.handle for request in over.requests] == [BODY_TOO_LARGE]


@pytest.mark.parametrize(
    ("method", "target", "refusal", "status"),
    [
        ("POST", "/echo", None, 200),
        ("POST", "/echo?a=b", None, 200),
        ("POST", "http://127.0.0.1:9/echo?a=b", None, 200),
        ("POST", "/echo", FORBIDDEN, 200),
        ("POST", "/own", None, 200),
        ("POST", "/own", FORBIDDEN, 403),
        ("POST", "/own?a=b", FORBIDDEN, 403),
        ("POST", "http://localhost/own", FORBIDDEN, 403),
        ("GET", "/own", FORBIDDEN, 405),
        ("HEAD", "/hello", None, 200),
        ("POST", "/hello", None, 405),
        ("GET", "/echo", None, 405),
        ("HEAD", "/echo", None, 405),
        ("GET", "/", None, 404),
        ("POST", "/echo/", None, 404),
        ("POST", "//echo", None, 404),
        ("POST", "/ECHO", None, 404),
        ("OPTIONS", "*", None, 404),
        ("POST", "echo", None, 400),
    ],
)
def test_a_request_finds_its_route_or_the_reason_why_not(
    method: str, target: str, refusal: Response | None, status: int
) -> None:
    data = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode()
    [request] = read(data, refusal=refusal).requests
    found = request.handle if isinstance(request.handle, Response) else request.handle(request.request)
    assert isinstance(found, Response)
    assert found.status == status


@pytest.mark.parametrize("path", ["/none", "/own"])
def test_a_body_that_no_handler_will_see_is_not_kept(path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n".encode()
    [request] = read(head, b"x" * MAX_BODY_BYTES, refusal=FORBIDDEN).requests
    assert (request.request.body, request.is_complete) == (b"", True)


def test_a_connection_that_was_lost_leaves_nothing_to_the_collector() -> None:
    made = read(CONVERSATION)
    seen = weakref.ref(made)
    gc.disable()
    try:
        made.connection_lost(None)
        del made
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("version", "path", "expects", "refused"),
    [("1.1", "/echo", True, False), ("1.0", "/echo", False, False), ("1.1", "/none", False, True)],
)
def test_a_client_that_asks_first_is_invited_or_refused(version: str, path: str, expects: bool, refused: bool) -> None:
    wire = Wire()
    made = connected(wire)
    made.data_received(f"POST {path} HTTP/{version}\r\nContent-Length: 3\r\nEXPECT: 100-Continue\r\n\r\n".encode())
    assert (wire.written, made.is_over) == (CONTINUE if expects else b"", refused)
    if expects:
        made.data_received(b"abc")
        assert (wire.written, made.requests[0].request.body) == (CONTINUE, b"abc")


def test_a_fault_of_our_own_is_not_taken_for_a_bad_request() -> None:
    class Broken(Router):
        def find(self, _method: bytes, _target: bytes) -> Route | Response:
            raise RuntimeError("a bug")

    made = connected(Wire(), Broken([]))
    with pytest.raises(httptools.HttpParserCallbackError):
        made.data_received(CONVERSATION)
    assert (list(made.requests), made.is_over) == ([], False)
