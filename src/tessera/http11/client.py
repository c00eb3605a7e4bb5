"""The client's end of a connection: one request at a time, and the next when the response is complete.

    idle --send--> waiting --head--> reading --complete--> idle
      any --lost, malformed, abandoned--> lost

Deadlines and retries belong to the caller, which closes a response that it no longer waits for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

import httptools

from tessera.http11.connection import HttpConnection, MessageParser


class IncompleteResponse(ConnectionError):
    """The connection failed before the response was complete."""


class _NotAwaited(Exception):
    """Stops the parser: a second response begins where one was asked for."""


class ClientResponse(MessageParser):
    """The response to one request, as far as it has arrived. The connection feeds it."""

    max_stalled_bytes = 1 << 20
    _parser: httptools.HttpResponseParser

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.status = 0
        """0 until the head is complete"""
        self.failure = ""
        """why the response will never be complete"""
        self.keeps_connection = False
        self.is_read_whole = False
        self._connection = connection
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    # -- called by the caller

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are in lower case."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._head_fields.items()}

    async def wait_for_head(self) -> None:
        try:
            while not self.status:
                await self._wait()
        except BaseException:
            self.close()
            raise

    async def read(self) -> bytes:
        """The whole body."""
        self.is_read_whole = True
        while not self.is_over:
            await self._wait()
        return self._take()

    async def read_chunk(self) -> bytes:
        """What arrived since the last call; empty at the end of the body."""
        while not self._chunks and not self.is_over:
            await self._wait()
        return self._take()

    def close(self) -> None:
        """Drop the rest. The connection of a complete response is left alone: another request may use it already."""
        if not self.is_over:
            self._connection.abort()

    async def _wait(self) -> None:
        if self.failure:
            raise IncompleteResponse(self.failure)
        self._connection.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _take(self) -> bytes:
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # -- called by the connection

    def wake(self) -> bool:
        """Tell the caller about progress; returns whether it was waiting."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_result(None)
        return True

    def on_lost(self, error: Exception | None) -> None:
        """A response without a length ends with its connection; any other is incomplete."""
        if error is None and self.status and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self.is_over = True
        else:
            self.failure = f"the connection ended before the response did{f': {error}' if error else ''}"

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self.is_over:
            self.keeps_connection = False
            raise _NotAwaited
        # Informational responses (1xx) may come before the final one.
        self._header_fields.clear()

    def on_headers_complete(self) -> None:
        self._stalled_bytes = 0
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            # A copy: trailers are not part of the head.
            self._head_fields = self._header_fields.copy()

    def on_body(self, piece: bytes) -> None:
        self._stalled_bytes = 0
        self._chunks.append(piece)

    def on_message_complete(self) -> None:
        if self.status:
            self.is_over = True
            self.keeps_connection = self._parser.should_keep_alive()

    def on_malformed(self, problem: str) -> None:
        self._fail(f"the response is not HTTP/1.1: {problem}")

    def on_stalled(self) -> None:
        self._fail("the head of the response is too large")

    def _fail(self, problem: str) -> None:
        self.keeps_connection = False
        if not self.is_over:
            self.failure = problem


class ClientConnection(HttpConnection):
    """`on_released` is called when a response is over and when the connection is lost."""

    def __init__(self, tls: ssl.SSLContext | None, on_released: Callable[[ClientConnection], None]) -> None:
        super().__init__()
        self.tls = tls
        """the context that it was made with; None for plain HTTP"""
        self.is_reusable = True
        self.is_lost = False
        self.is_leased = False
        """kept by the pool: a request has the connection"""
        self._on_released = on_released
        self._response: ClientResponse | None = None

    def send(self, request: bytes) -> ClientResponse:
        """Write a request. The connection must be idle."""
        response = self._response = ClientResponse(self)
        self._transport.write(request)
        return response

    def abort(self) -> None:
        self.is_reusable = False
        super().abort()

    # -- called by the transport

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            # Nothing was asked for: the next response could not be told from this one.
            self.abort()
            return
        response.feed(data)
        if response.is_over:
            self.is_reusable = self.is_reusable and response.keeps_connection
            self._finish(response)
        elif response.failure:
            self.abort()
            self._finish(response)
        elif response.status and not response.is_read_whole and not response.wake():
            # The caller is not waiting. What comes until it does stays in the socket and is read in one piece.
            self.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable, self.is_lost = False, True
        response = self._response
        if response is None:
            self._on_released(self)
        else:
            response.on_lost(error)
            self._finish(response)

    def _finish(self, response: ClientResponse) -> None:
        self._response = None
        response.release()
        # An idle connection has to notice its end.
        self.resume_reading()
        response.wake()
        self._on_released(self)
