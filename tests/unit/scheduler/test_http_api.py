from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tessera.http11.server import MAX_BODY_BYTES
from tessera.scheduler.http_api import (
    Routes,
    aiohttp_extender_routes,
    extender_routes,
    find_refusal,
    health_routes,
    may_call_extender,
    metrics_routes,
    webhook_routes,
)
from tessera.services.addresses import Address
from tessera.services.http_listener import HttpListener
from tessera.services.listener import Listener
from tests.support.looping import in_real_time

AT = Address("127.0.0.1", 0)
GRACE = 5.0
"""seconds"""


@dataclass
class Service:
    """Answers that can be told apart, and what was asked."""

    missing: str = ""
    asked: list[tuple[str, int]] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> Routes:
        return Routes(
            filter=self._filter,
            bind=self._bind,
            review=lambda body, kind: f"{kind} {len(body)}".encode(),
            metrics=self._metrics,
            is_ready=lambda: self.missing,
            observe=self._observe,
        )

    def _filter(self, body: bytes) -> bytes:
        self.asked.append(("filter", len(body)))
        return b'{"filter": true}'

    async def _bind(self, body: bytes) -> bytes:
        self.asked.append(("bind", len(body)))
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        return b'{"bind": true}'

    async def _metrics(self) -> AsyncIterator[bytes]:
        yield b"up 1\n"
        yield b"down 0\n"

    def _observe(self, verb: str, seconds: float) -> None:
        assert seconds >= 0
        self.observed.append(verb)

    def everything(self) -> list[web.RouteDef]:
        routes = self.routes()
        made = (aiohttp_extender_routes, webhook_routes, health_routes, metrics_routes)
        return [route for make in made for route in make(routes)]


def single(service: Service) -> Listener:
    return Listener(AT, service.everything(), grace=GRACE)


def lean(service: Service) -> HttpListener:
    """The extender's own listener: filter, bind and health."""
    return HttpListener(AT, extender_routes(service.routes()), guard=find_refusal, grace=GRACE)


Make = Callable[[Service], Listener | HttpListener]

on_both = pytest.mark.parametrize("make", [single, lean])


@asynccontextmanager
async def serving(
    service: Service, make: Make = single
) -> AsyncIterator[tuple[Listener | HttpListener, aiohttp.ClientSession]]:
    listener = make(service)
    await listener.start()
    try:
        async with aiohttp.ClientSession(base_url=f"http://{listener.address}") as client:
            yield listener, client
    finally:
        await listener.stop()


# -- who may decide


class Transport:
    def __init__(self, **info: Any) -> None:
        self._info = info

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._info.get(name, default)


@pytest.mark.parametrize(
    ("transport", "allowed"),
    [
        (Transport(peername=("127.0.0.1", 4711)), True),
        (Transport(peername=("127.8.9.10", 4711)), True),
        (Transport(peername=("::1", 4711, 0, 0)), True),
        (Transport(peername=("::ffff:127.0.0.1", 4711, 0, 0)), True),
        (Transport(peername=("10.1.2.3", 4711)), False),
        (Transport(peername=("0.0.0.0", 4711)), False),
        (Transport(peername=("::ffff:10.1.2.3", 4711, 0, 0)), False),
        (Transport(peername=("fe80::1%lo", 4711, 0, 1)), False),
        (Transport(peername=("2001:db8::1", 4711, 0, 0)), False),
        (Transport(peername=("localhost", 4711)), False),
        (Transport(peername=("127.0.0.1.evil.example", 4711)), False),
        (Transport(peername=()), False),
        (Transport(peername=""), False),
        (Transport(peername=None), False),
        (Transport(peername=("10.1.2.3", 4711), peercert={}), False),
        (Transport(peername=("10.1.2.3", 4711), peercert={"subject": ()}), True),
        (None, False),
    ],
)
def test_only_this_machine_and_holders_of_a_certificate_may_decide(transport: Transport | None, allowed: bool) -> None:
    seen = cast("asyncio.BaseTransport | None", transport)
    assert may_call_extender(seen) is allowed
    if seen is not None:
        assert (find_refusal(seen) is None) is allowed


@pytest.mark.parametrize("verb", ["filter", "bind"])
@in_real_time
async def test_others_are_refused_before_their_body_is_read(verb: str) -> None:
    service = Service()
    [handler] = [route.handler for route in aiohttp_extender_routes(service.routes()) if route.path == f"/{verb}"]
    headers = {"X-Forwarded-For": "127.0.0.1", "Host": "localhost"}
    transport = cast("asyncio.Transport", Transport(peername=("10.1.2.3", 4711)))
    request = make_mocked_request("POST", f"/{verb}", headers=headers, transport=transport)
    answer = await cast("Any", handler)(request)
    assert answer.status == 403
    assert "--client-ca-file" in answer.text
    assert (service.asked, service.observed) == ([], [])


