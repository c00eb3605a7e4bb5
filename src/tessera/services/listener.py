"""A listener on aiohttp, and the two health routes that every service has."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from aiohttp import web

from tessera.http11.router import Response
from tessera.http11.server import KEEP_ALIVE_SECONDS, MAX_BODY_BYTES
from tessera.services.addresses import Address

SHUTDOWN_WAITS = 2
"""how often aiohttp gives running requests its timeout: to end, and once more after it has cut off their bodies"""

BACKLOG = 1024
"""connections that may wait: kube-scheduler opens many short-lived ones to bind"""

OK = Response(200)


def health_checks(missing: Callable[[], str]) -> Mapping[str, Callable[[], Response]]:
    """Liveness and readiness, by path. `missing` says why the service is not ready; empty if it is."""

    def check_ready() -> Response:
        text = missing()
        return Response(503, f"{text}\n".encode()) if text else OK

    return {"/healthz": lambda: OK, "/readyz": check_ready}


def health_routes(missing: Callable[[], str]) -> list[web.RouteDef]:
    def route(path: str, check: Callable[[], Response]) -> web.RouteDef:
        async def handle(_request: web.Request) -> web.Response:
            return as_web_response(check())

        return web.get(path, handle)

    return [route(path, check) for path, check in health_checks(missing).items()]


def as_web_response(response: Response) -> web.Response:
    return web.Response(status=response.status, body=response.body, headers={"Content-Type": response.content_type})


class Listener:
    """One address with some routes."""

    def __init__(
        self, address: Address, routes: list[web.RouteDef], *, tls: ssl.SSLContext | None = None, grace: float
    ) -> None:
        """`grace` is how many seconds running requests have when the listener stops."""
        self.address = address
        self._tls = tls
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(routes)
        wait = grace / SHUTDOWN_WAITS
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEP_ALIVE_SECONDS, shutdown_timeout=wait)

    async def start(self) -> None:
        """Listen. If the port was 0, `address` has the real one afterwards."""
        await self._runner.setup()
        host, port = self.address.host or None, self.address.port
        site = web.TCPSite(self._runner, host, port, ssl_context=self._tls, backlog=BACKLOG)
        await site.start()
        self.address = Address(self.address.host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Accept nothing new. Running requests end within the grace period."""
        await self._runner.cleanup()
