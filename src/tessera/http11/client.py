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

from tessera.http11.connection import HttpConnection


class IncompleteResponse(ConnectionError):
    """The connection failed before the response was complete."""


class ClientResponse:
    """The response to one request, as far as it has arrived. The connection fills it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.status = 0
        """0 until the head is complete"""
        self.header_fields: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        """what arrived of the body and was not read"""
        self.is_complete = False
        self.failure = ""
        """why the response will never be complete"""
        self.is_read_whole = False
        self._connection = connection
        self._waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are in lower case."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.header_fields.items()}

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
        while not self.is_complete:
            await self._wait()
        return self._take()

    async def read_chunk(self) -> bytes:
        """What arrived since the last call; empty at the end of the body."""
        while not self.chunks and not self.is_complete:
            await self._wait()
        return self._take()

    def close(self) -> None:
        """Drop the rest. The connection of a complete response is left alone: another request may use it already."""
        if not self.is_complete:
            self._connection.abort()

    def wake(self) -> bool:
        """Tell the caller about progress; returns whether it was waiting."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_result(None)
        return True

    async def _wait(self) -> None:
        if self.failure:
            raise IncompleteResponse(self.failure)
        self._connection.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _take(self) -> bytes:
        chunks, self.chunks = self.chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Unsolicited(Exception):
    """Stops the parser: more came than was asked for."""


class ClientConnection(HttpConnection):
    """`on_released` is called when a response is over and when the connection is lost."""

    max_stalled_bytes = 1 << 20
    _parser: httptools.HttpResponseParser
    _response: ClientResponse

    def __init__(self, tls: ssl.SSLContext | None, on_released: Callable[[ClientConnection], None]) -> None:
        super().__init__()
        self.tls = tls
        """the context that it was made with; None for plain HTTP"""
        self.is_lost = False
        self.is_leased = False
        """kept by the pool: a request has the connection"""
        self._on_released = on_released
        self._is_waiting = False
        self._parser = httptools.HttpResponseParser(self)

    def send(self, request: bytes) -> ClientResponse:
        """Write a request. The connection must be idle."""
        self._response, self._is_waiting = ClientResponse(self), True
        self._transport.write(request)
        return self._response

    async def start_tls(self, inner: ClientConnection, tls: ssl.SSLContext, server_name: str | None) -> None:
        """Lets `inner` speak TLS through this connection, which is a tunnel from now on."""
        # At first without TLS, so that it can be ended during the handshake.
        inner.connection_made(self._transport)
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, inner, tls, server_hostname=server_name)
        assert transport is not None
        inner.connection_made(transport)

    def abort(self) -> None:
        self.is_over = True
        super().abort()

    # -- called by the transport

    def data_received(self, data: bytes) -> None:
        if not self._is_waiting:
            # Nothing was asked for: the next response could not be told from this one.
            self.abort()
            return
        self._feed(data)
        response = self._response
        if response.is_complete or response.failure:
            self._finish()
        elif response.status and not response.is_read_whole and not response.wake():
            # The caller is not waiting. What comes until it does stays in the socket and is read in one piece.
            self.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.is_over = self.is_lost = True
        if not self._is_waiting:
            self._on_released(self)
            return
        response = self._response
        if error is None and response.status and not {"content-length", "transfer-encoding"} & response.headers.keys():
            # Such a response ends with its connection.
            response.is_complete = True
        else:
            response.failure = f"the connection ended before the response did{f': {error}' if error else ''}"
        self._finish()

    def _finish(self) -> None:
        response, self._is_waiting = self._response, False
        # Response and connection refer to each other, as connection and parser do.
        del self._response
        # An idle connection has to notice its end.
        self.resume_reading()
        response.wake()
        self._on_released(self)

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self._response.is_complete:
            self.is_over = True
            raise _Unsolicited
        # Informational responses (1xx) may come before the final one.
        self._header_fields.clear()

    def on_headers_complete(self) -> None:
        self._stalled_bytes = 0
        status = self._parser.get_status_code()
        if status >= 200:
            self._response.status = status
            self._response.header_fields = self._header_fields.copy()

    def on_body(self, piece: bytes) -> None:
        self._stalled_bytes = 0
        self._response.chunks.append(piece)

    def on_message_complete(self) -> None:
        if self._response.status:
            self._response.is_complete = True
            self.is_over = self.is_over or not self._parser.should_keep_alive()

    def on_malformed(self, problem: str) -> None:
        self._fail(f"the response is not HTTP/1.1: {problem}")

    def on_stalled(self) -> None:
        self._fail("the head of the response is too large")

    def _fail(self, problem: str) -> None:
        self.abort()
        if not self._response.is_complete:
            self._response.failure = problem
