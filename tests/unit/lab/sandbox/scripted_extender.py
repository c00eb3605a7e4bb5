"""A scripted scheduler extender behind a real HTTP listener on loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

from tessera.kube.client import KubeClient

Json = dict[str, Any]
Decide = Callable[[Json], Json | Awaitable[Json]]


def accept_first(request: Json) -> Json:
    return {"NodeNames": request["NodeNames"][:1], "FailedNodes": {}, "Error": ""}


def refuse(text: str = "1/1 CardInsufficientMemory") -> Decide:
    """Refuses every node with the same text."""
    return lambda request: {"NodeNames": None, "FailedNodes": dict.fromkeys(request["NodeNames"], text), "Error": ""}


class ScriptedExtender:
    """`decide` answers filter calls. By default bind writes a Binding with `annotations(pod name)`."""

    def __init__(self, decide: Decide = accept_first, *, tls: ssl.SSLContext | None = None) -> None:
        self.decide = decide
        self.bind: Callable[[Json], Awaitable[Json]] = self._bind
        self.annotations: Callable[[str], dict[str, str]] = lambda name: {}
        self.client: KubeClient | None = None
        self.filters: list[Json] = []
        self.filtered_at: list[float] = []
        self.binds: list[Json] = []
        self.filtering = self.most_filtering = 0
        self.binding = self.most_binding = 0
        self._moved = asyncio.Condition()
        self._tls = tls

    @property
    def url(self) -> str:
        return str(self._server.make_url("")).rstrip("/")

    @property
    def asked(self) -> list[str]:
        """Names of the pods of all filter calls so far."""
        return [each["Pod"]["metadata"]["name"] for each in self.filters]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until it holds; checked at every call."""
        async with self._moved:
            await self._moved.wait_for(condition)

    async def until_asked(self, name: str, times: int = 1) -> None:
        await self.until(lambda: self.asked.count(name) >= times)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_post("/filter", self._on_filter)
        app.router.add_post("/bind", self._on_bind)
        self._server = TestServer(app, host="127.0.0.1")
        await self._server.start_server(ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    async def _on_filter(self, request: web.Request) -> web.Response:
        body: Json = await request.json()
        self.filtering += 1
        self.most_filtering = max(self.most_filtering, self.filtering)
        self.filters.append(body)
        self.filtered_at.append(asyncio.get_running_loop().time())
        try:
            await self._tell()
            answer = self.decide(body)
            return _answered(answer if isinstance(answer, dict) else await answer)
        finally:
            self.filtering -= 1

    async def _on_bind(self, request: web.Request) -> web.Response:
        body: Json = await request.json()
        self.binding += 1
        self.most_binding = max(self.most_binding, self.binding)
        self.binds.append(body)
        try:
            await self._tell()
            return _answered(await self.bind(body))
        finally:
            self.binding -= 1

    async def _bind(self, body: Json) -> Json:
        assert self.client is not None
        name = body["PodName"]
        await self.client.bind(
            body["PodNamespace"], name, uid=body["PodUID"], node=body["Node"], annotations=self.annotations(name)
        )
        return {"Error": ""}

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()


def _answered(answer: Json) -> web.Response:
    """`{"status": 500}` responds with that status and no body."""
    return web.Response(status=answer["status"]) if "status" in answer else web.json_response(answer)
