"""The requests of a connection, read within limits, what the server answers by itself, and the heads of all responses.

A refusal is the last request of a connection: nothing after it is looked at. A body that no handler will see is
counted, not kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

import httptools

from tessera.http11.connection import HttpConnection
from tessera.http11.limits import LARGE_BODY_BYTES, LimitedConnection, ServerState
from tessera.http11.router import NO_HEADERS, Handler, Request, Response, Route

MAX_BODY_BYTES = 8 * 2**20
"""A filter request has a pod and the names of all nodes: 5000 names of the longest kind are 1.3 MB. A review has the
object, at most 3 MiB in a request to the apiserver, and perhaps the object before it. Whole Node objects (an extender
that is not nodeCacheCapable) fit for some hundred nodes."""
MAX_HEAD_BYTES = 16 * 2**10
"""kube-scheduler's and the apiserver's heads have a few hundred; a token may have some thousand"""
MAX_HEADERS = 100
MAX_REQUESTS_AHEAD = 32
"""that may wait on one connection; Go's clients send none ahead"""
HEAD_S = 10.0
"""for a TLS handshake, and for a head to be complete after its first byte"""
BODY_S = 30.0
"""for a body to be complete: the longest time that an apiserver and a kube-scheduler give a call"""

NOT_HTTP = Response(400, b"this is not HTTP/1.1\n")
NO_UPGRADE = Response(400, b"there is nothing to upgrade to\n")
BODY_TOO_LARGE = Response(413, f"a body has at most {MAX_BODY_BYTES} bytes\n".encode())
TOO_MANY_AHEAD = Response(400, b"too many requests sent ahead\n")
HEAD_TOO_LARGE = Response(431, f"a head has at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} fields\n".encode())
OVERLOADED = Response(503, b"this address sends too much at once\n")
PHRASES = {int(status): status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
INTERNAL_ERROR = Response(500, b"internal error, see the log\n")


class IncomingRequest(NamedTuple):
    """A request that is complete, or was refused before it was."""

    handle: Handler | Response
    request: Request = Request()
    keeps_connection: bool = False
    """never with HTTP/1.0"""
    is_head: bool = False
    is_chunkable: bool = True
    """HTTP/1.0 does not know chunks"""
    is_complete: bool = True


class _Refused(Exception):
    """Stops the parser."""


class RequestReader(HttpConnection, LimitedConnection):
    """Called by its parser. What has to be kept from a handler, and why, is known when the head is complete."""

    max_stalled_bytes = MAX_HEAD_BYTES
    _parser: httptools.HttpRequestParser

    def __init__(self, state: ServerState, *, seconds: float) -> None:
        """`seconds` are those to the first deadline."""
        super().__init__()
        self.requests: deque[IncomingRequest] = deque()
        """parsed and waiting"""
        self.is_reading = False
        """a request has begun and is not complete"""
        self.expects_continue = False
        """the client waits for permission to send its body"""
        self.peer = ""
        self.held_bytes = 0
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._is_limited = True
        self._refusal: Response | None = None
        """of guarded routes"""
        self._deadline = self._loop.time() + seconds
        self._is_large = False
        self._body: list[bytes] = []
        """in pieces: a buffer that grows would leave holes of megabytes in the heap"""
        self._url: list[bytes] = []
        self.on_url = self._url.append
        self._parser = httptools.HttpRequestParser(self)

    def on_malformed(self, problem: str) -> None:
        self._refuse(NOT_HTTP)

    def on_stalled(self) -> None:
        self._refuse(HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self.is_reading = True
        self._deadline = self._loop.time() + HEAD_S
        self._has_head = self._is_large = False
        self._url.clear()
        self._header_fields.clear()
        self._body = []
        self._body_bytes = 0

    def on_headers_complete(self) -> None:
        self._stalled_bytes = 0
        self._has_head = True
        self._deadline = self._loop.time() + BODY_S
        parser, headers = self._parser, {name.title(): value for name, value in self._header_fields.items()}
        self._content_type = headers.get(b"Content-Type", b"")
        self._target = self._url[0] if len(self._url) == 1 else b"".join(self._url)
        self._method = parser.get_method()
        found = self._state.router.find(self._method, self._target)
        self._route_handler: Handler | Response
        self._kept_headers, self._max_body_bytes = NO_HEADERS, MAX_BODY_BYTES
        if not isinstance(found, Route):
            self._route_handler = found
        elif found.guarded and self._refusal is not None:
            self._route_handler = self._refusal
        else:
            self._route_handler = found.handle
            if found.reads_headers:
                self._kept_headers = headers
            if found.max_body_bytes is not None:
                self._max_body_bytes = found.max_body_bytes
        if parser.should_upgrade():
            raise self._refuse(NO_UPGRADE)
        length = int(headers.get(b"Content-Length") or 0)
        self._is_large = length > LARGE_BODY_BYTES
        if length > self._max_body_bytes:
            raise self._refuse(body_too_large(self._max_body_bytes))
        if headers.get(b"Expect", b"").lower() == b"100-continue" and parser.get_http_version() == "1.1":
            if isinstance(self._route_handler, Response):
                raise self._refuse(self._route_handler)
            self.expects_continue = True

    def on_body(self, piece: bytes) -> None:
        self._stalled_bytes = 0
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            raise self._refuse(body_too_large(self._max_body_bytes))
        if isinstance(self._route_handler, Response):
            return
        if self._is_limited:
            self._is_large = self._is_large or self._body_bytes > LARGE_BODY_BYTES
            if not self._state.peers.hold(self, len(piece)):
                raise self._refuse(OVERLOADED)
        self._body.append(piece)

    def on_message_complete(self) -> None:
        self._stalled_bytes = 0
        self.is_reading = self.expects_continue = False
        if len(self.requests) == MAX_REQUESTS_AHEAD:
            raise self._refuse(TOO_MANY_AHEAD)
        parser = self._parser
        # Most bodies come in one piece, which is not copied.
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.requests.append(
            IncomingRequest(
                self._route_handler,
                Request(self._target, body, self._content_type, self._kept_headers),
                keeps_connection=parser.should_keep_alive() and parser.get_http_version() != "1.0",
                is_head=self._method == b"HEAD",
                is_chunkable=parser.get_http_version() != "1.0",
            )
        )
        self._body = []

    def _refuse(self, response: Response) -> _Refused:
        self._state.refusals.note(response.body.decode().strip(), self.peer)
        self._stop_parsing()
        self.requests.append(IncomingRequest(response, is_complete=False))
        return _Refused()

    def _stop_parsing(self) -> None:
        self.is_over, self.is_reading, self.expects_continue = True, False, False
        if self._body:
            self._state.peers.release(self, sum(map(len, self._body)))
            self._body = []


def body_too_large(most: int) -> Response:
    return BODY_TOO_LARGE if most == MAX_BODY_BYTES else Response(413, f"a body has at most {most} bytes\n".encode())


def response_head(incoming: IncomingRequest, response: Response, *, keeps: bool, second: int, headers: bytes) -> bytes:
    """`keeps` the connection; `second` since the epoch; `headers` are further lines."""
    extra = b"" if keeps else b"Connection: close\r\n"
    if response.pieces is None:
        length = b"Content-Length: %d\r\n" % len(response.body)
    else:
        length = b"Transfer-Encoding: chunked\r\n" if incoming.is_chunkable else b""
    start = _head_start(response.status, response.content_type)
    return b"%s%sDate: %s\r\n%s%s%s\r\n" % (start, length, _date(second), extra, headers, response.headers)


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(maxsize=64)
def _head_start(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {content_type}\r\n".encode()
