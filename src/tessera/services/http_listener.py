"""A listener for routes that are asked for every pod: HTTP/1.1 over httptools, at a fraction of aiohttp's cost.

A handler that returns an answer has answered in the same turn of the loop; a coroutine runs as a task that ends even if
its caller goes away. It has no middleware, no streams and no header but what HTTP needs: everything that is not hot
stays on `listening`. `lean_reading` makes requests of bytes, `lean_connection` answers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable

import httptools

from tessera.services.addresses import Address
from tessera.services.http_connection import Connection, Shared
from tessera.services.http_parser import Route
from tessera.services.listener import BACKLOG
from tessera.services.responses import Answer

SWEEP_SECONDS = 2.0
"""between looks at the deadlines of all connections: one timer for all, none for a request"""
CUT_SECONDS = 1.0
"""for cancelled requests to notice that they are"""

BAD_TARGET = Answer(400, b"no such target\n")
NOT_FOUND = Answer(404, b"not found\n")


class Table:
    """Routes by method and path; a route for GET answers HEAD too."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[tuple[bytes, bytes], Route] = {}
        for route in routes:
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                self._routes[method.encode(), route.path.encode()] = route

    def find(self, method: bytes, target: bytes) -> Route | Answer:
        """The route, or why there is none."""
        return self._routes.get((method, target)) or self._search(method, target)

    def _search(self, method: bytes, target: bytes) -> Route | Answer:
        """For targets that are more than a path, and for refusals."""
        try:
            path = httptools.parse_url(target).path
        except httptools.HttpParserInvalidURLError:
            return BAD_TARGET
        methods = sorted(known.decode() for known, at in self._routes if at == path)
        if not methods:
            return NOT_FOUND
        allow = ", ".join(methods)
        return self._routes.get((method, path)) or Answer(405, f"use {allow}\n".encode(), allow=allow)


def everybody(_transport: asyncio.BaseTransport) -> Answer | None:
    """The guard that refuses nobody."""
    return None


class HttpListener:
    """One address with some routes; `guard` says once a connection what its guarded routes refuse it with."""

    def __init__(
        self,
        address: Address,
        routes: Iterable[Route],
        *,
        guard: Callable[[asyncio.BaseTransport], Answer | None] = everybody,
        tls: ssl.SSLContext | None = None,
        grace: float,
    ) -> None:
        self.address = address
        self._tls = tls
        self._grace = grace
        self._shared = Shared(find=Table(routes).find, guard=guard)
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; the port is known afterwards where 0 was asked for."""
        host, port = self.address.host or None, self.address.port
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._shared), host, port, ssl=self._tls, backlog=BACKLOG
        )
        self.address = Address(self.address.host, self._server.sockets[0].getsockname()[1])
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Accept nothing new; running requests end within the grace period, idle connections at once."""
        self._close()
        for connection in tuple(self._shared.connections):
            connection.retire()
        await self._quiet(self._grace)
        self.cut()
        await self._quiet(CUT_SECONDS)
        if self._sweeper is not None:
            await asyncio.gather(self._sweeper, return_exceptions=True)

    def cut(self) -> None:
        """End at once: nobody is answered any more, and what runs is cancelled."""
        self._close()
        for connection in tuple(self._shared.connections):
            connection.abort()
        for task in tuple(self._shared.tasks):
            task.cancel()

    def _close(self) -> None:
        self._shared.is_stopping = True
        self._shared.settle()
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _quiet(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._shared.quiet.wait()

    async def _sweep(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time()
            for connection in tuple(self._shared.connections):
                connection.expire(now)
