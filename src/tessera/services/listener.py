"""A listener of a service: one address with some routes, over HTTP/1.1 (`http11`), and the routes that all have.

A handler that returns a response has responded in the same turn of the event loop. A coroutine runs as a task, which
ends even if its client goes away.

A browser on this machine can call listeners on loopback for any site: one that makes its own name point to 127.0.0.1
sends that name as `Host`, and a page of another origin sends that as `Origin`. Programs name this machine, or an
address, and send no origin. `find_foreign_page` tells them apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from tessera.http11.limits import Guard, LoopIteration, ServerState
from tessera.http11.router import Request, Response, Route, Router
from tessera.http11.server import ServerConnection, TlsGate
from tessera.services import exposition
from tessera.services.common_settings import ListenerLimits
from tessera.services.value_types import Address

OTHER_NAME = "this machine is asked under a name that is not its own: use 127.0.0.1 or localhost"
OTHER_ORIGIN = "a page of another origin may not ask this machine"

BACKLOG, BACKLOG_OF_STRANGERS = 1024, 128
"""connections that may wait: kube-scheduler opens many short-lived ones to bind. Without a guard they are fewer: all
that wait are accepted in one turn of the event loop, which takes some 50 µs for each."""
EXPIRE_EVERY_S = 2.0
"""one timer checks the deadlines of all connections; requests have none"""
CANCEL_S = 1.0
"""for cancelled handlers to end"""

OK = Response(200)


def find_foreign_page(headers: Mapping[bytes, bytes], is_own: Callable[[bytes], bool]) -> str:
    """Why a request over plain HTTP must not be answered; empty if it may be. Header names are as in `Request`."""
    host, origin = headers.get(b"Host", b"").lower(), headers.get(b"Origin")
    if not is_own(host):
        return OTHER_NAME
    return "" if origin is None or origin.lower() == b"http://" + host else OTHER_ORIGIN


@lru_cache(maxsize=64)
def names_this_machine(host: bytes) -> bool:
    """Whether this is an address, `localhost` or the machine's name; `host` may have a port, and is in lower case."""
    text = host.decode("latin-1")
    name = text.partition("]")[0].removeprefix("[") if text.startswith("[") else text.partition(":")[0]
    # Empty: browsers always send a host.
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
