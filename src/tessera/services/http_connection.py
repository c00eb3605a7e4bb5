"""One connection of a lean listener: requests are answered in their order, and the next is read after that.

    idle --first byte--> reading --complete--> running --answered--> idle
      any --refused, asked to close, too slow--> ending --flushed, or too slow--> gone

Reading pauses while requests wait, so that they are bounded by one read. No request has a timer: the listener looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import cast

import structlog

from tessera.services.http_parser import Reader, Request, Route
from tessera.services.listener import KEEP_ALIVE
from tessera.services.responses import Answer

log = structlog.get_logger(__name__)

REQUEST_SECONDS = 60.0
"""for head and body to be complete"""
LINGER_SECONDS = 10.0
"""for a client to read its refusal while it is still sending; closing at once would take the answer from it"""

PHRASES = {int(status): status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FAULT = Answer(500, b"internal error, see the log\n")


class Shared:
    """What the connections of one listener have in common."""

    def __init__(
        self,
        *,
        find: Callable[[bytes, bytes], Route | Answer],
        guard: Callable[[asyncio.BaseTransport], Answer | None],
    ) -> None:
        self.find = find
        self.guard = guard
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[Answer]] = set()
        self.is_stopping = False
        self.quiet = asyncio.Event()
        """set when the listener stops and nothing is left"""
        self._second, self._date = 0, b""

    def settle(self) -> None:
        if self.is_stopping and not self.connections and not self.tasks:
            self.quiet.set()

    def date(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date


class Connection(asyncio.Protocol):
    """Called by its transport and by the listener."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._running: Request | None = None
        self._is_paused = False
        self._is_writable = True
        self._deadline = self._loop.time() + KEEP_ALIVE

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._reader = Reader(find=self._shared.find, refusal=self._shared.guard(transport))
        self._shared.connections.add(self)
        if self._shared.is_stopping:
            transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._reader.release()
        self._shared.connections.discard(self)
        self._shared.settle()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.is_over:
            return
        if not self._is_paused and (self._running is not None or reader.requests):
            self._is_paused = True
            self._transport.pause_reading()
        was_reading = reader.is_reading
        reader.feed(data)
        if reader.is_reading and not was_reading:
            self._deadline = self._loop.time() + REQUEST_SECONDS
        self._go_on()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._go_on()

    # -- called by the listener

    def expire(self, now: float) -> None:
        """End it where it is over its time; a running request has its own."""
        if self._running is not None or now < self._deadline:
            return
        if self._reader.is_over:
            self.abort()
        else:
            self._end(linger=False)

    def retire(self) -> None:
        """End it as soon as it owes nothing; one that owes nothing already is not asked to agree."""
        if self._running is not None or self._reader.requests or self._reader.is_reading:
            return
        if self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        self._transport.abort()

    # -- answering

    def _go_on(self) -> None:
        reader, transport = self._reader, self._transport
        while reader.requests and self._running is None and self._is_writable:
            self._begin(reader.requests.popleft())
        if self._running is not None or reader.requests or transport.is_closing():
            return
        if reader.expects:
            reader.expects = False
            transport.write(CONTINUE)
        if self._is_paused:
            self._is_paused = False
            transport.resume_reading()

    def _begin(self, request: Request) -> None:
        handle = request.handle
        try:
            found = handle if isinstance(handle, Answer) else handle(request.body)
        except Exception as error:
            found = _fault(request, error)
        if isinstance(found, Answer):
            self._send(request, found)
            return
        self._running = request
        task = self._loop.create_task(found)
        self._shared.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Answer]) -> None:
        request, self._running = self._running, None
        assert request is not None
        self._shared.tasks.discard(task)
        if task.cancelled():
            self.abort()
        else:
            error = task.exception()
            self._send(request, task.result() if error is None else _fault(request, error))
            self._go_on()
        if self._shared.is_stopping:
            self._shared.settle()

    def _send(self, request: Request, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        keep = request.keep and not self._shared.is_stopping
        more = b"" if keep else b"Connection: close\r\n"
        if keep and request.says_keep:
            more = b"Connection: keep-alive\r\n"
        if answer.allow:
            more += b"Allow: %s\r\n" % answer.allow.encode()
        beginning = _beginning(answer.status, answer.content_type)
        head = b"%s%d\r\nDate: %s\r\n%s\r\n" % (beginning, len(answer.body), self._shared.date(), more)
        self._transport.write(head if request.is_head else head + answer.body)
        if keep:
            self._deadline = self._loop.time() + (REQUEST_SECONDS if self._reader.is_reading else KEEP_ALIVE)
        else:
            self._end(linger=not request.is_complete)

    def _end(self, *, linger: bool) -> None:
        self._reader.end()
        self._deadline = self._loop.time() + LINGER_SECONDS
        if linger and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            # TLS has its own way to part, and takes what still comes meanwhile.
            self._transport.close()


@lru_cache(maxsize=64)
def _beginning(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {content_type}\r\nContent-Length: ".encode()


def _fault(request: Request, error: BaseException) -> Answer:
    log.error("a request failed", target=request.target.decode("latin-1"), exc_info=error)
    return FAULT
