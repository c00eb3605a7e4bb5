"""A server for the page that does what a test tells it: any state, any change, any refusal, and no server at all."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import tessera.inspect
from tests.support.network import Exchange, RawServer, ReceivedRequest
from tests.ui.described_cluster import DescribedCluster, Document

STATIC = Path(tessera.inspect.__file__).parent / "dashboard" / "static"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
SHAPES = [
    {"shape": "1/4 H100 80GB", "count": 14},
    {"shape": "1/2 H100 80GB", "count": 7},
    {"shape": "whole H100 80GB", "count": 3},
    {"shape": "2 linked H100 80GB", "count": 1},
    {"shape": "1/4 A100 40GB", "count": 6},
    {"shape": "whole L4", "count": 2},
    {"shape": "whole node of 8 H100 80GB", "count": 0},
]


class ScriptedPage:
    """Use as `async with ScriptedPage(cluster) as page`."""

    def __init__(self, cluster: DescribedCluster) -> None:
        self.cluster = cluster
        self.past: Callable[[float], DescribedCluster] | None = None
        """the cluster at an earlier time"""
        self.token = ""
        """required, if it is not empty"""
        self.refusal: tuple[int, str] | None = None
        """of everything below api/"""
        self.answers: dict[str, Document] = {}
        """by path, in place of the usual answer"""
        self.requests: list[ReceivedRequest] = []
        self.viewers = 0
        """who wait for something new"""
        self._news: list[Document] = []
        """what changed with each version, up to now"""
        self._told = asyncio.Event()
        self._server: RawServer | None = None
        self._port = 0
        self._state: bytes | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def start(self) -> None:
        """Also again after `stop`, at the same address."""
        self._server = await RawServer(self._answer, port=self._port).__aenter__()
        self._port = self._server.port

    async def stop(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            await self._server.__aexit__(None, None, None)
            self._server = None

    async def send(self, *changes: Document) -> None:
        """Something new for all viewers, and for those who come back."""
        self._state = None
        self.cluster.version += 1
        self._news.append(_joined(changes))
        self._told.set()
        self._told = asyncio.Event()

    def forget(self) -> None:
        """What changed up to now: who comes back gets the whole state."""
        self._news.clear()
        self._state = None

    # -- answers

    async def _answer(self, exchange: Exchange) -> bool:
        request = exchange.request
        self.requests.append(request)
        path = request.path.lstrip("/")
        if not path.startswith("api/"):
            return await self._send_file(exchange, path or "index.html")
        if self.refusal is not None:
            return await _send_json(exchange, {"error": self.refusal[1]}, status=self.refusal[0])
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return await _send_json(exchange, {"error": "a token is needed"}, status=401)
        if path in self.answers:
            answer = self.answers[path]
            return await _send_json(exchange, answer, status=answer.get("status", 200))
        if path == "api/state":
            return await self._send_state(exchange)
        found = self._find(path, request)
        return await _send_json(
            exchange, found if found is not None else {"error": "not found"}, status=200 if found is not None else 404
        )

    async def _send_file(self, exchange: Exchange, name: str) -> bool:
        file = STATIC / name
        if not file.is_file():
            return await _send(exchange, b"not found\n", "text/plain", status=404)
        return await _send(exchange, file.read_bytes(), TYPES[file.suffix])

    async def _send_state(self, exchange: Exchange) -> bool:
        time = exchange.request.query.get("time")
        if time is not None:
            cluster = self.past(float(time)) if self.past is not None else self.cluster
            return await _send_json(exchange, cluster.state())
        since = int(exchange.request.query.get("since", "0"))
        if since == self.cluster.version and exchange.request.query.get("wait") != "0":
            self.viewers += 1
            try:
                await self._told.wait()
            finally:
                self.viewers -= 1
        missed = self.cluster.version - since
        if 0 <= missed <= len(self._news):
            news = _joined(self._news[len(self._news) - missed :])
            return await _send_json(exchange, self.cluster.state(since, news))
        if self._state is None:
            self._state = gzip.compress(msgspec.json.encode(self.cluster.state()), 1)
        return await _send(exchange, self._state, "application/json", "Content-Encoding: gzip\r\n")

    def _find(self, path: str, request: ReceivedRequest) -> Any:
        query = request.query
        match path:
            case "api/card":
                return _answer_about(f"card {query['card']} of {query['node']}")
            case "api/node":
                return _answer_about(f"node {query['name']}")
            case "api/pod":
                name = f"{query['namespace']}/{query['name']}"
                history = [record for record in self.cluster.records if record["pod"] == name]
                return {**_answer_about(f"pod {name}"), "history": history}
            case "api/shapes":
                return SHAPES
            case "api/whatif":
                return self._try(request.body.decode())
            case "api/journal":
                first, last = float(query.get("from", "0")), float(query.get("to", "inf"))
                records = [record for record in self.cluster.records if first <= record["time"] <= last]
                return {"records": records, "more": False}
        return None

    def _try(self, manifest: str) -> Document:
        if "90000" in manifest:
            why = {
                "why": "needs 90000 MiB on one card; the largest has 81559 MiB",
                "nearest": "card 6 of h100-2",
                "change": "81559 instead of 90000 MiB would fit on h100-2",
            }
            trial = {"name": "trial", "fits": False, "node": "", "cards": [], **why}
            return {"gangs": [], "pods": [trial], "more": 0, "stops": ""}
        fits = {
            "name": "trial",
            "fits": True,
            "node": "h100-2",
            "cards": ["GPU-h100-2-6"],
            "why": "",
            "nearest": "",
            "change": "",
        }
        if "tessera.io/gang" in manifest:
            gang = {"namespace": "default", "name": "train", "size": 8, "fits": "x 9" not in manifest}
            reason = "8 x 1 NVIDIA: all 8 members fit together" if gang["fits"] else "8 x 9 NVIDIA: 0 of 8 members fit"
            return {"gangs": [{**gang, "why": reason}], "pods": [fits] if gang["fits"] else [], "more": 8, "stops": ""}
        stops = "needs 20000 MiB on one card; the most free is 19559 MiB"
        return {"gangs": [], "pods": [fits], "more": 11, "stops": stops}


def _answer_about(title: str) -> Document:
    lines = [
        {"text": f"{title}: placed", "style": "good"},
        {"text": "  asks for 1 card with 20000 MiB and 30 % of the cores", "style": "plain"},
        {"text": "  other cards were fuller, or of another model", "style": "dim"},
    ]
    return {"title": title, "lines": lines, "facts": {"driver": "575.57.08", "lastSeen": "4 s ago"}}


def _head(status: int, content_type: str, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} Whatever\r\nContent-Type: {content_type}\r\nContent-Security-Policy: {POLICY}\r\n"
        f"X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n{more}"
    ).encode()


async def _send(exchange: Exchange, body: bytes, content_type: str, more: str = "", *, status: int = 200) -> bool:
    await exchange.send(_head(status, content_type, f"{more}Content-Length: {len(body)}\r\n\r\n") + body)
    return True


async def _send_json(exchange: Exchange, document: Any, *, status: int = 200) -> bool:
    return await _send(exchange, msgspec.json.encode(document), "application/json", status=status)


def _joined(changes: Iterable[Document]) -> Document:
    """The parts that these have, as the last of them has each."""
    found: Document = {}
    for one in changes:
        for name, part in one.items():
            found[name] = {**found.get(name, {}), **part} if name in ("nodes", "waiting") else part
    return found
