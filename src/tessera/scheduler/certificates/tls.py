"""The serving certificate of the listeners, from files, from our own authority, or none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

import structlog

from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.kube.client import KubeClient
from tessera.scheduler.certificates.authority import BadCertificate
from tessera.scheduler.certificates.certificate_files import CertificateFiles
from tessera.scheduler.certificates.renewal import service_names
from tessera.scheduler.certificates.rotator import CertificateRotator
from tessera.scheduler.certificates.secret_store import CertificateStore
from tessera.scheduler.certificates.serving_context import ServingContext
from tessera.scheduler.settings import SelfManaged, TlsFiles

log = structlog.get_logger(__name__)

LOOK_S = 5.0
"""between two looks at the files; kubelet updates a mounted Secret within about a minute anyway"""


class TlsError(Exception):
    """The configured files cannot be used."""


class ServingTls:
    """One context for all listeners that speak TLS; `run` keeps its certificate fresh."""

    def __init__(
        self, source: TlsFiles | SelfManaged | None, client: KubeClient, *, client_ca: str, now: Callable[[], float]
    ) -> None:
        self.expiry = 0.0
        """unix time at which the served certificate ends; 0 if none is served"""
        self._serving: ServingContext | None = None
        self._files: CertificateFiles | None = None
        self._keeper: CertificateRotator | None = None
        self._looking = asyncio.Event()
        if source is None:
            return
        self._serving = _serving_context(client_ca)
        if isinstance(source, TlsFiles):
            self._files = CertificateFiles(source.certificate, source.key, self._serving)
            return
        names = service_names(source.service, source.namespace)
        store = CertificateStore(client, source)
        self._keeper = CertificateRotator(store, self._serving, names=names, now=now, on_served=self._served)

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._serving.context if self._serving is not None else None

    def missing(self) -> str:
        """Why handshakes would fail; empty if they would not, or if TLS is off."""
        return "there is no serving certificate yet" if self._serving is not None and self.expiry == 0.0 else ""

    def prepare(self) -> None:
        """Read the files once; raises TlsError if they cannot be used, so that the process does not start."""
        try:
            self._read_files()
        except BadCertificate as error:
            raise TlsError(str(error)) from error

    def look(self) -> None:
        """Check soon, because something may have changed."""
        self._looking.set()
        if self._keeper is not None:
            self._keeper.poke()

    async def run(self) -> None:
        """Until cancelled."""
        if self._keeper is not None:
            await self._keeper.run()
        complaint = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._looking.wait()
            self._looking.clear()
            try:
                if self._read_files():
                    log.info("certificate read again", expiry=self.expiry)
                complaint = ""
            except BadCertificate as error:
                if str(error) != complaint:
                    log.error("certificate not read again, the old one stays", error=str(error))
                complaint = str(error)

    def _read_files(self) -> bool:
        """Returns whether there is a new certificate. Raises BadCertificate."""
        expiry = self._files.read() if self._files is not None else None
        if expiry is not None:
            self._served(expiry)
        return expiry is not None

    def _served(self, expiry: float) -> None:
        self.expiry = expiry


def _serving_context(client_ca: str) -> ServingContext:
    try:
        authority = read_file(client_ca, limit=MAX_SMALL_BYTES) if client_ca else b""
        if client_ca and not authority:
            # Without this error every client would be refused, silently.
            raise TlsError(f"{client_ca}: there is no certificate in it")
        return ServingContext(client_ca=authority)
    except OSError as error:
        raise TlsError(f"cannot read {error.filename}: {error.strerror}") from error
    except BadCertificate as error:
        raise TlsError(f"{client_ca}: {error}") from error
