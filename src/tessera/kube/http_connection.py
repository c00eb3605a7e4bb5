"""One connection to the apiserver: a request, its answer, and the next request when the answer is complete.

    idle --ask--> waiting --head--> reading --complete--> idle
      any --lost, not HTTP, closed by whoever asked--> gone

httptools parses. Deadlines are the caller's, who closes what it no longer waits for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

import httptools

from tessera.kube.request import CutShort

MAX_SILENT = 1 << 20
"""bytes that complete neither a head nor a piece of a body"""
MAX_UNREAD = 1 << 20
"""bytes of a body that wait for their reader before reading pauses; a body that is read as a whole never pauses"""

BODILESS = (204, 304)


class HttpReply:
    """What came so far of an answer. Filled by its connection."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.pieces: deque[bytes] = deque()
        self.unread = 0
        """bytes in `pieces`"""
        self.beginning = b""
        """everything up to the end of the head, and perhaps more"""
        self.is_complete = False
        self.fault: CutShort | None = None
        self.is_wanted_whole = False
        self.is_gathered = False
        """nothing is read while nobody waits: it comes together then, and costs less"""
        self._connection = connection
        self._waiter: asyncio.Future[None] | None = None

    def headers(self) -> Mapping[str, str]:
        """Read only now: almost no answer is asked for them."""
        return _Headers(self.beginning).found

    async def read(self) -> bytes:
        self.is_wanted_whole = True
        while not self.is_complete:
            await self._more()
        return self._taken()

    def gather(self, gathers: bool) -> None:
        self.is_gathered = gathers

    async def chunk(self) -> bytes:
        while not self.unread and not self.is_complete:
            await self._more()
        return self._taken()

    def close(self) -> None:
        if not self.is_complete:
            self._connection.abort()

    def wake(self) -> None:
        """Something came, or nothing more will."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def head(self) -> None:
        """Until the head is there."""
        while not self.status:
            await self._more()

    async def _more(self) -> None:
        if self.fault is not None:
            raise self.fault
        self._connection.resume()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _taken(self) -> bytes:
        taken = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.unread = 0
        return taken


class _Headers:
    """Called by its parser: the headers of an answer, without those of news that came before it."""

    def __init__(self, beginning: bytes) -> None:
        self.found: dict[str, str] = {}
        self._is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._parser.feed_data(beginning)
        del self._parser

    def on_message_begin(self) -> None:
        if not self._is_complete:
            self.found.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_complete:
            self.found[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._is_complete = self._is_complete or self._parser.get_status_code() >= 200


class Connection(asyncio.Protocol):
    """Called by its transport and its parser; `released` hears of every answer that is over, and of the end."""

    def __init__(self, context: ssl.SSLContext | None, released: Callable[[Connection], None]) -> None:
        self.context = context
        """that it was made with; None for plain HTTP"""
        self._released = released
        self._parser = httptools.HttpResponseParser(self)
        self._reply: HttpReply | None = None
        self._silent = 0
        self._is_paused = False
        self.is_busy = False
        """somebody has it for themselves; kept by the pool"""
        self.is_usable = True
        """for another request"""
        self.is_gone = False
        self.idle_since = 0.0

    # -- called by whoever asks

    async def ask(self, request: bytes) -> HttpReply:
        """The answer, when its head is there; one at a time."""
        reply = self._reply = HttpReply(self)
        self._transport.write(request)
        try:
            await reply.head()
        except BaseException:
            # Also when the caller's patience ended: the answer may come yet, and would be the next one's. One that has
            # come already, in the same moment, leaves a connection that may be somebody else's by now.
            reply.close()
            raise
        return reply

    def abort(self) -> None:
        self.is_usable = False
        self._transport.abort()

    def resume(self) -> None:
        if self._is_paused and not self.is_gone:
            self._is_paused = False
            self._transport.resume_reading()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._reply is None:
            # Nothing was asked for: nobody knows what the next answer would belong to.
            self.abort()
            return
        self._silent += len(data)
        if not self._reply.status:
            self._reply.beginning += data
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the answer is not HTTP/1.1: {error}")
            return
        if self._silent > MAX_SILENT:
            self._fail("the head of the answer is too large")
            return
        reply = self._reply
        if reply.is_complete:
            self._over(reply)
        elif not reply.is_wanted_whole:
            if (reply.is_gathered or reply.unread > MAX_UNREAD) and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
            if reply.status:
                reply.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_usable, self.is_gone = False, True
        reply = self._reply
        if reply is not None and error is None and reply.status and self._ends_with_connection(reply):
            reply.is_complete = True
        if reply is None:
            self._released(self)
        elif reply.is_complete:
            self._over(reply)
        else:
            self._lose(reply, f"the connection ended before the answer did{f': {error}' if error else ''}")
        # They point at each other: without this every connection would wait for the collector.
        del self._parser

    def _fail(self, problem: str) -> None:
        reply = self._reply
        self.abort()
        if reply is not None:
            self._lose(reply, problem)

    def _lose(self, reply: HttpReply, problem: str) -> None:
        self._reply = None
        reply.fault = CutShort(problem)
        reply.wake()
        self._released(self)

    def _over(self, reply: HttpReply) -> None:
        self._reply = None
        # Whoever is idle has to notice its end.
        self.resume()
        reply.wake()
        self._released(self)

    def _ends_with_connection(self, reply: HttpReply) -> bool:
        return not {"content-length", "transfer-encoding"} & reply.headers().keys() and reply.status not in BODILESS

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self._reply is None or self._reply.is_complete:
            self.is_usable = False

    def on_headers_complete(self) -> None:
        self._silent = 0
        reply, status = self._reply, self._parser.get_status_code()
        # Below 200 it is news about an answer that is still to come.
        if reply is not None and not reply.is_complete and status >= 200:
            reply.status = status

    def on_body(self, piece: bytes) -> None:
        self._silent = 0
        if self._reply is not None and not self._reply.is_complete:
            self._reply.pieces.append(piece)
            self._reply.unread += len(piece)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None or not reply.status or reply.is_complete:
            return
        reply.is_complete = True
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
