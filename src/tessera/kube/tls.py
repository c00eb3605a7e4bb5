"""The TLS context of an access, which follows the rotation of keys and certificates.

A file that becomes invalid after the start never replaces a context that works. Encrypted keys are refused: nothing
asks for a passphrase.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.kube.errors import AccessError

RECHECK_S = 60.0
"""between checks of the files; certificates and tokens are replaced long before they expire"""


@dataclass(frozen=True, slots=True)
class Pem:
    """One certificate or key, and the field it came from."""

    where: str
    """file and field, for messages"""
    path: Path | None = None
    data: bytes = b""
    """used if there is no path"""

    def read(self) -> bytes:
        if self.path is None:
            return self.data
        try:
            return read_file(self.path, limit=MAX_SMALL_BYTES)
        except OSError as error:
            raise AccessError(f"{self.where}: cannot read {self.path}: {error.strerror}") from error

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes when the file does."""
        if self.path is None:
            return None
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass(frozen=True, slots=True)
class ClientPair:
    """A client certificate and its key."""

    certificate: Pem
    key: Pem


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What to trust and what to present."""

    authority: Pem | None = None
    """None for the authorities of the system"""
    client: ClientPair | None = None
    verify: bool = True


class RotatingContext:
    """Holds the current context."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._client = settings.client
        self._checked_at: float | None = None
        # Taken before the context is built, so that a change in between is noticed.
        self._stamps = self._take_stamps()
        self.context = build_context(settings, settings.client)

    def refresh(self, *, now: float, issued: ClientPair | None) -> None:
        """Follow changed files (checked once per minute of the loop's clock) and the pair that a plugin issued."""
        client = issued or self._settings.client
        if client != self._client:
            self.context = build_context(self._settings, client)
            self._client = client
            return
        if self._checked_at is not None and now - self._checked_at < RECHECK_S:
            return
        self._checked_at = now
        stamps = self._take_stamps()
        if stamps == self._stamps:
            return
        try:
            self.context = build_context(self._settings, client)
        except AccessError:
            return  # half-written, or missing for the moment: checked again in a minute
        self._stamps = stamps

    def _take_stamps(self) -> tuple[object, ...]:
        pair = self._settings.client
        pems = (self._settings.authority, pair and pair.certificate, pair and pair.key)
        return tuple(pem and pem.stamp() for pem in pems)


def build_context(settings: TlsSettings, client: ClientPair | None) -> ssl.SSLContext:
    """A client context. An AccessError names the field at fault."""
    authority = settings.authority
    try:
        pem = authority.read().decode("ascii", "ignore") if authority else None
        context = ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise AccessError(f"{authority.where if authority else 'TLS'}: not a certificate in PEM: {error}") from error
    # Python 3.13 turned on checks that the certificate authorities of older clusters do not pass.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client is not None:
        _load_pair(context, client)
    return context


def _load_pair(context: ssl.SSLContext, client: ClientPair) -> None:
    with as_file(client.certificate.read()) as certificate_file, as_file(client.key.read()) as key_file:
        try:
            context.load_cert_chain(certificate_file, key_file, password=_no_passphrase)
        except _Encrypted as error:
            raise AccessError(f"{client.key.where}: the key is encrypted; only plain keys can be used") from error
        except ssl.SSLError as error:
            problem = "the key does not belong to the certificate" if "MISMATCH" in str(error) else str(error)
            raise AccessError(f"{client.certificate.where}: not a usable certificate and key: {problem}") from error


@contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """A path for the ssl module, which loads pairs from files only; in memory on Linux, because the disk may be
    read-only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tessera-pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile(prefix="tessera-") as file:
            file.write(data)
            file.flush()
            yield file.name


class _Encrypted(ValueError):
    pass


def _no_passphrase() -> str:
    raise _Encrypted
