"""One address with some routes, and the two routes that every service has: does it live, and is it ready."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from aiohttp import web

from tessera.services.addresses import Address
from tessera.services.responses import Answer, health

MAX_BODY = 8 * 2**20
"""bytes; a filter request names every node of the cluster"""
KEEP_ALIVE = 100.0
"""seconds; above the 90 s after which Go's clients close idle connections, so that they do it, not we"""

SHUTDOWN_WAITS = 2
"""how often aiohttp gives running requests its timeout: to end, and once more after it has cut their bodies off"""

BACKLOG = 1024
"""connections that may wait: kube-scheduler binds on many short-lived ones"""


def response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers={"Content-Type": answer.content_type})


def health_routes(missing: Callable[[], str]) -> list[web.RouteDef]:
    """`missing` says why callers should not be sent here; empty = they may."""

    def route(path: str, answer: Callable[[], Answer]) -> web.RouteDef:
        async def handle(_request: web.Request) -> web.Response:
            return response(answer())

        return web.get(path, handle)

    return [route(path, answer) for path, answer in health(missing).items()]


class Listener:
    """One address with some routes."""

    def __init__(
        self, address: Address, routes: list[web.RouteDef], *, tls: ssl.SSLContext | None = None, grace: float
    ) -> None:
        self.address = address
        self._tls = tls
        app = web.Application(client_max_size=MAX_BODY)
        app.add_routes(routes)
        wait = grace / SHUTDOWN_WAITS
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEP_ALIVE, shutdown_timeout=wait)

    async def start(self) -> None:
        """Listen; the port is known afterwards where 0 was asked for."""
        await self._runner.setup()
        host, port = self.address.host or None, self.address.port
        site = web.TCPSite(self._runner, host, port, ssl_context=self._tls, backlog=BACKLOG)
        await site.start()
        self.address = Address(self.address.host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Accept nothing new; running requests end within the grace period."""
        await self._runner.cleanup()
