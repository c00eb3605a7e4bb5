from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import pytest

from tessera.http11.limits import Guard
from tessera.http11.router import Request, Response
from tessera.scheduler.http_api import (
    Answer,
    Refuse,
    extender_routes,
    find_refusal,
    journal_routes,
    may_call_extender,
    metrics_routes,
    webhook_routes,
    without_pages,
)
from tessera.scheduler.journal import Journal
from tessera.scheduler.settings import Settings
from tessera.services.listener import Listener
from tessera.services.value_types import Address
from tests.support.event_loops import in_fake_time, in_real_time

AT = Address("127.0.0.1", 0)
GRACE = 5.0
"""seconds"""


@dataclass
class Service:
    """Answers that can be told apart, and what was asked."""

    asked: list[tuple[str, int]] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)

    def _filter(self, body: bytes) -> bytes:
        self.asked.append(("filter", len(body)))
        return b'{"filter": true}'

    def _preempt(self, body: bytes) -> bytes:
        self.asked.append(("preempt", len(body)))
        return b'{"preempt": true}'

    async def _bind(self, body: bytes) -> bytes:
        self.asked.append(("bind", len(body)))
        return b'{"bind": true}'

    async def _metrics(self) -> AsyncGenerator[bytes, None]:
        yield b"up 1\n"
        yield b"down 0\n"

    def _observe(self, verb: str, seconds: float) -> None:
        assert seconds >= 0
        self.observed.append(verb)

    def listener(self, guard: Guard = find_refusal) -> Listener:
        """HAMi's single listener, with the metrics as well."""
        verbs: dict[str, Answer] = {"filter": self._filter, "bind": self._bind, "preempt": self._preempt}
        decide = without_pages(extender_routes(verbs, self._observe))
        admit = webhook_routes(lambda body, kind: f"{kind} {len(body)}".encode(), self._observe)
        made = [*decide, *admit, *metrics_routes(self._metrics)]
        return Listener(AT, made, guard=guard, grace=GRACE)


@asynccontextmanager
async def serving(service: Service, guard: Guard = find_refusal) -> AsyncIterator[aiohttp.ClientSession]:
    listener = service.listener(guard)
    await listener.start()
    try:
        async with aiohttp.ClientSession(base_url=f"http://{listener.address}") as client:
            yield client
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
    ],
)
def test_only_this_machine_and_holders_of_a_certificate_may_decide(transport: Transport, allowed: bool) -> None:
    seen = cast("asyncio.BaseTransport", transport)
    assert may_call_extender(seen) is allowed
    assert (find_refusal(seen) is None) is allowed


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8080"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:8080", "Origin": "http://localhost:8080"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": socket.gethostname()}, 200),
        ({"Host": "rebound.example:8080"}, 403),
        ({"Host": "127.0.0.1.rebound.example"}, 403),
        ({"Host": "127.0.0.1:8080", "Origin": "http://evil.example"}, 403),
        ({"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:9000"}, 403),
        ({"Host": "127.0.0.1:8080", "Origin": "null"}, 403),
    ],
)
@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
@in_real_time
async def test_web_pages_that_reach_this_machine_by_its_browser_are_refused(
    verb: str, headers: dict[str, str], status: int
) -> None:
    service = Service()
    async with serving(service) as client, client.post(f"/{verb}", data=b"{}", headers=headers) as answer:
        assert answer.status == status
    assert len(service.asked) == (status == 200)


@pytest.mark.parametrize("verb", ["filter", "bind"])
@in_real_time
async def test_others_are_refused_whatever_their_headers_say(verb: str) -> None:
    service = Service()
    headers = {"X-Forwarded-For": "127.0.0.1", "Host": "localhost"}
    elsewhere = cast("asyncio.BaseTransport", Transport(peername=("10.1.2.3", 4711)))
    async with (
        serving(service, lambda _transport: find_refusal(elsewhere)) as client,
        client.post(f"/{verb}", data=b"{}", headers=headers) as answer,
    ):
        assert answer.status == 403
        assert "--client-ca-file" in await answer.text()
    assert (service.asked, service.observed) == ([], [])


# -- routes


@pytest.mark.parametrize(
    ("path", "said"), [("/filter", '{"filter": true}'), ("/bind", '{"bind": true}'), ("/webhook", "text/x 3")]
)
@in_real_time
async def test_every_verb_answers_on_its_route_and_is_timed(path: str, said: str) -> None:
    service = Service()
    async with (
        serving(service) as client,
        client.post(path, data=b"abc", headers={"Content-Type": "text/x"}) as answer,
    ):
        assert (answer.status, answer.content_type, await answer.text()) == (200, "application/json", said)
    assert service.observed == [path[1:]]


