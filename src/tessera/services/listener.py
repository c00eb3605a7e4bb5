"""A listener of a service: one address with some routes, over HTTP/1.1 (`http11`), and the routes that all have.

A handler that returns a response has responded in the same turn of the event loop. A coroutine runs as a task, which
ends even if its client goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable

from tessera.http11.limits import LoopIteration
from tessera.http11.router import Request, Response, Route, Router
from tessera.http11.server import ServerConnection, TlsGate
from tessera.http11.server_state import Guard, ServerState
from tessera.services import exposition
from tessera.services.addresses import Address
from tessera.services.common_settings import ListenerLimits

BACKLOG, BACKLOG_OF_STRANGERS = 1024, 128
"""connections that may wait: kube-scheduler opens many short-lived ones to bind. Without a guard they are fewer: all
that wait are accepted in one turn of the event loop, which takes some 50 µs for each."""
EXPIRE_EVERY_S = 2.0
"""one timer checks the deadlines of all connections; requests have none"""
CANCEL_S = 1.0
"""for cancelled handlers to end"""

OK = Response(200)


def health_routes(missing: Callable[[], str], fault: Callable[[], str] = str) -> list[Route]:
    """Readiness and liveness. `missing` says why the service is not ready, `fault` why it is not even alive; both are
    empty if it is."""

    def route(path: str, problem: Callable[[], str]) -> Route:
        def check(_request: Request) -> Response:
            text = problem()
            return Response(503, f"{text}\n".encode()) if text else OK

        return Route("GET", path, check)

    return [route("/healthz", fault), route("/readyz", missing)]


def metrics_route(render: Callable[[], bytes]) -> Route:
    return Route("GET", "/metrics", lambda _request: Response(200, render(), exposition.CONTENT_TYPE))


class Listener:
    """One address with some routes; each peer that the guard does not admit has `limits`."""

    def __init__(
        self,
        address: Address,
        routes: Iterable[Route],
        *,
        guard: Guard | None = None,
        tls: ssl.SSLContext | None = None,
        limits: ListenerLimits | None = None,
        headers: bytes = b"",
        iteration: LoopIteration | None = None,
        grace: float,
    ) -> None:
        """`headers` are lines of the head of every response. `iteration` is shared by the listeners of a process.
        `grace` is how many seconds running requests have when the listener stops."""
        self.address = address
        self._grace = grace
        self._state = ServerState(
            Router(routes), limits or ListenerLimits(), guard=guard, tls=tls, headers=headers, iteration=iteration
        )
        self._server: asyncio.Server | None = None
        self._expiry: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. If the port was 0, `address` has the real one afterwards."""
        host, port = self.address.host or None, self.address.port
        protocol = ServerConnection if self._state.tls is None else TlsGate
        backlog = BACKLOG_OF_STRANGERS if self._state.guard is None else BACKLOG
        self._server = await asyncio.get_running_loop().create_server(
            lambda: protocol(self._state), host, port, backlog=backlog
        )
        self.address = Address(self.address.host, self._server.sockets[0].getsockname()[1])
        self._expiry = asyncio.create_task(self._expire_connections())

    def announce_end(self) -> None:
        """Serve as before, but end each connection with its next response: no client is cut off in a request later."""
        self._state.keeps_connections = False

    async def stop(self) -> None:
        """Accept nothing new. Idle connections end at once, running requests within the grace period."""
        self._close()
        for connection in tuple(self._state.connections):
            connection.retire()
        await self._wait_until_drained(self._grace)
        self.cut()
        await self._wait_until_drained(CANCEL_S)
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
        self._state.keeps_connections = False
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
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            await self._state.expire()
