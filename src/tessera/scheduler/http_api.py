"""The HTTP API: the routes of each listener, and which peers may call filter and bind.

Filter and bind decide about the whole cluster. So on every listener, HAMi's single one included, they answer only
loopback peers and peers that present a certificate of the configured authority. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from tessera.http11.router import Handler, Request, Response, Route
from tessera.services import exposition

JSON = "application/json"
FORBIDDEN = Response(403, b"filter and bind answer this machine only; set --client-ca-file to let other callers in\n")


@dataclass(frozen=True, slots=True)
class Routes:
    """The functions behind the routes."""

    filter: Callable[[bytes], bytes]
    bind: Callable[[bytes], Awaitable[bytes]]
    preempt: Callable[[bytes], bytes]
    review: Callable[[bytes, str], bytes]
    """body and content type of a webhook call"""
    metrics: Callable[[], AsyncGenerator[bytes, None]]
    """yields the text in pieces: all cards of a large cluster are tens of megabytes"""
    observe: Callable[[str, float], None]
    """takes the verb and the seconds that it took"""


def may_call_extender(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer may call filter and bind."""
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
    """Called twice per pod. Their listener's guard must be `find_refusal`."""

    def filter_(request: Request) -> Response:
        # The measured times leave out reading and writing HTTP.
        started = time.perf_counter()
        answer = routes.filter(request.body)
        routes.observe("filter", time.perf_counter() - started)
        return Response(200, answer, JSON)

    async def bind(request: Request) -> Response:
        started = time.perf_counter()
        answer = await routes.bind(request.body)
        routes.observe("bind", time.perf_counter() - started)
        return Response(200, answer, JSON)

    def preempt(request: Request) -> Response:
        started = time.perf_counter()
        answer = routes.preempt(request.body)
        routes.observe("preempt", time.perf_counter() - started)
        return Response(200, answer, JSON)

    verbs: dict[str, Handler] = {"/filter": filter_, "/bind": bind, "/preempt": preempt}
    return [Route("POST", path, handler, guarded=True) for path, handler in verbs.items()]


def webhook_routes(routes: Routes) -> list[Route]:
    def review(request: Request) -> Response:
        started = time.perf_counter()
        answer = routes.review(request.body, request.content_type.decode("latin-1"))
        routes.observe("webhook", time.perf_counter() - started)
        return Response(200, answer, JSON)

    return [Route("POST", "/webhook", review)]


def metrics_routes(routes: Routes) -> list[Route]:
    def metrics(_request: Request) -> Response:
        return Response(200, content_type=exposition.CONTENT_TYPE, pieces=routes.metrics())

    return [Route("GET", "/metrics", metrics)]