@in_real_time
async def test_metrics_are_text() -> None:
    async with serving(Service()) as client, client.get("/metrics") as answer:
        assert (answer.status, await answer.text()) == (200, "up 1\ndown 0\n")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


# -- the journal


@asynccontextmanager
async def serving_journal(
    journal: Journal, refuse: Refuse | None = None, guard: Guard = find_refusal
) -> AsyncIterator[aiohttp.ClientSession]:
    listener = Listener(AT, journal_routes(journal, refuse), guard=guard, grace=GRACE)
    await listener.start()
    try:
        async with aiohttp.ClientSession(base_url=f"http://{listener.address}") as client:
            yield client
    finally:
        journal.close()
        await listener.stop()


def some_journal() -> Journal:
    journal = Journal(Settings(), now=lambda: 1.0)
    for number in range(3):
        journal.on_denied("team", f"p{number}", "no")
    return journal


@in_real_time
async def test_the_journal_is_served_as_json_lines() -> None:
    async with serving_journal(some_journal()) as client, client.get("/journal") as answer:
        assert (answer.status, answer.content_type) == (200, "application/jsonl")
        lines = [json.loads(line) for line in (await answer.read()).splitlines()]
    assert [line["kind"] for line in lines] == ["start", "snapshot-end", "denied", "denied", "denied"]


@in_real_time
async def test_a_client_says_where_to_begin_and_whether_to_follow() -> None:
    journal = some_journal()
    async with serving_journal(journal) as client:
        async with client.get("/journal?since=2&snapshot=false") as answer:
            assert [json.loads(line)["sequence"] for line in (await answer.read()).splitlines()] == [3]
        async with client.get("/journal?since=3&snapshot=false&follow=true") as answer:
            journal.on_denied("team", "later", "no")
            assert json.loads(await answer.content.readline())["name"] == "later"


@in_real_time
async def test_a_client_that_goes_away_is_no_reader_any_more() -> None:
    journal = some_journal()
    async with serving_journal(journal) as client:
        async with client.get("/journal?follow=true") as answer:
            await answer.content.readline()
            assert journal.readers == 1
            answer.close()
        async with asyncio.timeout(30):
            while journal.readers:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("query", ["since=x", "since=-1", "since=" + "9" * 30, "follow=maybe", "pod=p", "since="])
@in_real_time
async def test_a_query_that_cannot_be_read_is_refused(query: str) -> None:
    async with serving_journal(some_journal()) as client, client.get(f"/journal?{query}") as answer:
        assert answer.status == 400


@in_real_time
async def test_as_many_clients_as_may_read_it_even_if_all_ask_at_once() -> None:
    journal = some_journal()
    [route] = journal_routes(journal)
    asked = [cast("Coroutine[Any, Any, Response]", route.handle(Request(b"/journal?follow=true"))) for _ in range(20)]
    answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [200] * 8 + [503] * 12
    # A response that is never sent, as to HEAD, counts no more.
    del answers
    async with asyncio.timeout(30):
        while journal.readers:
            await asyncio.sleep(0)


@in_real_time
async def test_other_machines_do_not_get_the_journal() -> None:
    refused = Response(403, b"no\n")
    async with serving_journal(some_journal(), guard=lambda _: refused) as client, client.get("/journal") as answer:
        assert (answer.status, await answer.text()) == (403, "no\n")


@in_real_time
async def test_a_check_of_the_caller_decides_where_there_is_one() -> None:
    async def refuse(request: Request) -> Response | None:
        return None if request.headers.get(b"Authorization") == b"Bearer good" else Response(401, b"who?\n")

    async with serving_journal(some_journal(), refuse, guard=lambda _: Response(403)) as client:
        async with client.get("/journal") as answer:
            assert answer.status == 401
        async with client.get("/journal", headers={"Authorization": "Bearer good"}) as answer:
            assert answer.status == 200


@in_fake_time
async def test_a_caller_that_follows_the_journal_gets_no_more_once_its_right_is_taken_away() -> None:
    journal, is_allowed, reviews = some_journal(), True, 0

    async def refuse(_request: Request) -> Response | None:
        nonlocal reviews
        reviews += 1
        return None if is_allowed else Response(403)

    [route] = journal_routes(journal, refuse)
    answer = route.handle(Request(b"/journal?follow=true&since=3&snapshot=false"))
    assert not isinstance(answer, Response)
    pieces = (await answer).pieces
    assert pieces is not None
    async with aclosing(pieces):
        for number in range(3):
            reading = asyncio.ensure_future(anext(pieces, None))
            await asyncio.sleep(40.0)
            is_allowed = number == 0
            journal.on_denied("team", f"later{number}", "no")
            assert (await reading is None) is (number == 1), number
            if number == 1:
                break
    assert reviews == 2
