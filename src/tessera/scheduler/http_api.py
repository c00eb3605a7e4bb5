"""The HTTP API: the routes of each listener, and which peers may call filter and bind.

Filter and bind decide about the whole cluster. So on every listener, HAMi's single one included, they answer only
loopback peers and peers that present a certificate of the configured authority. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from tessera.http11.router import Response, Route
from tessera.services import listener

JSON = "application/json"
FORBIDDEN = Response(403, b"filter and bind answer this machine only; set --client-ca-file to let other callers in\n")


@dataclass(frozen=True, slots=True)
class Routes:
    """The functions behind the routes."""

    filter: Callable[[bytes], bytes]
    bind: Callable[[bytes], Awaitable[bytes]]
    review: Callable[[bytes, str], bytes]
    """body and content type of a webhook call"""
    metrics: Callable[[], AsyncIterator[bytes]]
    """yields the text in pieces: all cards of a large cluster are tens of megabytes"""
    is_ready: Callable[[], str]
    """empty if ready, else what is missing"""
    observe: Callable[[str, float], None]
    """takes the verb and the seconds that it took"""


def may_call_extender(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer may call filter and bind."""
    if transport is None:
        return False
    if transport.get_extra_info("peercert"):
        # Only a certificate that the configured authority signed gets this far.
        return True
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or not peer:
        return False
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def find_refusal(transport: asyncio.BaseTransport) -> Response | None:
    """The answer of filter and bind to a peer that may not call them; None if it may."""
    return None if may_call_extender(transport) else FORBIDDEN


def extender_routes(routes: Routes) -> list[Route]:
    """For the extender's own listener, which is called twice per pod; its guard is `find_refusal`."""
    decide = _ExtenderHandlers(routes)
    return [
        Route("POST", "/filter", decide.filter, guarded=True),
        Route("POST", "/bind", decide.bind, guarded=True),
        *(_health_route(path, answer) for path, answer in listener.health_checks(routes.is_ready).items()),
    ]


def aiohttp_extender_routes(routes: Routes) -> list[web.RouteDef]:
    """Filter and bind on HAMi's single listener."""
    decide = _ExtenderHandlers(routes)

    async def filter_(request: web.Request) -> web.Response:
        if not may_call_extender(request.transport):
            return listener.as_web_response(FORBIDDEN)
        return listener.as_web_response(decide.filter(await request.read()))

    async def bind(request: web.Request) -> web.Response:
        if not may_call_extender(request.transport):
            return listener.as_web_response(FORBIDDEN)
        return listener.as_web_response(await decide.bind(await request.read()))

    return [web.post("/filter", filter_), web.post("/bind", bind)]


def webhook_routes(routes: Routes) -> list[web.RouteDef]:
    async def review(request: web.Request) -> web.Response:
        body = await request.read()
        started = time.perf_counter()
        answer = routes.review(body, request.headers.get("Content-Type", ""))
        routes.observe("webhook", time.perf_counter() - started)
        return web.Response(body=answer, content_type=JSON)

    return [web.post("/webhook", review)]


def health_routes(routes: Routes) -> list[web.RouteDef]:
    return listener.health_routes(routes.is_ready)


def metrics_routes(routes: Routes) -> list[web.RouteDef]:
    async def metrics(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        await answer.prepare(request)
        async for piece in routes.metrics():
            await answer.write(piece)
        await answer.write_eof()
        return answer

    return [web.get("/metrics", metrics)]


@dataclass(frozen=True, slots=True)
class _ExtenderHandlers:
    """Filter and bind for both kinds of listener. The measured time leaves out reading and writing HTTP."""

    routes: Routes

    def filter(self, body: bytes) -> Response:
        started = time.perf_counter()
        answer = self.routes.filter(body)
        self.routes.observe("filter", time.perf_counter() - started)
        return Response(200, answer, JSON)

    async def bind(self, body: bytes) -> Response:
        started = time.perf_counter()
        answer = await self.routes.bind(body)
        self.routes.observe("bind", time.perf_counter() - started)
        return Response(200, answer, JSON)


def _health_route(path: str, answer: Callable[[], Response]) -> Route:
    return Route("GET", path, lambda _body: answer())
