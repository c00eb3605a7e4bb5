"""The page of a cluster without a socket: requests go straight to the routes."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any

from tessera.http11.router import Request, Response, Route
from tessera.inspect.dashboard.live_state import LiveState
from tessera.inspect.dashboard.server import LoopbackAccess, PageServer
from tessera.inspect.dashboard.source import PageSource
from tessera.services.value_types import Address

PORT = 4040
HOST = f"127.0.0.1:{PORT}".encode()


class Page:
    """Routes of one source, asked by the user whose token it is."""

    def __init__(self, source: PageSource) -> None:
        self.state = LiveState(source)
        self.access = LoopbackAccess()
        self.access.listen_on(Address("127.0.0.1", PORT))
        self.server = PageServer(self.state, self.access)
        self.routes = {(route.method, route.path): route for route in self.server.routes()}

    @property
    def headers(self) -> dict[bytes, bytes]:
        return {b"Host": HOST, b"Authorization": b"Bearer " + self.access.token.encode()}

    async def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        content_type: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
    ) -> Response:
        route: Route = self.routes[method, target.partition("?")[0]]
        given = self.headers if headers is None else headers
        found = route.handle(Request(target.encode(), body, content_type, given))
        return found if isinstance(found, Response) else await found

    async def get(self, target: str) -> Any:
        response = await self.ask(target)
        assert response.status == 200, response.body
        return decoded(response)

    async def events(self, version: int) -> EventReader:
        response = await self.ask(f"/api/events?since={version}")
        assert response.pieces is not None
        return EventReader(response.pieces)


@dataclass(frozen=True)
class PageEvent:
    name: str
    data: Any
    version: int | None = None


class EventReader:
    """One viewer."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces
        self._events: list[PageEvent] = []

    async def next(self, name: str) -> PageEvent:
        """The next event of this name; others are passed over."""
        while True:
            while self._events:
                event = self._events.pop(0)
                if event.name == name:
                    return event
            self._events += _parsed(await anext(self._pieces))

    async def close(self) -> None:
        await self._pieces.aclose()


def decoded(response: Response) -> Any:
    packed = b"Content-Encoding: gzip" in response.headers
    return json.loads(gzip.decompress(response.body) if packed else response.body)


def _parsed(piece: bytes) -> Iterator[PageEvent]:
    for block in piece.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if fields:
            version = int(fields["id"]) if "id" in fields else None
            yield PageEvent(fields["event"], json.loads(fields["data"]), version)
