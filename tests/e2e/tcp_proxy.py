"""A TCP proxy between one scheduler and the real apiserver. Tests hold, cut and refuse connections.

It passes bytes on without reading them: both ends speak TLS with each other. A request that is held has not reached
the apiserver; a response that is held has had its effect. What is held is lost when the connection is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.e2e.control_plane import ControlPlane

CHUNK = 1 << 16
"""bytes"""


@dataclass
class Call:
    """One connection. Its first response belongs to the TLS handshake and is never held."""

    is_answered: bool = False
    asks: bool = False


class TcpProxy:
    """Carries all traffic of one scheduler; or that of another program, to the server that `find_url` names."""

    def __init__(self, plane: ControlPlane, *, find_url: Callable[[], str] | None = None) -> None:
        self._plane = plane
        self._find_url = find_url or (lambda: plane.url)
        self._streams: set[asyncio.StreamWriter] = set()
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        self._refusing = False
        self.held = asyncio.Event()
        """set once something has arrived that is not passed on"""
        self.calls = 0
        """connections so far"""
        self.linger_s = 0.0
        """how long the apiserver's end of a connection stays open when the other end is gone"""
        self.flow()

    def hold_requests(self) -> None:
        self._requests.clear()
        self.held.clear()

    def hold_answers(self) -> None:
        self._answers.clear()
        self.held.clear()

    def flow(self) -> None:
        """Passes everything on again, and accepts new connections."""
        self._refusing = False
        self._requests.set()
        self._answers.set()

    def cut(self) -> None:
        """Aborts all connections."""
        for stream in tuple(self._streams):
            stream.transport.abort()

    def refuse(self) -> None:
        """Aborts all connections, and accepts none until `flow`."""
        self._refusing = True
        self.cut()

    def kubeconfig(self, account: str = "tessera-scheduler") -> Path:
        """A kubeconfig of an account of rbac.yaml that reaches the apiserver through this proxy."""
        config = yaml.safe_load(self._plane.kubeconfig_of_account(account).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = self._plane.folder / f"proxy-{self.port}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.calls += 1
        port = urlsplit(self._find_url()).port
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        self._streams |= {writer, back}
        call = Call()
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_requests(call, reader, back))
                ways.create_task(self._pass_answers(call, there, writer))
        except* OSError:
            pass
        finally:
            if self.linger_s:
                await asyncio.sleep(self.linger_s)
            self._streams -= {writer, back}
            for stream in (writer, back):
                stream.transport.abort()

    async def _pass_requests(self, call: Call, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            await self._wait_for(self._requests)
            call.asks = call.is_answered
            sink.write(data)
            await sink.drain()
        # The other direction has no peer any more.
        raise ConnectionResetError

    async def _pass_answers(self, call: Call, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            if call.asks:
                await self._wait_for(self._answers)
            call.is_answered = True
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError

    async def _wait_for(self, flows: asyncio.Event) -> None:
        if not flows.is_set():
            self.held.set()
            await flows.wait()


@asynccontextmanager
async def tcp_proxy(plane: ControlPlane, *, find_url: Callable[[], str] | None = None) -> AsyncIterator[TcpProxy]:
    found = TcpProxy(plane, find_url=find_url)
    server = await found.open()
    try:
        yield found
    finally:
        server.close()
        found.flow()
        found.cut()
        await server.wait_closed()
