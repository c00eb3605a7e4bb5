"""The page of a cluster without a socket: requests go straight to the routes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

from tessera.http11.router import Request, Response, Route
from tessera.inspect.dashboard.server import LoopbackAccess, PageServer
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.state import LiveState
from tessera.services.value_types import Address

PORT = 4040
HOST = f"127.0.0.1:{PORT}".encode()


class Page:
    """Routes of one source, asked by the user whose token it is."""

    def __init__(self, source: PageSource) -> None:
        self.state = LiveState(source)
        self.access = LoopbackAccess()
        self.access.listen_on(Address("127.0.0.1", PORT))
        self.server = PageServer(self.state, self.access, guard=self.access.refuse_connection)
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

    async def follow(self) -> PageViewer:
        return PageViewer(self, await self.get("/api/state"))


class PageViewer:
    """One viewer, who asks for what is newer again and again."""

    def __init__(self, page: Page, state: Any) -> None:
        self._page = page
        self.state = state

    async def look(self) -> Any:
        """The next answer."""
        news = await self._page.get(f"/api/state?since={self.state['version']}")
        self.state = merged(self.state, news)
        return news

    async def until(self, condition: Callable[[Any], object]) -> Any:
        """The state, once that is true of it."""
        while not condition(self.state):
            await self.look()
        return self.state


def merged(state: Any, news: Any) -> Any:
    """What a viewer of this state knows with the answer to a later question, as the page's `Cluster.apply` has it."""
    if news["since"] is None:
        return news
    assert news["since"] == state["version"]
    parts = {
        name: {key: one for key, one in {**state[name], **news[name]}.items() if one is not None}
        for name in ("nodes", "waiting")
    }
    return {**state, **news, "since": None, **parts}


def pods_of(state: Any) -> dict[str, Any]:
    """By uid, those that hold slices."""
    return {uid: pod for node in state["nodes"].values() for uid, pod in node["pods"].items()}


def decoded(response: Response) -> Any:
    packed = b"Content-Encoding: gzip" in response.headers
    return json.loads(gzip.decompress(response.body) if packed else response.body)
