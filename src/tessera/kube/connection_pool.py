"""Direct connections to the apiserver; each request has one to itself.

A connection is used again only if its response was complete, nothing followed it, and the certificates are still those
it was made with. ADR 7 says why this is not aiohttp.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import aiohappyeyeballs

from tessera.http11.client import ClientConnection, ClientResponse, IncompleteResponse
from tessera.kube.access import Access
from tessera.kube.errors import BadName
from tessera.kube.round_tripper import KEEP_ALIVE_SECONDS, MAX_CONNECTIONS, ApiRequest, create_probed_socket

CLOSE_SECONDS = 1.0
"""for connections to end when the client does"""
ROUNDING_SECONDS = 0.001
NEXT_ADDRESS_SECONDS = 0.25
"""before the next address of a host is tried beside the one that has not answered"""


class ConnectionPool:
    """The round tripper for an `access` without a proxy; `headers` go with every request."""

    def __init__(self, access: Access, *, headers: Mapping[str, str]) -> None:
        self._access = access
        url = urlsplit(access.server)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path
        self._fixed_lines = _header_lines({"Host": url.netloc, **headers})
        # Checked and joined again only if the credentials change: tokens are long.
        self._headers: Mapping[str, str] = {}
        self._header_lines = ""
        self._open: set[ClientConnection] = set()
        self._idle: dict[ClientConnection, float] = {}
        """since when each is idle, in this order"""
        # A semaphore would do, with six calls for each request instead of none.
        self._leased = 0
        self._has_room = asyncio.Event()
        """set when the number of leased connections falls below the limit"""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_empty = asyncio.Event()
        """set when the pool is closed and no connection is left"""

    async def round_trip(self, request: ApiRequest) -> ClientResponse:
        content = self._encode(request)
        while self._leased >= MAX_CONNECTIONS:
            self._has_room.clear()
            await self._has_room.wait()
        self._leased += 1
        try:
            connection = self._take_idle() or await self._connect()
        except BaseException:
            self._return_place()
            raise
        connection.is_leased = request.was_sent = True
        response = connection.send(content)
        await response.wait_for_head()
        return response

    async def close(self) -> None:
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in self._open:
            connection.abort()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._is_empty.wait()

    def _encode(self, request: ApiRequest) -> bytes:
        if request.headers != self._headers:
            self._headers, self._header_lines = request.headers, _header_lines(request.headers)
        if " " in request.target or not request.target.isprintable():
            raise BadName(f"{request.target!r} cannot be requested")
        head = f"{request.method} {self._prefix}{request.target} HTTP/1.1{self._fixed_lines}{self._header_lines}\r\n"
        body = request.body
        if body is None:
            return f"{head}\r\n".encode()
        return f"{head}Content-Type: {request.content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def _take_idle(self) -> ClientConnection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.is_over and connection.tls is self._access.ssl:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> ClientConnection:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        loop, tls = asyncio.get_running_loop(), self._access.ssl
        try:
            addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            connected = await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1, socket_factory=create_probed_socket
            )
            try:
                _, connection = await loop.create_connection(
                    lambda: ClientConnection(tls, self._on_released),
                    sock=connected,
                    ssl=tls,
                    server_hostname=(self._access.tls_server_name or self._host) if tls is not None else None,
                )
            except BaseException:
                connected.close()
                raise
        except OSError as error:
            raise ConnectionError(f"cannot connect to {self._host} port {self._port}: {error}") from error
        if connection.is_lost:
            raise IncompleteResponse("the connection ended before it was used")
        self._open.add(connection)
        if self._is_closed:
            connection.abort()
        return connection

    def _on_released(self, connection: ClientConnection) -> None:
        if connection.is_leased:
            connection.is_leased = False
            self._return_place()
        if connection.is_lost:
            self._open.discard(connection)
            self._idle.pop(connection, None)
            if self._is_closed and not self._open:
                self._is_empty.set()
        elif not connection.is_over and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._idle[connection] = loop.time()
            if self._idle_timer is None:
                self._idle_timer = loop.call_later(KEEP_ALIVE_SECONDS, self._close_idle)
        else:
            connection.abort()

    def _return_place(self) -> None:
        self._leased -= 1
        if self._leased == MAX_CONNECTIONS - 1:
            self._has_room.set()

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        # A timer may fire a little early, and times are rounded: a connection that is almost due is closed too.
        due = loop.time() + ROUNDING_SECONDS - KEEP_ALIVE_SECONDS
        for connection in [connection for connection, since in self._idle.items() if since <= due]:
            del self._idle[connection]
            connection.abort()
        oldest = next(iter(self._idle.values()), None)
        self._idle_timer = None if oldest is None else loop.call_at(oldest + KEEP_ALIVE_SECONDS, self._close_idle)


def _header_lines(headers: Mapping[str, str]) -> str:
    fields = [f"{name}: {value}" for name, value in headers.items()]
    if not "".join(fields).isprintable():
        raise BadName("a header has characters that would break out of its line")
    return "".join(f"\r\n{field}" for field in fields)
