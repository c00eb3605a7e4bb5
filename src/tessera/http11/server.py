"""The server's end of a connection: requests are served in their order, and the next is read after that.

    idle --first byte--> reading --complete--> handling --response written--> idle
      any --refused, asked to close, too slow--> ending --flushed, or too slow--> gone

A refusal is the last request of a connection: nothing after it is looked at. A body that no handler will see is
counted, not kept. Reading pauses while requests wait, so one read bounds how many wait. Requests have no timers: the
listener calls `expire` on all connections every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

import httptools
import structlog

from tessera.http11.connection import HttpConnection
from tessera.http11.router import Handler, Response, Route, Router

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 8 * 2**20
"""a filter request names every node of the cluster"""
MAX_HEAD_BYTES = 64 * 2**10
"""kube-scheduler's heads have a few hundred"""

USUAL_HEADERS = frozenset({b"Host", b"User-Agent", b"Content-Length", b"Content-Type", b"Accept-Encoding"})
"""what kube-scheduler sends; only if there are others are names converted to lower case"""
KEEP_ALIVE_SECONDS = 100.0
"""above the 90 s after which Go's clients close idle connections, so that they do it, not the server"""
REQUEST_SECONDS = 60.0
"""for head and body to be complete"""
LINGER_SECONDS = 10.0
"""for a client to read its refusal while it is still sending; closing at once would take the response from it"""

