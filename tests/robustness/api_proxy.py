"""A faulty network between one program and the apiservers, and between kube-scheduler and its extender.

Both proxies read what passes through, so that they can record it and can choose what to hold: a Binding, every watch,
every response. A request that is held has not reached the server, and reaches it later even if its sender has died.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import yaml
from aiohttp import web
from yarl import URL

from tests.e2e.control_plane import ControlPlane
from tests.robustness.etcd_recorder import ALLOCATED
from tests.robustness.history import (
    BindAnswered,
    BindCalled,
    EventSeen,
    EvictionAnswered,
    EvictionSent,
    FilterAnswered,
    History,
    WriteAnswered,
    WriteSent,
)

LINE = 1 << 24
"""bytes of a watch event"""
HOP_HEADERS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
"""of one connection only"""
FAULTS = (aiohttp.ClientError, OSError, TimeoutError)
"""of a connection"""
_BINDING = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/binding")
_EVICTION = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction")
_PODS = "/api/v1/pods"


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Target(msgspec.Struct):
    name: str = ""


class _Binding(msgspec.Struct):
    metadata: _Meta
    target: _Target


class _Preconditions(msgspec.Struct):
    uid: str = ""


class _DeleteOptions(msgspec.Struct, rename="camel"):
    preconditions: _Preconditions = msgspec.field(default_factory=_Preconditions)
    dry_run: list[str] = []


class _Eviction(msgspec.Struct, rename="camel"):
    metadata: _Meta
    delete_options: _DeleteOptions = msgspec.field(default_factory=_DeleteOptions)


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _WatchEvent(msgspec.Struct):
    type: str
    object: _Object


@dataclass
class Faults:
    """What the network does now. Changed by nemeses at any time."""

    refuses: bool = False
    """aborts every request"""
    loses_answers: bool = False
    """writes take effect, but are not answered"""
    delay_s: float = 0.0
    """before every request is passed on, at most"""
    watches_flow: asyncio.Event = field(default_factory=asyncio.Event)
    """cleared: watches are silent, and go on later"""
    binds_to_hold: int = 0
    hold_s: float = 0.0
    """how long a Binding is held; it is passed on in any case"""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """set once a Binding is held"""

    def __post_init__(self) -> None:
        self.watches_flow.set()

    def heal(self) -> None:
        """Ends everything but what is held."""
        self.refuses = self.loses_answers = False
        self.delay_s, self.binds_to_hold = 0.0, 0
        self.watches_flow.set()


class ApiProxy:
    """Carries the traffic of one program to the apiserver at `upstream`, which may change."""

    def __init__(self, plane: ControlPlane, history: History, *, replica: str, rng: random.Random) -> None:
        self.upstream = plane.url
        self.faults = Faults()
        self.watches = 0
        """that were opened so far"""
        self.silent_watches = 0
        """so many of them never show anything again; those that are opened later do"""
        self.holding = 0
        """Bindings that are on their way"""
        self._plane = plane
        self._history = history
        self._replica = replica
        self._rng = rng
        self._port = 0
        self._session: aiohttp.ClientSession | None = None
        self._server: web.Server | None = None
        self._writes = _Writes()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        certificate = self._plane.authority.issue_cert("127.0.0.1", "localhost")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(tls)
        trust = ssl.create_default_context(cadata=self._plane.authority.cert_pem.bytes().decode())
        connector = aiohttp.TCPConnector(limit=0, ssl=trust)
        timeout = aiohttp.ClientTimeout(total=None)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False, read_bufsize=LINE)
        async with session as self._session, _listen(self._answer, tls=tls) as (self._server, self._port):
            yield
            await self._writes.abandon()

    def kubeconfig(self, source: Path) -> Path:
        """As `source`, through this proxy."""
        config = yaml.safe_load(source.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._port}"
        path = source.with_name(f"proxy-{self._port}.kubeconfig")
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def cut(self) -> None:
        """Aborts all connections. What was sent for writing arrives nevertheless."""
        assert self._server is not None
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._pass(request)
        except FAULTS:
            _abort(request)
            raise

    async def _pass(self, request: web.BaseRequest) -> web.StreamResponse:
        faults = self.faults
        if faults.refuses:
            raise ConnectionResetError
        body = await request.read()
        upstream = self.upstream
        if faults.delay_s:
            await asyncio.sleep(self._rng.uniform(0, faults.delay_s))
        if request.method == "GET":
            return await self._forward(request, body, upstream)
        if _BINDING.fullmatch(request.path):
            passing = self._pass_binding(request, body, upstream)
        elif evicted := _EVICTION.fullmatch(request.path):
            passing = self._pass_eviction(request, body, upstream, key="/".join(evicted.groups()))
        else:
            passing = self._forward(request, body, upstream)
        return await self._writes.finish(passing)

    async def _pass_eviction(
        self, request: web.BaseRequest, body: bytes, upstream: str, *, key: str
    ) -> web.StreamResponse:
        options, history = msgspec.json.decode(body, type=_Eviction).delete_options, self._history
        uid, status = options.preconditions.uid, 0
        if options.dry_run:
            return await self._forward(request, body, upstream)
        history.add(EvictionSent(at=history.now, replica=self._replica, uid=uid, key=key))
        try:
            answer = await self._forward(request, body, upstream)
            status = answer.status
            return answer
        finally:
            history.add(EvictionAnswered(at=history.now, replica=self._replica, uid=uid, status=status))

    async def _pass_binding(self, request: web.BaseRequest, body: bytes, upstream: str) -> web.StreamResponse:
        binding, faults, history = msgspec.json.decode(body, type=_Binding), self.faults, self._history
        uid, node, held_s, status = binding.metadata.uid, binding.target.name, 0.0, 0
        history.add(
            WriteSent(
                at=history.now,
                replica=self._replica,
                uid=uid,
                node=node,
                grants=binding.metadata.annotations.get(ALLOCATED, ""),
                version=binding.metadata.resource_version,
            )
        )
        self.holding += 1
        try:
            if faults.binds_to_hold:
                faults.binds_to_hold -= 1
                faults.held.set()
                held_s = faults.hold_s
                await asyncio.sleep(held_s)
            answer = await self._forward(request, body, upstream)
            status = answer.status
            return answer
        finally:
            self.holding -= 1
            history.add(
                WriteAnswered(
                    at=history.now, replica=self._replica, uid=uid, node=node, status=status, held_s=round(held_s, 1)
                )
            )

    async def _forward(self, request: web.BaseRequest, body: bytes, upstream: str) -> web.StreamResponse:
        answer = await self._open(request, body, upstream)
        async with answer:
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP_HEADERS}
            if "watch" in request.query and answer.status == 200:
                return await self._pass_watch(request, answer, kept)
            content = await answer.read()
            if self.faults.loses_answers and request.method != "GET":
                raise ConnectionResetError
            return web.Response(status=answer.status, body=content, headers=kept)

    async def _open(self, request: web.BaseRequest, body: bytes, upstream: str) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_HEADERS}
        # The path as it was sent: an apiserver sees the same bytes.
        url = URL(f"{upstream}{request.raw_path}", encoded=True)
        return await self._session.request(request.method, url, data=body or None, headers=headers)

    async def _pass_watch(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        self.watches += 1
        number = self.watches
        passed = web.StreamResponse(status=answer.status, headers=headers)
        await passed.prepare(request)
        is_read = request.path == _PODS and "json" in answer.headers.get("Content-Type", "")
        rest = b""
        async for chunk in answer.content.iter_any():
            await self.faults.watches_flow.wait()
            if number <= self.silent_watches:
                # Until its client gives the connection up.
                await asyncio.Event().wait()
            if is_read:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._record_watch(line)
            await passed.write(chunk)
        return passed

    def _record_watch(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_WatchEvent)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            metadata, at = event.object.metadata, self._history.now
            self._history.add(
                EventSeen(
                    at=at,
                    replica=self._replica,
                    uid=metadata.uid,
                    type=event.type,
                    revision=metadata.resource_version,
                )
            )


# -- kube-scheduler and its extender


class _Pod(msgspec.Struct):
    metadata: _Meta


class _FilterArgs(msgspec.Struct):
    pod: _Pod = msgspec.field(name="Pod")


class _FilterResult(msgspec.Struct):
    nodes: list[str] | None = msgspec.field(name="NodeNames", default=None)
    error: str = msgspec.field(name="Error", default="")


class _BindArgs(msgspec.Struct):
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _BindResult(msgspec.Struct):
    error: str = msgspec.field(name="Error", default="")


class ExtenderProxy:
    """Records the calls of one kube-scheduler, and may hold its bind calls."""

    def __init__(self, url: str, history: History, *, replica: str) -> None:
        self._url = url
        self._history = history
        self._replica = replica
        self._session: aiohttp.ClientSession | None = None
        self.url = ""
        self._calls = _Writes()
        self.binds_to_hold = 0
        self.hold_s = 0.0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        async with session as self._session, _listen(self._answer) as (_, port):
            self.url = f"http://127.0.0.1:{port}"
            yield
            await self._calls.abandon()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._calls.finish(self._pass(request, await request.read()))

    async def _pass(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        is_bind = request.path.endswith("/bind")
        uid = self._record_bind(body) if is_bind else msgspec.json.decode(body, type=_FilterArgs).pod.metadata.uid
        if is_bind and self.binds_to_hold:
            self.binds_to_hold -= 1
            await asyncio.sleep(self.hold_s)
        try:
            status, content = await self._ask(request.path, body)
        except FAULTS:
            _abort(request)
            raise
        at = self._history.now
        if status == 200 and is_bind:
            bound = msgspec.json.decode(content, type=_BindResult)
            self._history.add(BindAnswered(at=at, replica=self._replica, uid=uid, error=bound.error))
        elif status == 200 and request.path.endswith("/filter"):
            found = msgspec.json.decode(content, type=_FilterResult)
            self._history.add(
                FilterAnswered(at=at, replica=self._replica, uid=uid, nodes=found.nodes or [], error=found.error)
            )
        return web.Response(status=status, body=content, content_type="application/json")

    def _record_bind(self, body: bytes) -> str:
        args = msgspec.json.decode(body, type=_BindArgs)
        self._history.add(BindCalled(at=self._history.now, replica=self._replica, uid=args.uid, node=args.node))
        return args.uid

    async def _ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        async with self._session.post(f"{self._url}{path}", data=body, headers=headers) as answer:
            return answer.status, await answer.read()


# -- listeners


class _Writes:
    """Requests that reach their server even if their client is gone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[web.StreamResponse]] = set()

    async def finish(self, passing: Coroutine[None, None, web.StreamResponse]) -> web.StreamResponse:
        task = asyncio.create_task(passing)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def abandon(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[web.StreamResponse]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Its client, if there is one, has got it.


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def _listen(answer: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[web.Server, int]]:
    """Yields the server and its port."""

    async def quietly(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await answer(request)
        except FAULTS:
            # The connection is aborted already; the response goes nowhere.
            return web.Response(status=503)

    server = web.Server(quietly, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield server, int(runner.addresses[0][1])
    finally:
        with suppress(TimeoutError):
            await runner.cleanup()


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
