"""The HTTP API: the routes of each listener, and which peers may call filter and bind.

Filter and bind decide about the whole cluster. So on every listener, HAMi's single one included, they answer only
loopback peers and peers that present a certificate of the configured authority. Without TLS, they do not answer web
pages that a browser on the same machine shows. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs

from tessera.http11.router import Handler, Request, Response, Route
from tessera.scheduler.access_review import error_response
from tessera.scheduler.journal import Journal
from tessera.services import exposition
from tessera.services.listener import find_foreign_page, names_this_machine
from tessera.wire import moves
from tessera.wire.errors import WireError
from tessera.wire.golang import parse_bool
from tessera.wire.journal import encode_record
from tessera.wire.moves import MovesRequest, decode_moves_request

JSON, JSON_LINES = "application/json", "application/jsonl"
SINCE_DIGITS = 19
MAX_READERS = 8
"""of the journal at a time: one that begins afresh may hold as much memory as the journal itself"""
REVIEW_S = 60.0
"""after which the access of a caller that follows the journal is looked at again"""
FORBIDDEN = Response(403, b"filter and bind answer this machine only; set --client-ca-file to let other callers in\n")


Answer = Callable[[bytes], bytes | Awaitable[bytes]]
"""to the body of a request"""
Observe = Callable[[str, float], None]
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


def without_pages(routes: list[Route]) -> list[Route]:
    """These routes for a listener without TLS: requests of web pages of other sites are refused."""

    def checked(route: Route) -> Route:
        def handle(request: Request) -> Response | Coroutine[Any, Any, Response]:
            problem = find_foreign_page(request.headers, names_this_machine)
            return Response(403, f"{problem}\n".encode()) if problem else route.handle(request)

        return replace(route, handle=handle, reads_headers=True)

    return [checked(route) for route in routes]


def extender_routes(answers: Mapping[str, Answer], observe: Observe) -> list[Route]:
    """Filter, bind and preempt, by verb. Their listener's guard must be `find_refusal`."""

    def handler(verb: str, answer: Answer) -> Handler:
        return _timed(verb, lambda request: answer(request.body), observe)

    return [Route("POST", f"/{verb}", handler(verb, answer), guarded=True) for verb, answer in answers.items()]


def webhook_routes(review: Callable[[bytes, str], bytes | Awaitable[bytes]], observe: Observe) -> list[Route]:
    """`review` takes body and content type."""

    def answer(request: Request) -> bytes | Awaitable[bytes]:
        return review(request.body, request.content_type.decode("latin-1"))

    return [Route("POST", "/webhook", _timed("webhook", answer, observe))]


def _timed(verb: str, answer: Callable[[Request], bytes | Awaitable[bytes]], observe: Observe) -> Handler:
    """The measured times leave out reading and writing HTTP."""

    def handle(request: Request) -> Response | Coroutine[Any, Any, Response]:
        started = time.perf_counter()
        found = answer(request)
        if not isinstance(found, bytes):
            return finish(found, started)
        observe(verb, time.perf_counter() - started)
        return Response(200, found, JSON)

    async def finish(answering: Awaitable[bytes], started: float) -> Response:
        found = await answering
        observe(verb, time.perf_counter() - started)
        return Response(200, found, JSON)

    return handle


Refuse = Callable[[Request], Awaitable[Response | None]]
"""the answer to a caller who may not read; None if the caller may"""


def journal_routes(journal: Journal, refuse: Refuse | None = None) -> list[Route]:
    """The decision journal, which names the pods of all tenants. Without `refuse`, the guard of the listener decides
    who may read it: it must be `find_refusal`."""

    async def read(request: Request) -> Response:
        refusal = None if refuse is None else await refuse(request)
        if refusal is not None:
            return refusal
        try:
            query = read_journal_query(request.target)
        except ValueError as error:
            return Response(400, f"{error}\n".encode())
        if query.process not in ("", journal.identity):
            # Its numbers have nothing to do with those here.
            query = JournalQuery(follow=query.follow)
        if journal.readers >= MAX_READERS:
            return Response(503, b"the journal is being read by as many clients as may\n")
        lines = _lines(journal, query)
        # It counts from here on: others may ask before its first record is sent.
        await anext(lines)
        if refuse is not None and query.follow:
            lines = _while_allowed(lines, refuse, request)
        return Response(200, content_type=JSON_LINES, pieces=lines)

    return [Route("GET", "/journal", read, guarded=refuse is None, reads_headers=refuse is not None, max_body_bytes=0)]


@dataclass(frozen=True, slots=True)
class JournalQuery:
    """What a client wants to read; see `Journal.read`."""

    since: int | None = None
    follow: bool = False
    snapshot: bool = True
    process: str = ""
    """whose record `since` is; empty = that of this process"""


def read_journal_query(target: bytes) -> JournalQuery:
    """Raises ValueError."""
    found = parse_qs(target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True, max_num_fields=8)
    query = {name: values[-1] for name, values in found.items()}
    since, process, switches = query.pop("since", None), query.pop("process", ""), {}
    if since is not None and not (since.isascii() and since.isdecimal() and len(since) < SINCE_DIGITS):
        raise ValueError("since: expected the number of a record")
    for name, text in query.items():
        if name not in ("follow", "snapshot"):
            raise ValueError("expected since, process, follow or snapshot")
        value = parse_bool(text)
        if value is None:
            raise ValueError(f"{name}: expected true or false")
        switches[name] = value
    return JournalQuery(None if since is None else int(since), process=process, **switches)


async def _lines(journal: Journal, query: JournalQuery) -> AsyncGenerator[bytes, None]:
    """The first piece is empty: the reading has begun."""
    journal.readers += 1
    try:
        yield b""
        reading = journal.batches(query.since, follow=query.follow, snapshot=query.snapshot)
        async with aclosing(reading) as batches:
            async for batch in batches:
                yield b"".join(map(encode_record, batch))
    finally:
        journal.readers -= 1


async def _while_allowed(
    lines: AsyncGenerator[bytes, None], refuse: Refuse, request: Request
) -> AsyncGenerator[bytes, None]:
    """A journal may be followed for ever, but no longer than the caller may read it."""
    clock = asyncio.get_running_loop().time
    reviewed_at = clock()
    async with aclosing(lines):
        async for piece in lines:
            if clock() - reviewed_at > REVIEW_S:
                if await refuse(request) is not None:
                    return
                reviewed_at = clock()
            yield piece


def moves_routes(
    apply: Callable[[MovesRequest], AsyncGenerator[bytes, None] | str], refuse: Refuse, *, guarded: bool
) -> list[Route]:
    """Moves of pods that a person asks for. `apply` answers with the lines to be told, or why nothing is done."""

    async def post(request: Request) -> Response:
        refusal = await refuse(request)
        if refusal is not None:
            return refusal
        try:
            asked = decode_moves_request(request.body)
        except WireError as error:
            return error_response(400, str(error))
        found = apply(asked)
        if isinstance(found, str):
            return error_response(503, found)
        # The caller counts from here on: without one, nothing is begun.
        await anext(found)
        return Response(200, content_type=JSON_LINES, pieces=found)

    return [Route("POST", moves.PATH, post, guarded=guarded, reads_headers=True, max_body_bytes=moves.MAX_BODY_BYTES)]


def metrics_routes(render: Callable[[], AsyncGenerator[bytes, None]]) -> list[Route]:
    """`render` yields the text in pieces: all cards of a large cluster are tens of megabytes."""

    def metrics(_request: Request) -> Response:
        return Response(200, content_type=exposition.CONTENT_TYPE, pieces=render())

    return [Route("GET", "/metrics", metrics)]
