"""Straight to the apiserver: a pool of connections of which each request takes one for itself.

ADR 7 says why this is not aiohttp. Connections notice a dead peer, and are not used again once certificates changed.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import aiohappyeyeballs

from tessera.kube.access import Access
from tessera.kube.errors import BadName
from tessera.kube.http_connection import Connection, HttpReply
from tessera.kube.request import CONNECTIONS, KEEP_ALIVE_SECONDS, CutShort, Request
from tessera.kube.sockets import probed_socket

CLOSING_SECONDS = 1.0
"""for connections to end when the client does"""
ROUNDING_SECONDS = 0.001
NEXT_ADDRESS_SECONDS = 0.25
"""before the next address of a host is tried beside the one that has not answered"""


class HttpTransport:
    """For one `access` without a proxy; `headers` go with every request."""

    def __init__(self, access: Access, *, headers: Mapping[str, str]) -> None:
        self._access = access
        where = urlsplit(access.server)
        self._host = where.hostname or ""
        self._port = where.port or (443 if where.scheme == "https" else 80)
        self._prefix = where.path
        self._head = "".join(f"\r\n{name}: {value}" for name, value in {"Host": where.netloc, **headers}.items())
        self._open: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        """the one used last is at the right"""
        # A semaphore would do, with six calls for each request instead of none.
        self._busy = 0
        self._room = asyncio.Event()
        """set when a connection comes free of as many as there may be"""
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._quiet = asyncio.Event()
        """set when it is closed and nothing is left"""

    async def send(self, request: Request) -> HttpReply:
        content = self._bytes(request)
        while self._busy >= CONNECTIONS:
            self._room.clear()
            await self._room.wait()
        self._busy += 1
        try:
            connection = self._newest_idle() or await self._connect()
        except BaseException:
            self._one_less()
            raise
        connection.is_busy = request.left = True
        return await connection.ask(content)

    async def close(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self._open:
            connection.abort()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self._quiet.wait()

    def _bytes(self, request: Request) -> bytes:
        fields = [f"{name}: {value}" for name, value in request.headers.items()]
        if " " in request.target or not "".join((request.target, *fields)).isprintable():
            raise BadName(f"{request.target!r} cannot be asked for")
        body = request.body
        if body is not None:
            fields.append(f"Content-Length: {len(body)}")
        first = f"{request.method} {self._prefix}{request.target} HTTP/1.1{self._head}"
        head = "\r\n".join([first, *fields, "\r\n"]).encode()
        return head + body if body is not None else head

    def _newest_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.context is self._access.ssl:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        loop, context = asyncio.get_running_loop(), self._access.ssl
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            connected = await aiohappyeyeballs.start_connection(
                found, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1, socket_factory=probed_socket
            )
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(context, self._released),
                    sock=connected,
                    ssl=context,
                    server_hostname=(self._access.tls_server_name or self._host) if context is not None else None,
                )
            except BaseException:
                connected.close()
                raise
        except OSError as error:
            raise ConnectionError(f"cannot connect to {self._host} port {self._port}: {error}") from error
        if connection.is_gone:
            raise CutShort("the connection ended before it was used")
        self._open.add(connection)
        if self._is_closed:
            connection.abort()
        return connection

    def _released(self, connection: Connection) -> None:
        """Its answer is over, or it is gone itself."""
        if connection.is_busy:
            connection.is_busy = False
            self._one_less()
        if connection.is_gone:
            self._open.discard(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            if self._is_closed and not self._open:
                self._quiet.set()
        elif connection.is_usable and not self._is_closed:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS, self._give_up_idle)
        else:
            connection.abort()

    def _one_less(self) -> None:
        self._busy -= 1
        if self._busy == CONNECTIONS - 1:
            self._room.set()

    def _give_up_idle(self) -> None:
        # A timer may ring a little early, and numbers are rounded: whoever is all but due goes too.
        due = asyncio.get_running_loop().time() + ROUNDING_SECONDS
        self._sweep = None
        while self._idle and self._idle[0].idle_since + KEEP_ALIVE_SECONDS <= due:
            self._idle.popleft().abort()
        if self._idle:
            next_at = self._idle[0].idle_since + KEEP_ALIVE_SECONDS
            self._sweep = asyncio.get_running_loop().call_at(next_at, self._give_up_idle)
