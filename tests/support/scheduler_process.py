"""The real scheduler process on the embedded control plane, in the loop of the test, and clients that call it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import trustme

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.scheduler.process import Process, Reload
from tessera.scheduler.settings import Listeners, Settings, TlsFiles
from tessera.services.value_types import Address
from tessera_lab.sandbox.control_plane import ControlPlane

Json = dict[str, Any]

JSON = "application/json"
LOOPBACK = Address("127.0.0.1", 0)
EXTENDER_ONLY = Listeners(extender=LOOPBACK, webhook=None, metrics=LOOPBACK)
WAIT_S = 60.0
"""before a condition that never holds fails the test"""


async def until(predicate: Callable[[], object]) -> None:
    """Waits until the predicate holds; checks at every iteration of the loop."""
    async with asyncio.timeout(WAIT_S):
        while not predicate():
            await asyncio.sleep(0)


@asynccontextmanager
async def running(plane: ControlPlane, settings: Settings, *, reload: Reload | None = None) -> AsyncIterator[Process]:
    """A ready scheduler, which must end with exit code 0."""
    access = load_access(kubeconfig=str(plane.kubeconfig), environ={})
    async with KubeClient(access) as client:
        process = Process(settings, client, reload=reload)
        task = asyncio.create_task(process.run())
        try:
            await until(lambda: task.done() or not process.service.engine.missing())
            assert not task.done(), "the scheduler did not start"
            yield process
        finally:
            process.stopping.set()
            assert await task == 0


# -- certificates


def write_pair(folder: Path, authority: trustme.CA, *names: str) -> TlsFiles:
    """A fresh serving certificate in two files."""
    issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    files = TlsFiles(str(folder / "tls.crt"), str(folder / "tls.key"))
    Path(files.certificate).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    Path(files.key).write_bytes(issued.private_key_pem.bytes())
    return files


def write_authority(path: Path, authority: trustme.CA) -> str:
    path.write_bytes(authority.cert_pem.bytes())
    return str(path)


def trusting(authority: trustme.CA | bytes, *, showing: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """A client's context; `showing` is the certificate that it presents."""
    pem = authority if isinstance(authority, bytes) else authority.cert_pem.bytes()
    context = ssl.create_default_context(cadata=pem.decode())
    if showing is not None:
        showing.configure_cert(context)
    return context


async def shown_certificate(address: Address, context: ssl.SSLContext) -> bytes:
    """The certificate of a new connection, in DER, after the client has verified it."""
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(found, bytes)
        return found
    finally:
        writer.close()
        await writer.wait_closed()


# -- calls


class Caller:
    """Calls one address as kube-scheduler and the apiserver do."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, path: str, body: Any) -> Json:
        status, text = await self.send("POST", path, body)
        assert status == 200, text
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self._session.request(
            method,
            path,
            data=BytesIO(data) if data else None,
            headers={"Content-Type": "application/json"} if data else None,
        ) as answer:
            return answer.status, await answer.text()

    async def get(self, path: str) -> tuple[int, str]:
        return await self.send("GET", path)

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """The chunks of a response as they were sent."""
        async with self._session.get(path) as answer:
            assert answer.headers["Transfer-Encoding"] == "chunked"
            async for piece, _ in answer.content.iter_chunks():
                yield piece

    async def filter(self, pod: Json, nodes: Sequence[str]) -> Json:
        return await self.post("/filter", {"Pod": pod, "NodeNames": list(nodes)})

    async def bind(self, pod: Json, node: str) -> Json:
        metadata = pod["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return await self.post("/bind", body | {"Node": node})


@asynccontextmanager
async def calling(address: Address | str, context: ssl.SSLContext | None = None) -> AsyncIterator[Caller]:
    """A client of this address; over TLS if it has a context."""
    scheme = "https" if context is not None else "http"
    connector = aiohttp.TCPConnector(ssl=context if context is not None else True)
    async with aiohttp.ClientSession(base_url=f"{scheme}://{address}", connector=connector) as session:
        yield Caller(session)
