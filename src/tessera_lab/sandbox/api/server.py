"""Starts and stops the embedded API server on a loopback port, and writes a kubeconfig for it.

async with ApiServer() as server:
    server.write_kubeconfig(path)
"""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import trustme
import yaml
from aiohttp import web

from tessera_lab.sandbox.api.api_state import ApiState
from tessera_lab.sandbox.api.faults import ApiFaults, RequestLog
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.rest import Rest
from tessera_lab.sandbox.api.verbs import Verbs

MAX_BODY = 3 * 1024 * 1024
"""bytes of a request; kube-apiserver's own limit"""
KEEP_ALIVE_S = 120.0
"""longer than the 90 s for which Go clients keep an idle connection, so that the client closes it"""
SHUTDOWN_S = 2.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, and what it signed for one server."""

    authority: trustme.CA
    served: trustme.LeafCert

    @property
    def ca(self) -> bytes:
        return self.authority.cert_pem.bytes()

    @property
    def certificate(self) -> bytes:
        return self.served.cert_chain_pems[0].bytes()

    @property
    def key(self) -> bytes:
        return self.served.private_key_pem.bytes()

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.served.configure_cert(context)
        return context


def for_loopback(host: str) -> Certificates:
    """A new authority and a certificate for localhost and `host`."""
    authority = trustme.CA()
    return Certificates(authority, authority.issue_cert(*dict.fromkeys(("localhost", "127.0.0.1", host))))


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to serve. Port 0 takes a free one. A token makes authentication required; kubectl sends it only over TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    token: str | None = None
    now: Callable[[], float] = time.time
    seed: int | None = None
    """makes uids and generated names reproducible"""


class ApiServer:
    """One server. `verbs` is the API without HTTP, `faults` injects faults, `journal` lists the latest requests."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options or ServerOptions()
        self.cluster = ApiState(now=self.options.now, seed=self.options.seed)
        self.verbs = Verbs(self.cluster)
        self.faults = ApiFaults(self.cluster)
        self.journal = RequestLog()
        self._certificates: Certificates | None = None
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        scheme = "https" if self.options.tls else "http"
        return f"{scheme}://{self.options.host}:{self._port}"

    @property
    def ca(self) -> bytes | None:
        """The CA of the serving certificate, in PEM."""
        return self._certificates.ca if self._certificates is not None else None

    async def start(self) -> None:
        """Starts serving. After `stop`, the same state can be served again on the same port."""
        if self.options.tls and self._certificates is None:
            self._certificates = for_loopback(self.options.host)
        rest = Rest(self.verbs, faults=self.faults, journal=self.journal, token=self.options.token)
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", rest.handle)
        runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=SHUTDOWN_S,
            handler_cancellation=True,
        )
        await runner.setup()
        context = self._certificates.server_context() if self._certificates is not None else None
        site = web.TCPSite(
            runner, self.options.host, self._port or self.options.port, ssl_context=context, reuse_address=True
        )
        try:
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self._port = int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Ends watches, then the server, as when an API server shuts down."""
        for watcher in self.cluster.hub.all():
            watcher.end()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.cluster.caller.close()

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def kubeconfig(self) -> Json:
        """A kubeconfig for kubectl and every other client."""
        cluster: Json = {"server": self.url}
        if self.ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca).decode()
        user: Json = {"token": self.options.token} if self.options.token else {}
        name = "tessera-sandbox"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }

    def write_kubeconfig(self, path: Path) -> None:
        """Writes the kubeconfig, readable by its owner only: it may hold a token."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            yaml.safe_dump(self.kubeconfig(), file, sort_keys=False)
