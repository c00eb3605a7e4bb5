"""Loopback: free ports, certificates for it, and a server on raw sockets whose every byte a test writes."""

from __future__ import annotations

import asyncio
import atexit
import random
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tessera.scheduler.certificates.authority import Keep, Material, Renew, plan, renewed, service_names

PORTS = range(20_000, 32_000)
"""below the kernel's own choices for outgoing connections, which would take a port while its program restarts"""
BLOCK = 100
"""ports that one process of tests has to itself: others would take a port before its program listens"""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free at this moment. One comes again only after all others: a program
    may take its time until it listens."""
    own = _own_ports()
    chosen: list[int] = []
    for _ in range(len(own)):
        port = own[0]
        own.rotate(-1)
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise OSError("there is no free port")


@cache
def _own_ports() -> deque[int]:
    """The process that has bound the first port of a block has the others."""
    blocks = range(PORTS.start, PORTS.stop, BLOCK)
    for first in random.sample(blocks, len(blocks)):
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", first))
        except OSError:
            held.close()
            continue
        atexit.register(held.close)
        return deque(range(first + 1, first + BLOCK))
    raise OSError("other tests use all ports")


NOW = 1_700_000_000.0
"""unix time in seconds"""
NAMES = service_names("tessera", "gpu")


def fresh(now: float = NOW, names: frozenset[str] = NAMES) -> Material:
    """New certificates, as made without a Secret."""
    return renewed(renewal(None, now, names), now=now, names=names)


def kept(data: Mapping[str, bytes], now: float = NOW, names: frozenset[str] = NAMES) -> Keep:
    step = plan(data, now=now, names=names)
    assert isinstance(step, Keep), step
    return step


def renewal(data: Mapping[str, bytes] | None, now: float = NOW, names: frozenset[str] = NAMES, **other: Any) -> Renew:
    step = plan(data, now=now, names=names, **other)
    assert isinstance(step, Renew), step
    return step


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Exchange:
    """One request, and the connection to respond on."""

    request: ReceivedRequest
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


TURNS = 50
"""of the event loop; enough for the client to read what was sent"""

Answer = Callable[[Exchange], Awaitable[bool | None]]
"""responds to one request; returns True to keep the connection"""


def reply(status: int = 200, body: Any = b"", **headers: str) -> Answer:
    """A complete response. Header names are written with underscores."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(data)}", *lines])

    async def answer(exchange: Exchange) -> bool:
        await exchange.send(head.encode() + b"\r\n\r\n" + data)
        return True

    return answer


def refusal(status: int, reason: str = "", message: str = "no", **headers: str) -> Answer:
    """A metav1.Status."""
    body = {"kind": "Status", "apiVersion": "v1", "code": status, "reason": reason, "message": message}
    return reply(status, body, Content_Type="application/json", **headers)


def stream(*chunks: bytes, end: str = "end", lasting: float = 0.0) -> Answer:
    """A chunked response that stays open for `lasting` seconds.

    `end`: end (properly), cut (plain EOF), reset (TCP reset), hold (never)."""

    async def answer(exchange: Exchange) -> bool:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in chunks:
            await exchange.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        await asyncio.sleep(lasting)
        if end == "reset":
            # The client must read the bytes first: a reset discards what it has not read.
            for _ in range(TURNS):
                await asyncio.sleep(0)
            exchange.reset()
        elif end == "hold":
            await asyncio.Event().wait()
        elif end == "end":
            await exchange.send(b"0\r\n\r\n")
            return True
        return False

    return answer


def raw(data: bytes) -> Answer:
    """These bytes, then EOF."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(data)

    return answer


async def close_at_once(exchange: Exchange) -> None:
    """Nothing, then EOF."""


async def reset_at_once(exchange: Exchange) -> None:
    exchange.reset()


async def silence(exchange: Exchange) -> None:
    """No response and no end."""
    await asyncio.Event().wait()


class RawServer:
    """Use as `async with RawServer(reply(...), ...) as server`."""

    def __init__(self, *script: Answer, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.script = list(script) or [close_at_once]
        self.tls = tls
        self.port = port
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for(self, count: int) -> None:
        """Return when this many requests have arrived."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                self.requests.append(request)
                async with self.arrived:
                    self.arrived.notify_all()
                if not await answer(Exchange(request, writer)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the test has ended it
        finally:
            self._tasks.discard(task)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    head = await reader.readline()
    if not head:
        return None
    method, target, _ = head.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method, target, headers, body)
