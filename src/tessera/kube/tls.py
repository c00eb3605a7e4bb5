"""The TLS side of access: from keys and certificates, in files or inline, to a context that follows their rotation.

A file that turns bad after the start never replaces what works: the old context stays. Nothing asks for a passphrase.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tessera.kube.errors import AccessError

RECHECK_SECONDS = 60.0
"""how often files are looked at again; certificates and tokens are replaced long before they expire"""


@dataclass(frozen=True, slots=True)
class Pem:
    """One certificate or key, and the field it came from."""

    where: str
    """file and field, for messages"""
    path: Path | None = None
    data: bytes = b""
    """used where there is no path"""

    def read(self) -> bytes:
        if self.path is None:
            return self.data
        try:
            return self.path.read_bytes()
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
    """What this side shows of itself."""

    certificate: Pem
    key: Pem


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Whom to trust and what to show."""

    authority: Pem | None = None
    """None: the system's authorities"""
    client: ClientPair | None = None
    verify: bool = True


class Tls:
    """The current context."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._client = settings.client
        self._checked_at: float | None = None
        # Before the context: a change in between is then seen as one.
        self._stamps = self._stamped()
        self.context = build_context(settings, settings.client)

    def refresh(self, *, now: float, issued: ClientPair | None) -> None:
        """Follow changed files (looked at once a minute of the loop's clock) and the pair that a plugin issued."""
        client = issued or self._settings.client
        if client != self._client:
            self.context = build_context(self._settings, client)
            self._client = client
            return
        if self._checked_at is not None and now - self._checked_at < RECHECK_SECONDS:
            return
        self._checked_at = now
        stamps = self._stamped()
        if stamps == self._stamps:
            return
        try:
            self.context = build_context(self._settings, client)
        except AccessError:
            return  # half-written, or gone for the moment: looked at again in a minute
        self._stamps = stamps

    def _stamped(self) -> tuple[object, ...]:
        pair = self._settings.client
        pems = (self._settings.authority, pair and pair.certificate, pair and pair.key)
        return tuple(pem and pem.stamp() for pem in pems)


def build_context(settings: TlsSettings, client: ClientPair | None) -> ssl.SSLContext:
    """A context for a client; raises AccessError that names the field at fault."""
    authority = settings.authority
    try:
        pem = authority.read().decode("ascii", "ignore") if authority else None
        context = ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise AccessError(f"{authority.where if authority else 'TLS'}: not a certificate in PEM: {error}") from error
    # Python 3.13 turned on checks that clusters' own authorities, made by older tools, do not pass.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client is not None:
        _load_pair(context, client)
    return context


def _load_pair(context: ssl.SSLContext, client: ClientPair) -> None:
    certificate, key = client.certificate.read(), client.key.read()
    # The ssl module reads pairs from files only; this one is private and gone before anything is sent.
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        certificate_file, key_file = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate_file.write_bytes(certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        try:
            context.load_cert_chain(certificate_file, key_file, password=_no_passphrase)
        except _Encrypted as error:
            raise AccessError(f"{client.key.where}: the key is encrypted; only plain keys can be used") from error
        except ssl.SSLError as error:
            said = "the key does not belong to the certificate" if "MISMATCH" in str(error) else str(error)
            raise AccessError(f"{client.certificate.where}: not a usable certificate and key: {said}") from error


class _Encrypted(ValueError):
    pass


def _no_passphrase() -> str:
    raise _Encrypted
