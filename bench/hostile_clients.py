"""Eight clients that try to keep a scheduler from its work, each from an address of its own, on loopback only.

    python -m bench.hostile_clients --webhook 9443 --metrics 9395 --seconds 15

They know nothing that any pod of a cluster does not know: the ports. Each is bounded in connections, and the process
in time. What the server answers does not matter to them. They run at a low priority, because elsewhere they would run
on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.measurement import HOST

MIB = 2**20
PAUSE_S = 0.5
"""after a connection that was refused"""
CONTAINER = b'{"name":"c","resources":{"limits":{"nvidia.com/gpu":1}}}'


def review(spec: bytes) -> bytes:
    pod = b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":%s}' % spec
    request = b'{"uid":"u","operation":"CREATE","namespace":"default","object":%s}' % pod
    return b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":%s}' % request


def containers(count: int, one: bytes = CONTAINER) -> bytes:
    return review(b'{"containers":[%s]}' % b",".join([one] * count))


def post(body: bytes, *, length: int | None = None) -> bytes:
    head = "POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    return head.format(len(body) if length is None else length).encode() + body


@dataclass(frozen=True, slots=True)
class Target:
    """One port of the scheduler, seen from one address."""

    port: int
    tls: ssl.SSLContext | None
    source: str

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, ssl=self.tls, local_addr=(self.source, 0))


Session = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""what is done on one connection"""


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A head that never ends."""
    writer.write(b"POST /webhook HTTP/1.1\r\nX: ")
    while not reader.at_eof():
        writer.write(b"x")
        await asyncio.sleep(random.uniform(0.5, 1.5))


async def stop_half_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One MiB of eight."""
    writer.write(post(b"x" * MIB, length=8 * MIB))
    await reader.read()


async def idle(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(
        random.choice([os.urandom(1000), b"GET / HTTP/1.1\r\n" * 1000, b"GET /healthz HTTP/1.1\r\n\r\n" * 5000])
    )
    await reader.read(4096)


def repeat(*requests: bytes) -> Session:
    """The same requests again and again, as fast as they are answered."""

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(sys.maxsize):
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if length:
                await reader.readexactly(int(length))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")

    return session


async def keep_open(target: Target, connections: int, session: Session) -> None:
    """So many connections at once, each opened again when it ends."""

    async def one() -> None:
        while True:
            try:
                reader, writer = await target.connect()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(random.uniform(0.5, 1.5) * PAUSE_S)
                continue
            try:
                await session(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await asyncio.sleep(random.uniform(0.5, 1.5) * PAUSE_S)
            finally:
                writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(connections)))


def clients(webhook: int, metrics: int) -> list[Coroutine[Any, Any, None]]:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    ports = {"webhook": (webhook, tls), "metrics": (metrics, None)}
    usual = post(containers(1))
    many_values = post(review(b'{"volumes":[%s]}' % b",".join([b"{}"] * 2_200_000)))
    plans: list[tuple[str, int, Session]] = [
        ("webhook", 60, drip),
        ("webhook", 60, stop_half_way),
        ("webhook", 2, repeat(post(containers(100_000, b'{"name":"c"}')), post(containers(80_000)))),
        ("webhook", 2, repeat(many_values, post(b" " * 7 * MIB))),
        ("webhook", 280, idle),
        ("metrics", 20, talk_nonsense),
        ("webhook", 16, repeat(usual, usual, usual, post(containers(20)))),
        ("metrics", 16, repeat(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")),
    ]
    made: list[Coroutine[Any, Any, None]] = []
    for number, (name, connections, session) in enumerate(plans, start=2):
        made.append(keep_open(Target(*ports[name], source=f"127.0.0.{number}"), connections, session))
    return made


async def attack(webhook: int, metrics: int, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*clients(webhook, metrics))
    except TimeoutError:
        pass


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile_clients", description=__doc__.split("\n")[0])
    parser.add_argument("--webhook", type=int, required=True, help="port")
    parser.add_argument("--metrics", type=int, required=True, help="port")
    parser.add_argument("--seconds", type=float, default=15.0, help="default %(default)s")
    options = parser.parse_args(arguments)
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    uvloop.run(attack(options.webhook, options.metrics, min(options.seconds, 600.0)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