NOT_HTTP = Response(400, b"this is not HTTP/1.1\n")
NO_UPGRADE = Response(400, b"there is nothing to upgrade to\n")
BODY_TOO_LARGE = Response(413, f"a body has at most {MAX_BODY_BYTES} bytes\n".encode())
HEAD_TOO_LARGE = Response(431, f"a head has at most {MAX_HEAD_BYTES} bytes\n".encode())
PHRASES = {int(status): status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
INTERNAL_ERROR = Response(500, b"internal error, see the log\n")

Guard = Callable[[asyncio.BaseTransport], Response | None]
"""asked once per connection: what its guarded routes are refused with, if they are"""


class IncomingRequest(NamedTuple):
    """A request that is complete, or was refused before it was."""

    handle: Handler | Response
    target: bytes = b""
    body: bytes = b""
    keeps_connection: bool = False
    confirms_keep_alive: bool = False
    """HTTP/1.0 asks for it, and expects a header that confirms it"""
    is_head: bool = False
    is_complete: bool = True


class _Refused(Exception):
    """Stops the parser."""


class ServerState:
    """What the connections of one listener share."""

    def __init__(self, router: Router, guard: Guard) -> None:
        self.router = router
        self.guard = guard
        self.connections: set[ServerConnection] = set()
        self.tasks: set[asyncio.Task[Response]] = set()
        self.is_stopping = False
        self.is_drained = asyncio.Event()
        """set when the listener stops and no connection and no task is left"""

    def check_drained(self) -> None:
        if self.is_stopping and not self.connections and not self.tasks:
            self.is_drained.set()


class ServerConnection(HttpConnection):
    """Called by its transport, its parser and its listener."""

    max_stalled_bytes = MAX_HEAD_BYTES
    _parser: httptools.HttpRequestParser

    def __init__(self, state: ServerState) -> None:
        super().__init__()
        self.requests: deque[IncomingRequest] = deque()
        """parsed and waiting"""
        self.is_reading = False
        """a request has begun and is not complete"""
        self.expects_continue = False
        """the client waits for permission to send its body"""
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._handled: IncomingRequest | None = None
        self._is_writable = True
        self._deadline = self._loop.time() + KEEP_ALIVE_SECONDS
        self._url: list[bytes] = []
        self.on_url = self._url.append
        self._parser = httptools.HttpRequestParser(self)

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._refusal = self._state.guard(transport)
        self._state.connections.add(self)
        if self._state.is_stopping:
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._stop_parsing()
        self.requests.clear()
        self._state.connections.discard(self)
        self._state.check_drained()

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        if self._handled is not None or self.requests:
            self.pause_reading()
        was_reading = self.is_reading
        self._feed(data)
        if self.is_reading and not was_reading:
            self._deadline = self._loop.time() + REQUEST_SECONDS
        self._proceed()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._proceed()

    # -- called by the listener

    def expire(self, now: float) -> None:
        """End the connection if it is past its deadline; a handler has its own."""
        if self._handled is not None or now < self._deadline:
            return
        if self.is_over:
            self.abort()
        else:
            self._end(lingers=False)

    def retire(self) -> None:
        """End the connection if no request is outstanding; without unsent bytes this does not wait for the peer."""
        if self._handled is not None or self.requests or self.is_reading:
            return
        if self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self.abort()

    # -- handling requests

    def _proceed(self) -> None:
        while self.requests and self._handled is None and self._is_writable:
            self._handle(self.requests.popleft())
        if self._handled is not None or self.requests or self._transport.is_closing():
            return
        if self.expects_continue:
            self.expects_continue = False
            self._transport.write(CONTINUE)
        self.resume_reading()

    def _handle(self, request: IncomingRequest) -> None:
        handle = request.handle
        try:
            result = handle if isinstance(handle, Response) else handle(request.body)
        except Exception as error:
            result = _log_failure(request, error)
        if isinstance(result, Response):
            self._respond(request, result)
            return
        # The task ends even if the client goes away.
        self._handled = request
        task = self._loop.create_task(result)
        self._state.tasks.add(task)
        task.add_done_callback(self._on_handled)

    def _on_handled(self, task: asyncio.Task[Response]) -> None:
        request, self._handled = self._handled, None
        assert request is not None
        self._state.tasks.discard(task)
        if task.cancelled():
            self.abort()
        else:
            error = task.exception()
            self._respond(request, task.result() if error is None else _log_failure(request, error))
            self._proceed()
        self._state.check_drained()

    def _respond(self, request: IncomingRequest, response: Response) -> None:
        if self._transport.is_closing():
            return
        keeps = request.keeps_connection and not self._state.is_stopping
        extra = b"" if keeps else b"Connection: close\r\n"
        if keeps and request.confirms_keep_alive:
            extra = b"Connection: keep-alive\r\n"
        if response.allow:
            extra += b"Allow: %s\r\n" % response.allow.encode()
        start = _head_start(response.status, response.content_type)
        head = b"%s%d\r\nDate: %s\r\n%s\r\n" % (start, len(response.body), _date(int(time.time())), extra)
        self._transport.write(head if request.is_head else head + response.body)
        if keeps:
            self._deadline = self._loop.time() + (REQUEST_SECONDS if self.is_reading else KEEP_ALIVE_SECONDS)
        else:
            self._end(lingers=not request.is_complete)

    def _end(self, *, lingers: bool) -> None:
        self._stop_parsing()
        self.requests.clear()
        self._deadline = self._loop.time() + LINGER_SECONDS
        if lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            # TLS has its own closing handshake, and takes what still comes meanwhile.
            self._transport.close()

    # -- called by the parser

    def on_malformed(self, problem: str) -> None:
        self._refuse(NOT_HTTP)

    def on_stalled(self) -> None:
        self._refuse(HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self.is_reading = True
        self._url.clear()
        self._header_fields.clear()
        self._body: bytes | bytearray = b""
        self._body_bytes = 0

    def on_headers_complete(self) -> None:
        self._stalled_bytes = 0
        parser, headers = self._parser, self._header_fields
        if not headers.keys() <= USUAL_HEADERS:
            headers = {name.lower(): value for name, value in headers.items()}
        self._confirms_keep_alive = b"connection" in headers
        self._target = self._url[0] if len(self._url) == 1 else b"".join(self._url)
        self._method = parser.get_method()
        found = self._state.router.find(self._method, self._target)
        self._route_handler: Handler | Response
        if not isinstance(found, Route):
            self._route_handler = found
        elif found.guarded and self._refusal is not None:
            self._route_handler = self._refusal
        else:
            self._route_handler = found.handle
        if parser.should_upgrade():
            raise self._refuse(NO_UPGRADE)
        if int(headers.get(b"Content-Length") or headers.get(b"content-length") or 0) > MAX_BODY_BYTES:
            raise self._refuse(BODY_TOO_LARGE)
        if headers.get(b"expect", b"").lower() == b"100-continue" and parser.get_http_version() == "1.1":
            if isinstance(self._route_handler, Response):
                raise self._refuse(self._route_handler)
            self.expects_continue = True

    def on_body(self, piece: bytes) -> None:
        self._stalled_bytes = 0
        self._body_bytes += len(piece)
        if self._body_bytes > MAX_BODY_BYTES:
            raise self._refuse(BODY_TOO_LARGE)
        if isinstance(self._route_handler, Response):
            return
        if not self._body:
            # Most bodies come in one piece, which is not copied.
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += piece

    def on_message_complete(self) -> None:
        self._stalled_bytes = 0
        self.is_reading = self.expects_continue = False
        self.requests.append(
            IncomingRequest(
                self._route_handler,
                target=self._target,
                body=bytes(self._body),
                keeps_connection=self._parser.should_keep_alive(),
                confirms_keep_alive=self._confirms_keep_alive,
                is_head=self._method == b"HEAD",
            )
        )
        self._body = b""

    def _refuse(self, response: Response) -> _Refused:
        self._stop_parsing()
        self.requests.append(IncomingRequest(response, is_complete=False))
        return _Refused()

    def _stop_parsing(self) -> None:
        self.is_over, self.is_reading, self.expects_continue = True, False, False


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(maxsize=64)
def _head_start(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {content_type}\r\nContent-Length: ".encode()


def _log_failure(request: IncomingRequest, error: BaseException) -> Response:
    log.error("the handler of a request failed", target=request.target.decode("latin-1"), exc_info=error)
    return INTERNAL_ERROR
