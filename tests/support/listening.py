"""A listener with handlers that can be told apart, and clients on raw sockets."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trustme

from tessera.http11.router import Request, Response, Route
from tessera.services.common_settings import ListenerLimits
from tessera.services.listener import Listener
from tessera.services.value_types import Address
from tests.support.scheduler_process import LOOPBACK, trusting

GRACE = 5.0
MIB = 2**20
PIECES = 20
TURNS = 2000
"""of the loop, several times what reading all that is sent would take"""
HEAD_OF_ALL = re.compile(
    rb"HTTP/1\.1 (\d+) [A-Za-z ]+\r\nContent-Type: ([^\r]+)\r\nContent-Length: (\d+)\r\n"
    rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n"
    rb"(Connection: close\r\n)?(Allow: [A-Z, ]+\r\n)?\r\n"
)
"""every header that is ever sent"""


def post(path: str, body: bytes = b"", *, version: str = "1.1", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return f"POST {path} HTTP/{version}\r\nContent-Length: {len(body)}\r\n{''.join(lines)}\r\n".encode() + body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *data: bytes) -> None:
        self.writer.writelines(data)

    async def answer(self, *, has_body: bool = True) -> tuple[int, bytes]:
        status, _, body = await self.whole(has_body=has_body)
        return status, body

    async def whole(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = HEAD_OF_ALL.fullmatch(head)
        assert found, head
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        body = await self.reader.readexactly(int(found[3])) if has_body else b""
        return int(found[1]), headers, body

    async def ends(self) -> bool:
        """Whether the server ends the connection, with nothing more sent."""
        return await self.reader.read() == b""

    def cut(self) -> None:
        self.writer.transport.abort()


@dataclass
class Service:
    """Handlers that can be told apart, and what they were asked."""

    asked: list[bytes] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    guarded: list[object] = field(default_factory=list)
    refusal: Response | None = None
    size: int = 0
    made: int = 0
    """pieces"""
    fails_at: int = 0

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/echo", self._echo),
            Route("POST", "/later", self._later),
            Route("POST", "/own", self._echo, guarded=True),
            Route("POST", "/fails", self._fails),
            Route("POST", "/fails-later", self._fails_later),
            Route("POST", "/gives-up", self._gives_up),
            Route("GET", "/large", lambda _request: Response(200, b"x" * self.size)),
            Route("GET", "/pieces", lambda _request: Response(200, pieces=self._pieces())),
            Route("GET", "/followed", lambda _request: Response(200, pieces=self._followed())),
        ]

    def guard(self, transport: asyncio.BaseTransport) -> Response | None:
        self.guarded.append(transport)
        return self.refusal

    def _echo(self, request: Request) -> Response:
        self.asked.append(request.body)
        return Response(200, request.body + b"x" * self.size, "application/json")

    async def _later(self, request: Request) -> Response:
        self.asked.append(request.body)
        await self.gate.wait()
        self.ended.append(request.body)
        return Response(200, request.body)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        for number in range(PIECES):
            self.made += 1
            if self.made == self.fails_at:
                raise RuntimeError("a bug")
            yield b"%d " % number + b"x" * self.size

    async def _followed(self) -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await self.gate.wait()

    def _fails(self, _request: Request) -> Response:
        raise RuntimeError("a bug")

    async def _fails_later(self, _request: Request) -> Response:
        raise RuntimeError("a bug")

    async def _gives_up(self, _request: Request) -> Response:
        raise asyncio.CancelledError


@dataclass
class Served(Service):
    """A service behind a listener."""

    listener: Listener = field(init=False)
    trust: ssl.SSLContext | None = None
    clients: list[Client] = field(default_factory=list)

    async def connect(self, address: Address | None = None) -> Client:
        at = address or self.listener.address
        client = Client(*await asyncio.open_connection(at.host or "127.0.0.1", at.port, ssl=self.trust, limit=2**24))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(
    *, tls: bool = False, grace: float = GRACE, at: Address = LOOPBACK, limits: ListenerLimits | None = None
) -> AsyncIterator[Served]:
    """With `limits` the peers have them, and are not admitted by the guard."""
    context: ssl.SSLContext | None = None
    served = Served(refusal=Response(403) if limits else None)
    if tls:
        authority = trustme.CA()
        served.trust = trusting(authority)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
    served.listener = Listener(at, served.routes(), guard=served.guard, tls=context, limits=limits, grace=grace)
    await served.listener.start()
    try:
        yield served
    finally:
        served.gate.set()
        for client in served.clients:
            client.cut()
        await served.listener.stop()


either = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
