"""The server's end of a connection: requests are served in their order, and the next is read after that.

    idle --first byte--> reading --complete--> handling --response written--> idle
      any --refused, asked to close, too slow--> ending --flushed, or too slow--> gone

Reading pauses while requests wait, so one read bounds how many wait. Requests have no timers: the listener calls
`expire` on all connections every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import structlog

from tessera.http11.connection import HttpConnection
from tessera.http11.request_parser import IncomingRequest, RequestParser
from tessera.http11.router import Response, Router

log = structlog.get_logger(__name__)

KEEP_ALIVE_SECONDS = 100.0
"""above the 90 s after which Go's clients close idle connections, so that they do it, not the server"""
REQUEST_SECONDS = 60.0
"""for head and body to be complete"""
LINGER_SECONDS = 10.0
"""for a client to read its refusal while it is still sending; closing at once would take the response from it"""

PHRASES = {int(status): status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
INTERNAL_ERROR = Response(500, b"internal error, see the log\n")

Guard = Callable[[asyncio.BaseTransport], Response | None]
"""asked once per connection: what its guarded routes are refused with, if they are"""


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
        self._second, self._date = 0, b""

    def check_drained(self) -> None:
        if self.is_stopping and not self.connections and not self.tasks:
            self.is_drained.set()

    def date(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date


class ServerConnection(HttpConnection):
    """Called by its transport and by the listener."""

    def __init__(self, state: ServerState) -> None:
        super().__init__()
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._handled: IncomingRequest | None = None
        self._is_writable = True
        self._deadline = self._loop.time() + KEEP_ALIVE_SECONDS

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._parser = RequestParser(find=self._state.router.find, refusal=self._state.guard(transport))
        self._state.connections.add(self)
        if self._state.is_stopping:
            transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._parser.end()
        self._parser.release()
        self._state.connections.discard(self)
        self._state.check_drained()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser.is_over:
            return
        if self._handled is not None or parser.requests:
            self.pause_reading()
        was_reading = parser.is_reading
        parser.feed(data)
        if parser.is_reading and not was_reading:
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
        if self._parser.is_over:
            self.abort()
        else:
            self._end(lingers=False)

    def retire(self) -> None:
        """End the connection if no request is outstanding; without unsent bytes this does not wait for the peer."""
        if self._handled is not None or self._parser.requests or self._parser.is_reading:
            return
        if self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self.abort()

    # -- handling requests

    def _proceed(self) -> None:
        parser = self._parser
        while parser.requests and self._handled is None and self._is_writable:
            self._handle(parser.requests.popleft())
        if self._handled is not None or parser.requests or self._transport.is_closing():
            return
        if parser.expects_continue:
            parser.expects_continue = False
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
        head = b"%s%d\r\nDate: %s\r\n%s\r\n" % (start, len(response.body), self._state.date(), extra)
        self._transport.write(head if request.is_head else head + response.body)
        if keeps:
            self._deadline = self._loop.time() + (REQUEST_SECONDS if self._parser.is_reading else KEEP_ALIVE_SECONDS)
        else:
            self._end(lingers=not request.is_complete)

    def _end(self, *, lingers: bool) -> None:
        self._parser.end()
        self._deadline = self._loop.time() + LINGER_SECONDS
        if lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            # TLS has its own closing handshake, and takes what still comes meanwhile.
            self._transport.close()


@lru_cache(maxsize=64)
def _head_start(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {content_type}\r\nContent-Length: ".encode()


def _log_failure(request: IncomingRequest, error: BaseException) -> Response:
    log.error("the handler of a request failed", target=request.target.decode("latin-1"), exc_info=error)
    return INTERNAL_ERROR
