"""Requests and responses as handlers see them, and which handler responds to a method and path."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import httptools

TEXT = "text/plain; charset=utf-8"
NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})


class Request(NamedTuple):
    """A request with its whole body; a named tuple because one is made for every request."""

    target: bytes = b""
    body: bytes = b""
    content_type: bytes = b""
    headers: Mapping[bytes, bytes] = NO_HEADERS
    """by name, in the form `Last-Event-Id`; only for a route that reads them"""


class Response(NamedTuple):
    """A response; a named tuple because one is made for every request."""

    status: int
    body: bytes = b""
    content_type: str = TEXT
    pieces: AsyncGenerator[bytes, None] | None = None
    """a body that is made while it is sent, in place of `body`"""
    headers: bytes = b""
    """more lines of the head, each with its end; never with anything in them that a client sent"""


BAD_TARGET = Response(400, b"no such target\n")
NOT_FOUND = Response(404, b"not found\n")

Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]
"""returns a response, or a coroutine that returns one"""


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of a method and path; a guarded one serves only peers that the listener's guard admits."""

    method: str
    path: str
    handle: Handler
    guarded: bool = False
    reads_headers: bool = False
    """whether its requests have headers; most handlers need none, and keeping them takes time"""
    max_body_bytes: int | None = None
    """where it is less than what the server takes"""


class Router:
    """Routes by method and path; a route for GET serves HEAD too."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[tuple[bytes, bytes], Route] = {}
        for route in routes:
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                self._routes[method.encode(), route.path.encode()] = route

    def find(self, method: bytes, target: bytes) -> Route | Response:
        """The route, or the refusal where there is none."""
        return self._routes.get((method, target)) or self._search(method, target)

    def _search(self, method: bytes, target: bytes) -> Route | Response:
        """For targets that are more than a path, and for refusals."""
        try:
            path = httptools.parse_url(target).path
        except httptools.HttpParserInvalidURLError:
            return BAD_TARGET
        methods = sorted(known.decode() for known, at in self._routes if at == path)
        if not methods:
            return NOT_FOUND
        allow = ", ".join(methods).encode()
        return self._routes.get((method, path)) or Response(405, b"use %b\n" % allow, headers=b"Allow: %b\r\n" % allow)
