"""Connections to the apiserver, direct or through a proxy; each request has one to itself.

Each request is sent once. There are no deadlines and no retries, and every fault is an OSError. A connection is used
again only if its response was complete, nothing followed it, and the certificates are still those it was made with.
ADR 7 says why this is not a library.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohappyeyeballs

from tessera.http11.client import ClientConnection, ClientResponse, IncompleteResponse
from tessera.kube.access import Access
from tessera.kube.errors import BadName

KEEP_ALIVE_S = 15.0
"""idle connections are closed before the server does it, which would fail the next request"""
MAX_CONNECTIONS = 256
"""in use at once; a watch holds one"""
CLOSE_S = 1.0
"""for connections to end when the client does"""
ROUNDING_S = 0.001
NEXT_ADDRESS_S = 0.25
"""before the next address of a host is tried beside the one that has not answered"""
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 20, 10, 3
"""a watch is silent for minutes; without probes a peer that vanished is noticed only at the deadline"""


@dataclass(slots=True)
class ApiRequest:
    """One request to the apiserver."""

    method: str
    target: str
    """path and query, as they appear on the request line"""
    headers: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"
    """of the body"""
    was_sent: bool = False
    """it began to leave this process, so it may have taken effect"""

    @property
    def maybe_done(self) -> bool:
        """Whether it may have changed something; a request without a body changes nothing."""
        return self.was_sent and self.body is not None


class ConnectionPool:
    """The connections of one `access`; `headers` go with every request."""

    def __init__(self, access: Access, *, headers: Mapping[str, str]) -> None:
        self._access = access
        url = urlsplit(access.server)
        self._server = _address(url)
        self._server_name = access.tls_server_name or url.hostname
        self._proxy = urlsplit(access.proxy) if access.proxy is not None else None
        # A proxy takes requests for a plain server by their whole address; to a server with TLS it opens a tunnel.
        self._prefix = access.server if self._proxy is not None and url.scheme == "http" else url.path
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
        """Returns when the head of the response has arrived. The caller reads the response to its end or closes it."""
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
                async with asyncio.timeout(CLOSE_S):
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
        tls = self._access.ssl
        connection = ClientConnection(tls, self._on_released)
        if self._proxy is None:
            await _dial(connection, self._server, tls, self._server_name)
        else:
            await self._connect_through(self._proxy, connection, tls)
        if connection.is_lost:
            raise IncompleteResponse("the connection ended before it was used")
        self._open.add(connection)
        if self._is_closed:
            connection.abort()
        return connection

    async def _connect_through(
        self, proxy: SplitResult, connection: ClientConnection, tls: ssl.SSLContext | None
    ) -> None:
        proxy_tls = (tls or ssl.create_default_context()) if proxy.scheme == "https" else None
        if tls is None:
            await _dial(connection, _address(proxy), proxy_tls, proxy.hostname)
            return
        tunnel = ClientConnection(proxy_tls, lambda _connection: None)
        await _dial(tunnel, _address(proxy), proxy_tls, proxy.hostname)
        host, port = self._server
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            response = tunnel.send(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
            await response.wait_for_head()
            if not 200 <= response.status < 300:
                raise ConnectionError(f"the proxy answered with status {response.status}")
            await tunnel.start_tls(connection, tls, self._server_name)
        except BaseException as error:
            tunnel.abort()
            if isinstance(error, OSError):
                raise ConnectionError(f"cannot connect to {host} port {port} through the proxy: {error}") from error
            raise

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
                self._idle_timer = loop.call_later(KEEP_ALIVE_S, self._close_idle)
        else:
            connection.abort()

    def _return_place(self) -> None:
        self._leased -= 1
        if self._leased == MAX_CONNECTIONS - 1:
            self._has_room.set()

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        # A timer may fire a little early, and times are rounded: a connection that is almost due is closed too.
        due = loop.time() + ROUNDING_S - KEEP_ALIVE_S
        for connection in [connection for connection, since in self._idle.items() if since <= due]:
            del self._idle[connection]
            connection.abort()
        oldest = next(iter(self._idle.values()), None)
        self._idle_timer = None if oldest is None else loop.call_at(oldest + KEEP_ALIVE_S, self._close_idle)


def _header_lines(headers: Mapping[str, str]) -> str:
    fields = [f"{name}: {value}" for name, value in headers.items()]
    if not "".join(fields).isprintable():
        raise BadName("a header has characters that would break out of its line")
    return "".join(f"\r\n{field}" for field in fields)


async def _dial(
    connection: ClientConnection, address: tuple[str, int], tls: ssl.SSLContext | None, server_name: str | None
) -> None:
    """Connects to this address; `server_name` is the name in the certificate."""
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        connected = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, socket_factory=create_probed_socket
        )
        # The socket is the transport's from here on, which also ends it if this fails or is cancelled.
        await loop.create_connection(
            lambda: connection, sock=connected, ssl=tls, server_hostname=server_name if tls is not None else None
        )
    except OSError as error:
        raise ConnectionError(f"cannot connect to {address[0]} port {address[1]}: {error}") from error


def _address(url: SplitResult) -> tuple[str, int]:
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def create_probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices a peer which vanished."""
    family, kind, protocol = address[0], address[1], address[2]
    created = socket.socket(family=family, type=kind, proto=protocol)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _PROBE_AFTER_S,
        "TCP_KEEPINTVL": _PROBE_EVERY_S,
        "TCP_KEEPCNT": _PROBES,
        # Milliseconds; for data that is never acknowledged, which probes do not cover.
        "TCP_USER_TIMEOUT": 1000 * (_PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S),
    }
    # Not every system knows all of them.
    known = {getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)}
    for option, value in known.items():
        created.setsockopt(socket.IPPROTO_TCP, option, value)
    return created