# -- routes


@pytest.mark.parametrize(
    ("make", "path", "said"),
    [
        (single, "/filter", '{"filter": true}'),
        (single, "/bind", '{"bind": true}'),
        (single, "/webhook", "text/x 3"),
        (lean, "/filter", '{"filter": true}'),
        (lean, "/bind", '{"bind": true}'),
    ],
)
@in_real_time
async def test_every_verb_answers_on_its_route_and_is_timed(make: Make, path: str, said: str) -> None:
    service = Service()
    async with (
        serving(service, make) as (_, client),
        client.post(path, data=b"abc", headers={"Content-Type": "text/x"}) as answer,
    ):
        assert (answer.status, answer.content_type, await answer.text()) == (200, "application/json", said)
    assert service.observed == [path[1:]]


@on_both
@in_real_time
async def test_a_call_without_a_body_is_the_services_to_answer(make: Make) -> None:
    service = Service()
    async with serving(service, make) as (_, client), client.post("/filter") as answer:
        assert answer.status == 200
    assert service.asked == [("filter", 0)]


@on_both
@in_real_time
async def test_health_is_always_well_and_readiness_says_what_is_missing(make: Make) -> None:
    service = Service(missing="the first list of pods is not complete")
    async with serving(service, make) as (_, client):
        async with client.get("/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "")
        async with client.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "the first list of pods is not complete\n")
        async with client.head("/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "")
        service.missing = ""
        async with client.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "")


@in_real_time
async def test_metrics_are_text() -> None:
    async with serving(Service()) as (_, client), client.get("/metrics") as answer:
        assert (answer.status, await answer.text()) == (200, "up 1\ndown 0\n")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("make", "method", "path", "status"),
    [
        *(
            (make, method, path, status)
            for make in (single, lean)
            for method, path, status in (
                ("GET", "/filter", 405),
                ("PUT", "/bind", 405),
                ("POST", "/healthz", 405),
                ("GET", "/", 404),
                ("POST", "/filter/", 404),
                ("GET", "/debug/pprof/", 404),
            )
        ),
        (single, "GET", "/webhook", 405),
        (single, "POST", "/metrics", 405),
        (lean, "POST", "/webhook", 404),
        (lean, "GET", "/metrics", 404),
    ],
)
@in_real_time
async def test_other_methods_and_paths_are_refused(make: Make, method: str, path: str, status: int) -> None:
    service = Service()
    async with serving(service, make) as (_, client), client.request(method, path) as answer:
        assert answer.status == status
    assert service.asked == []


@on_both
@in_real_time
async def test_twenty_thousand_of_the_longest_node_names_are_read_and_larger_bodies_are_refused(make: Make) -> None:
    names = json.dumps({"NodeNames": [f"{i:0253}" for i in range(20_000)]}).encode()
    service = Service()
    async with serving(service, make) as (_, client):
        for size, status in ((len(names), 200), (MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413)):
            async with client.post("/filter", data=BytesIO(names.ljust(size))) as answer:
                assert answer.status == status
    assert service.asked == [("filter", len(names)), ("filter", MAX_BODY_BYTES)]


# -- listening


@on_both
@in_real_time
async def test_a_listener_stops_accepting_but_lets_running_calls_end(make: Make) -> None:
    service = Service(gate=asyncio.Event())
    assert service.gate is not None
    listener = make(service)
    await listener.start()
    assert listener.address.port != 0
    async with aiohttp.ClientSession(base_url=f"http://{listener.address}") as client:
        running = asyncio.create_task(_post(client, "/bind"))
        await service.started.wait()
        stopping = asyncio.create_task(listener.stop())
        await asyncio.sleep(0)
        service.gate.set()
        assert await running == '{"bind": true}'
        await stopping
        with pytest.raises(aiohttp.ClientConnectionError):
            await _post(client, "/filter")


@in_real_time
async def test_a_port_that_is_taken_is_a_fault_at_the_start() -> None:
    async with serving(Service()) as (listener, _):
        second = Listener(listener.address, [], grace=1.0)
        with pytest.raises(OSError, match="address"):
            await second.start()
        await second.stop()


async def _post(client: aiohttp.ClientSession, path: str) -> str:
    async with client.post(path, data=b"{}") as answer:
        return await answer.text()
