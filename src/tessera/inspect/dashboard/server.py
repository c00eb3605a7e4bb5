"""The routes of the page: static files, the state, its changes, and questions about it.

Static files are open to every caller that reaches the listener; everything below `api/` asks `PageAccess` first.
Answers are JSON, so that no name that a tenant chose is ever read as markup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

from tessera.http11.router import Request, Response, Route
from tessera.inspect.dashboard.documents import encode
from tessera.inspect.dashboard.live_state import LiveState

STATIC = Path(__file__).parent / "static"
JSON = "application/json"
EVENT_STREAM = "text/event-stream"
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
LAST_EVENT = b"Last-Event-Id"

Answer = Callable[[Request, dict[str, str]], Coroutine[Any, Any, Response]]


class PageAccess(Protocol):
    """Decides who may see what."""

    def refuse_connection(self, request: Request) -> Response | None:
        """The refusal of a request that must not be answered at all, not even with a static file."""
        ...

    async def refuse(self, request: Request) -> Response | None:
        """The refusal of a request for data; None if it is allowed."""
        ...


def error(status: int, sentence: str, headers: bytes = b"") -> Response:
    return Response(status, encode({"error": sentence}), JSON, headers=NO_STORE + headers)


class PageServer:
    """Answers requests about one state."""

    def __init__(self, state: LiveState, access: PageAccess) -> None:
        self._state = state
        self._access = access

    def routes(self) -> list[Route]:
        return [*self._static_routes(), self._route("GET", "/api/state", self._get_state), self._events_route()]

    async def close(self) -> None:
        await self._state.close()

    # -- answers

    async def _get_state(self, request: Request, query: dict[str, str]) -> Response:
        data = await self._state.state()
        return Response(200, data, JSON, headers=NO_STORE + GZIP)

    async def _get_events(self, request: Request, query: dict[str, str]) -> Response:
        text = request.headers.get(LAST_EVENT, b"").decode("latin-1") or query.get("since", "")
        version = int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else self._state.log.version
        return Response(200, content_type=EVENT_STREAM, headers=NO_STORE, pieces=self._state.events(version))

    # -- inside

    def _events_route(self) -> Route:
        return self._route("GET", "/api/events", self._get_events)

    def _route(self, method: str, path: str, answer: Answer, *, max_body_bytes: int = 0) -> Route:
        async def handle(request: Request) -> Response:
            refusal = self._access.refuse_connection(request) or await self._access.refuse(request)
            return refusal if refusal is not None else await answer(request, read_query(request.target))

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
            refusal = self._access.refuse_connection(request)
            if refusal is not None:
                return refusal
            return same if request.headers.get(b"If-None-Match") == tag.encode() else found

        return Route("GET", path, handle, reads_headers=True, max_body_bytes=0)


def read_query(target: bytes) -> dict[str, str]:
    """The last value of each field."""
    _, _, text = target.partition(b"?")
    return {name: values[-1] for name, values in parse_qs(text.decode("latin-1"), max_num_fields=32).items()}
