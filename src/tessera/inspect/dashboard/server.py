"""The routes of the page: static files, the state, and questions about it.

Static files are open to every caller that reaches the listener; everything below `api/` asks `PageAccess` first: it
wants the token of a user on this machine, or the apiserver's review of a caller in a cluster.

Answers are JSON, so that no name that a tenant chose is ever read as markup. A refusal is `{"error": SENTENCE}`.

    GET  api/state                            the state (`documents`)
    GET  api/state?since=VERSION[&wait=0]     what is newer; waits for it for a while
    GET  api/state?time=T                     the state at an earlier time
    GET  api/card?node=N&card=UUID[&time=T]   {title, lines: [{text, style}], facts}
    GET  api/node?name=N[&time=T]             the same
    GET  api/pod?namespace=S&name=N[&time=T]  the same, and history: [record]
    GET  api/shapes                           [{shape, count}]
    POST api/whatif (a manifest)              {gangs: [{namespace, name, size, fits, why}], more, stops,
                                               pods: [{name, fits, node, cards, why, nearest, change}]}
    GET  api/journal?from=T&to=T&limit=N      {records: [{sequence, time, kind, pod, node, text}], more}

Times are unix seconds. `nodes` describes nodes, cards and pods, which are arrays, and `waiting` the rows of gangs;
`source` has `{kind, name, live, journal: {from, to} or null, problem}`. Questions that need much work are answered
one at a time, and a question that would have to wait behind too many others is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

from tessera.http11.router import Request, Response, Route
from tessera.inspect.dashboard.documents import compress, encode
from tessera.inspect.dashboard.journal import (
    MAX_RECORDS,
    PageJournal,
    PastCluster,
    cluster_at,
    documents_of,
    happenings,
    history_of,
    past_state,
)
from tessera.inspect.dashboard.nodes import ShownCluster
from tessera.inspect.dashboard.questions import (
    card_details,
    find_entry,
    held_lines,
    node_details,
    pod_details,
    try_manifests,
)
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.state import Closing, LiveState
from tessera.inspect.render.explanation import explanation_lines
from tessera.inspect.state import InspectionError, Json
from tessera.scheduler.access_review import CHALLENGE, bearer_token, error_response
from tessera.services.listener import Listener, find_foreign_page
from tessera.services.value_types import Address

STATIC = Path(__file__).parent / "static"
JSON = "application/json"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
SECURITY_HEADERS = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    b" img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"X-Frame-Options: DENY\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
)
NO_STORE = b"Cache-Control: no-store\r\n"
GZIP = b"Content-Encoding: gzip\r\n"
MAX_VIEWERS = 64
"""who ask for the state at once, nearly all of them to wait for something new"""
WAIT_S = 15.0
"""for something new; a proxy may end a request that takes longer than 30 s"""
MAX_QUESTIONS = 16
"""that wait for their turn"""
MAX_TRIALS = 4
"""questions about pods that do not exist yet: they take seconds, so that others do not wait for them"""
MAX_MANIFEST_BYTES = 64 * 2**10

Answer = Callable[[Request, dict[str, str]], Coroutine[Any, Any, Response]]

TOKEN_BYTES = 24
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class PageAccess(Protocol):
    """Decides who may see data; `AccessReview` does for the callers of a cluster. The name under which they reach the
    page does not matter there: without a token, which no other page knows, there is nothing to see."""

    async def refuse(self, request: Request) -> Response | None:
        """The refusal of a request for data; None if it is allowed."""
        ...

    def user_of(self, request: Request) -> str:
        """Whose request it is that was allowed."""
        ...


Guard = Callable[[Request], Response | None]
"""the refusal of a request that must not be answered at all, not even with a static file"""


class PageServer:
    """Answers requests about one state."""

    def __init__(self, state: LiveState, access: PageAccess, *, guard: Guard = lambda _: None) -> None:
        self._state = state
        self._access = access
        self._guard = guard
        self._turn = asyncio.Semaphore(1)
        self._questions = 0
        self._trial_turn = asyncio.Semaphore(1)
        self._trying: set[str] = set()
        """users whose pods are tried, or wait for it"""

    def routes(self) -> list[Route]:
        answers = {
            "state": self._get_state,
            "card": self._get_card,
            "node": self._get_node,
            "pod": self._get_pod,
            "shapes": self._get_shapes,
            "journal": self._get_journal,
        }
        return [
            *self._static_routes(),
            *(self._route("GET", f"/api/{name}", answer) for name, answer in answers.items()),
            self._route("POST", "/api/whatif", self._try, max_body_bytes=MAX_MANIFEST_BYTES),
        ]

    async def close(self) -> None:
        await self._state.close()

    # -- answers

    async def _get_state(self, request: Request, query: dict[str, str]) -> Response:
        if "time" in query:
            async with self._question():
                past = await self._past(query)
                pieces = await past_state(past, self._state.pause, source=self._state.source.describe())
                return _packed(await asyncio.to_thread(compress, pieces))
        if self._state.viewers >= MAX_VIEWERS:
            raise _Busy(f"{MAX_VIEWERS} viewers are connected, which is the most")
        since = query.get("since", "")
        # Of another form than a version it is none that is known.
        version = int(since) if since.isdecimal() and len(since) < 20 else None
        try:
            return _packed(await self._state.state(version, 0.0 if query.get("wait") == "0" else WAIT_S))
        except Closing as error:
            raise _Busy(str(error)) from error

    async def _get_card(self, request: Request, query: dict[str, str]) -> Response:
        node, card = query.get("node", ""), query.get("card", "")
        async with self._question():
            found = card_details(await self._shown(query), node, card)
            return _found(found, f"node {node} has no card {card}")

    async def _get_node(self, request: Request, query: dict[str, str]) -> Response:
        name = query.get("name", "")
        async with self._question():
            found = node_details(await self._shown(query), name)
            return _found(found, f"no node {name} has registered cards")

    async def _get_pod(self, request: Request, query: dict[str, str]) -> Response:
        namespace, name, source = query.get("namespace", ""), query.get("name", ""), self._state.source
        async with self._question():
            shown = await self._shown(query)
            history: list[Json] = []
            if source.journal is not None:
                timeline = await source.journal.timeline()
                gang = source.view.gang_name(namespace, name)
                last = shown.moment.time if isinstance(shown, PastCluster) else math.inf
                history = await history_of(timeline.records, self._state.pause, namespace, name, gang=gang, last=last)
            answer = await source.explain(namespace, name) if shown is source else None
            if answer is not None:
                found, cycle = answer
                facts = {"phase": found.phase, "scheduler": found.scheduler, "verdict": found.status.value}
                facts["cycle"] = cycle
                lines = [*explanation_lines(found)]
                return _json(pod_details(namespace, name, lines=lines, facts=facts, history=history))
            entry = find_entry(shown.ledger, namespace, name)
            lines = held_lines(shown.ledger, entry) if entry is not None else []
            if entry is None and not history:
                return error_response(404, f"there is no pod {namespace}/{name} that asks for cards")
            return _json(pod_details(namespace, name, lines=lines, facts={}, history=history))

    async def _get_shapes(self, request: Request, query: dict[str, str]) -> Response:
        return _json(await self._state.shapes())

    async def _try(self, request: Request, query: dict[str, str]) -> Response:
        try:
            text = request.body.decode()
        except UnicodeError:
            return error_response(400, "the manifest is not UTF-8")
        async with self._trial(self._access.user_of(request)):
            answer = await try_manifests(self._state.source, text, self._state.pause)
            try:
                return _json(answer)
            except UnicodeError:
                # YAML can write half a character, which no name may have.
                return error_response(400, "the manifest has names that are not Unicode text")

    async def _get_journal(self, request: Request, query: dict[str, str]) -> Response:
        limit = query.get("limit", "")
        most = min(int(limit), MAX_RECORDS) if limit.isdecimal() and len(limit) < 9 else MAX_RECORDS
        first, last = _time(query.get("from", "0")), _time(query.get("to", "inf"))
        async with self._question():
            timeline = await self._journal.timeline()
            found = await happenings(timeline.records, self._state.pause, first=first, last=last)
            newest = await documents_of(found[-most:] if most else (), self._state.pause)
            return _json({"records": newest, "more": len(newest) < len(found)})

    # -- turns

    @asynccontextmanager
    async def _question(self) -> AsyncIterator[None]:
        """One at a time: the work of each is bounded, and so is their number. Raises _Busy."""
        if self._questions >= MAX_QUESTIONS:
            raise _Busy
        self._questions += 1
        try:
            async with self._turn:
                yield
        finally:
            self._questions -= 1

    @asynccontextmanager
    async def _trial(self, user: str) -> AsyncIterator[None]:
        """One at a time, and one of each user. Raises _Busy."""
        if user in self._trying:
            raise _Busy("your last question is still being answered; try again then")
        if len(self._trying) >= MAX_TRIALS:
            raise _Busy
        self._trying.add(user)
        try:
            async with self._trial_turn:
                yield
        finally:
            self._trying.discard(user)

    # -- inside

    @property
    def _journal(self) -> PageJournal:
        if self._state.source.journal is None:
            raise InspectionError("this source has no journal, so there is no earlier time to go to")
        return self._state.source.journal

    async def _shown(self, query: dict[str, str]) -> ShownCluster:
        """The cluster that is asked about: as it is, or as it was."""
        return await self._past(query) if "time" in query else self._state.source

    async def _past(self, query: dict[str, str]) -> PastCluster:
        origin = self._state.source.origin
        return await cluster_at(self._journal, _time(query["time"]), self._state.pause, origin=origin)

    def _route(self, method: str, path: str, answer: Answer, *, max_body_bytes: int = 0) -> Route:
        async def handle(request: Request) -> Response:
            refusal = self._guard(request) or await self._access.refuse(request)
            if refusal is not None:
                return refusal
            try:
                return await answer(request, read_query(request.target))
            except InspectionError as error:
                return error_response(400, str(error))
            except _Busy as busy:
                return error_response(503, str(busy) or "many questions are being answered; try again")

        return Route(method, path, handle, reads_headers=True, max_body_bytes=max_body_bytes)

    def _static_routes(self) -> list[Route]:
        files = {path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.is_file()}
        routes = [self._static_route(f"/{name}", path) for name, path in files.items() if path.suffix in TYPES]
        if "index.html" in files:
            routes.append(self._static_route("/", files["index.html"]))
        return routes

    def _static_route(self, path: str, file: Path) -> Route:
        data = file.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        headers = f"ETag: {tag}\r\nCache-Control: no-cache\r\n".encode()
        found = Response(200, data, TYPES[file.suffix], headers=headers)
        same = Response(304, content_type=TYPES[file.suffix], headers=headers)

        def handle(request: Request) -> Response:
            refusal = self._guard(request)
            if refusal is not None:
                return refusal
            return same if request.headers.get(b"If-None-Match") == tag.encode() else found

        return Route("GET", path, handle, reads_headers=True, max_body_bytes=0)


class _Busy(Exception):
    """Too many questions wait."""


def _json(document: Any) -> Response:
    return Response(200, encode(document), JSON, headers=NO_STORE)


def _packed(data: bytes) -> Response:
    return Response(200, data, JSON, headers=NO_STORE + GZIP)


def _found(document: Json | None, otherwise: str) -> Response:
    return _json(document) if document is not None else error_response(404, otherwise)


def _time(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise InspectionError(f"not a time in seconds: {text[:40]}")
    return found


def read_query(target: bytes) -> dict[str, str]:
    """The last value of each field."""
    _, _, text = target.partition(b"?")
    try:
        found = parse_qs(text.decode("latin-1"), max_num_fields=32)
    except ValueError as error:
        raise InspectionError("the query has too many fields") from error
    return {name: values[-1] for name, values in found.items()}


class LoopbackAccess:
    """For one user on their own machine: a random token, and names that only this machine uses."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._hosts: frozenset[bytes] = frozenset()

    def listen_on(self, address: Address) -> None:
        """The port is known from now on."""
        self._hosts = frozenset(f"{name}:{address.port}".encode() for name in LOOPBACK_NAMES)

    def refuse_connection(self, request: Request) -> Response | None:
        problem = find_foreign_page(request.headers, self._hosts.__contains__)
        return error_response(403, problem) if problem else None

    async def refuse(self, request: Request) -> Response | None:
        token = bearer_token(request)
        if token and hmac.compare_digest(token, self.token.encode()):
            return None
        return error_response(401, "open the address that `tessera dashboard` printed: it has a token", CHALLENGE)

    def user_of(self, request: Request) -> str:
        return ""


HOST = "127.0.0.1"
GRACE_S = 1.0


@asynccontextmanager
async def serve_page(source: PageSource, *, port: int = 0, now: Callable[[], float] = time.time) -> AsyncIterator[str]:
    """For as long as the block lasts; gives the address with its token. `now` is the time of what is shown. Raises
    InspectionError if the port is taken."""
    access = LoopbackAccess()
    server = PageServer(LiveState(source, now=now), access, guard=access.refuse_connection)
    listener = Listener(Address(HOST, port), server.routes(), headers=SECURITY_HEADERS, grace=GRACE_S)
    try:
        await listener.start()
    except OSError as error:
        raise InspectionError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from error
    access.listen_on(listener.address)
    try:
        yield f"http://{listener.address}/#token={access.token}"
    finally:
        await server.close()
        await listener.stop()
