"""One short exchange with an apiserver over TLS: our connection pool beside aiohttp's client, by processor time.

    python -m bench.exchange --json
    python -m bench.exchange --check

The server answers every request with the same bytes and runs in a process of its own, so that only clients are
measured. Both clients send the same Binding over connections that are open already, in turns. On loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import ssl
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Protocol, cast

import aiohttp
import msgspec
import trustme
import uvloop
from yarl import URL

from bench.measurement import HOST, Budget, progress, table
from tessera.kube.access import Access
from tessera.kube.connection_pool import ApiRequest, ConnectionPool
from tessera.kube.credentials import Pem, TlsSettings

EXCHANGES, ROUNDS, AT_ONCE = 1_000, 9, 4
LIMIT_S = 120
MAX_PART = 0.75
"""of the processor time of aiohttp's client"""
STATUS = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
ANSWER = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 7f6b0b0e-54f9-4c1f-9be4-58a2bb3d8bb5\r\nCache-Control: no-cache, private\r\n"
    b"Content-Type: application/json\r\nX-Kubernetes-Pf-Flowschema-Uid: f\r\nX-Kubernetes-Pf-Prioritylevel-Uid: p\r\n"
    b"Date: Sun, 15 Nov 2026 12:00:00 GMT\r\nContent-Length: %d\r\n\r\n%s" % (len(STATUS), STATUS)
)
HEADERS = {"User-Agent": "bench", "Accept": "application/json", "Accept-Encoding": "identity"}


class FixedResponse(asyncio.Protocol):
    """Responds to every request that ends with a closing brace."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"}"):
            self._transport.write(ANSWER)


def serve(certificate: Path, port: Pipe) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(FixedResponse, HOST, 0, ssl=context)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


def binding() -> ApiRequest:
    annotations = {f"tessera.io/c0.setting-{number}": "GPU-4f6a2c1e,NVIDIA,4000,5:;" for number in range(8)}
    metadata = {"name": "p", "namespace": "team", "uid": "u", "annotations": annotations}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n"}}
    headers = {"Authorization": f"Bearer {'token' * 100}"}
    return ApiRequest("POST", "/api/v1/namespaces/team/pods/p/binding", headers, msgspec.json.encode(body))


class Response(Protocol):
    @property
    def status(self) -> int: ...

    async def read(self) -> bytes: ...


class Client(Protocol):
    async def round_trip(self, request: ApiRequest) -> Response: ...

    async def close(self) -> None: ...


class AiohttpClient:
    """aiohttp with as little around it as it allows."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
        )

    async def round_trip(self, request: ApiRequest) -> aiohttp.ClientResponse:
        return await self._session.request(
            request.method,
            URL(self._access.server + request.target, encoded=True),
            data=aiohttp.BytesPayload(request.body or b"", content_type=request.content_type),
            headers=request.headers,
            ssl=self._access.ssl or True,
            allow_redirects=False,
        )

    async def close(self) -> None:
        await self._session.close()


async def spend(client: Client, exchanges: int) -> float:
    """Microseconds of processor time per exchange."""

    async def work() -> None:
        for _ in range(exchanges // AT_ONCE):
            async with asyncio.timeout(30.0):
                response = await client.round_trip(binding())
                await response.read()
            if response.status != 201:
                raise OSError(f"status {response.status}")

    began = time.process_time()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return (time.process_time() - began) / exchanges * 1e6


async def measure(port: int, authority: Path, *, exchanges: int, rounds: int) -> dict[str, Any]:
    access = Access(f"https://{HOST}:{port}", tls=TlsSettings(authority=Pem("bench", path=authority)))
    clients: dict[str, Client] = {"own": ConnectionPool(access, headers=HEADERS), "aiohttp": AiohttpClient(access)}
    seen: dict[str, list[float]] = {name: [] for name in clients}
    try:
        async with asyncio.timeout(LIMIT_S):
            gc.collect()
            gc.freeze()
            for number in range(rounds + 1):
                for name, client in clients.items():
                    spent = await spend(client, exchanges)
                    if number:
                        # The first round opens the connections.
                        seen[name].append(spent)
                progress(f"  round {number} of {rounds}")
    finally:
        for client in clients.values():
            await client.close()
    pairs = [own / other for own, other in zip(seen["own"], seen["aiohttp"], strict=True)]
    return {
        **{f"{name}_us": round(statistics.median(spent), 1) for name, spent in seen.items()},
        "part": round(statistics.median(pairs), 3),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        authority = trustme.CA()
        trust, certificate = Path(folder, "ca.pem"), Path(folder, "server.pem")
        authority.cert_pem.write_to_path(trust)
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(certificate)
        here, there = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(certificate, there), daemon=True)
        server.start()
        try:
            if not here.poll(30.0):
                raise OSError("the server did not start")
            return uvloop.run(measure(here.recv(), trust, exchanges=options.exchanges, rounds=options.rounds))
        finally:
            server.terminate()
            server.join()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.exchange", description=__doc__.split("\n")[0])
    parser.add_argument("--exchanges", type=int, default=EXCHANGES, help="per round, default %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each client, default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if the budget is exceeded")
    options = parser.parse_args(arguments)
    if options.exchanges < AT_ONCE or options.rounds < 1:
        parser.error(f"needs at least {AT_ONCE} exchanges and one round")
    try:
        figures = run(options)
    except (OSError, TimeoutError) as failure:
        progress(f"not measured: {failure}")
        return 2
    budget = Budget("processor time of an exchange / with aiohttp's client", figures["part"], most=MAX_PART)
    if options.json:
        print(json.dumps(figures))
    elif options.check:
        print(table([budget]))
    else:
        print("\n".join(f"{name:<16} {value}" for name, value in figures.items()))
    return 0 if budget.kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
