"""A listener for routes that every pod uses: HTTP/1.1 over httptools, at a fraction of aiohttp's cost.

A handler that returns a response has responded in the same turn of the event loop. A coroutine runs as a task, which
ends even if its client goes away. All other routes stay on `services/listener.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable

from tessera.http11.router import Response, Route, Router
from tessera.http11.server import Guard, ServerConnection, ServerState
from tessera.services.addresses import Address
from tessera.services.listener import BACKLOG

EXPIRE_EVERY_SECONDS = 2.0
"""one timer checks the deadlines of all connections; requests have none"""
CANCEL_SECONDS = 1.0
"""for cancelled handlers to end"""


def admit_all(_transport: asyncio.BaseTransport) -> Response | None:
    """The guard that refuses no peer."""
    return None


class HttpListener:
    """One address with some routes."""

    def __init__(
        self,
        address: Address,
        routes: Iterable[Route],
        *,
        guard: Guard = admit_all,
        tls: ssl.SSLContext | None = None,
        grace: float,
    ) -> None:
        """`grace` is how many seconds running requests have when the listener stops."""
        self.address = address
        self._tls = tls
        self._grace = grace
        self._state = ServerState(Router(routes), guard)
        self._server: asyncio.Server | None = None
        self._expiry: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. If the port was 0, `address` has the real one afterwards."""
        host, port = self.address.host or None, self.address.port
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(self._state), host, port, ssl=self._tls, backlog=BACKLOG
        )
        self.address = Address(self.address.host, self._server.sockets[0].getsockname()[1])
        self._expiry = asyncio.create_task(self._expire_connections())

    async def stop(self) -> None:
        """Accept nothing new. Idle connections end at once, running requests within the grace period."""
        self._close()
        for connection in tuple(self._state.connections):
            connection.retire()
        await self._wait_until_drained(self._grace)
        self.cut()
        await self._wait_until_drained(CANCEL_SECONDS)
        if self._expiry is not None:
            await asyncio.gather(self._expiry, return_exceptions=True)

    def cut(self) -> None:
        """End all connections at once and cancel the running handlers."""
        self._close()
        for connection in tuple(self._state.connections):
            connection.abort()
        for task in tuple(self._state.tasks):
            task.cancel()

    def _close(self) -> None:
        self._state.is_stopping = True
        self._state.check_drained()
        if self._server is not None:
            self._server.close()
        if self._expiry is not None:
            self._expiry.cancel()

    async def _wait_until_drained(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._state.is_drained.wait()

    async def _expire_connections(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(EXPIRE_EVERY_SECONDS)
            now = clock()
            for connection in tuple(self._state.connections):
                connection.expire(now)
