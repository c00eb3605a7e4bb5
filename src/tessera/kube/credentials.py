"""What authenticates requests: headers, with a fixed token or password, a token file that rotates, or a plugin, and the
TLS context, which follows the rotation of keys and certificates.

A plugin is the exec section of a kubeconfig (client.authentication.k8s.io/v1 and v1beta1). It runs once, and its
credentials are kept until they expire or the apiserver refuses them. Requests wait for the one run that is under way.
The plugin never gets a terminal. A file that becomes invalid after the start never replaces a context that works.
Encrypted keys are refused: nothing asks for a passphrase.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

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


_TOKEN = re.compile(r"[!-~]+")
"""anything else is a broken file, or an attempt to inject a header"""

GROUP = "client.authentication.k8s.io"
API_VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")

RUN_S = 60.0
"""a plugin may call a slow cloud service, but it must not hang"""
EARLY_S = 10.0
"""credentials are renewed this long before they expire, so that none expires on its way"""
_EXCERPT = 500
"""characters of a plugin's stderr in a message"""


class Credentials:
    """Where the headers come from."""

    async def headers(self) -> dict[str, str]:
        """The headers of the next request."""
        raise NotImplementedError

    def forget(self) -> None:
        """The apiserver refused the last headers (401): get new ones for the next request, if there can be any."""

    def issued_pair(self) -> ClientPair | None:
        """The client certificate that was issued with the last headers, if any."""
        return None


def bearer(token: str, where: str) -> dict[str, str]:
    """The header for a token; `where` is named in the error."""
    if not _TOKEN.fullmatch(token):
        raise AccessError(f"{where}: not a token: expected printable ASCII without spaces")
    return {"Authorization": f"Bearer {token}"}


def basic(username: str, password: str) -> dict[str, str]:
    pair = f"{username}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


class FixedHeaders(Credentials):
    """Headers that never change; empty without credentials and with client certificates."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self._headers = headers or {}

    async def headers(self) -> dict[str, str]:
        return dict(self._headers)


class TokenFile(Credentials):
    """A token in a file that kubelet replaces; read again every minute of the loop's clock, and after a 401."""

    def __init__(self, path: Path, *, where: str = "token file") -> None:
        self._path = path
        self._where = where
        self._headers: dict[str, str] = {}
        self._read_at: float | None = None

    async def headers(self) -> dict[str, str]:
        now = asyncio.get_running_loop().time()
        if self._read_at is None or now - self._read_at >= RECHECK_S:
            try:
                self._headers = self._read()
                self._read_at = now
            except AccessError:
                # During a rotation the old token is still valid; the next request reads the file again.
                if not self._headers:
                    raise
        return dict(self._headers)

    def forget(self) -> None:
        self._read_at = None

    def _read(self) -> dict[str, str]:
        try:
            text = read_file(self._path, limit=MAX_SMALL_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise AccessError(f"{self._where}: cannot read {self._path}: {error.strerror}") from error
        return bearer(text, f"{self._where}: {self._path}")


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Which plugin to run, and how."""

    where: str
    """file and field, for messages"""
    api_version: str
    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """the complete environment of the plugin"""
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    """passed to the plugin if the kubeconfig sets provideClusterInfo"""


class _CredentialStatus(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _CredentialStatus | None = None


@dataclass(frozen=True, slots=True)
class _IssuedCredentials:
    headers: dict[str, str]
    pair: ClientPair | None
    expires_at: float
    """seconds since the epoch"""


class ExecPlugin(Credentials):
    """Runs the plugin when its last credentials are no longer valid."""

    def __init__(self, settings: PluginSettings, *, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._issued: _IssuedCredentials | None = None
        self._running = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        async with self._running:
            if self._issued is None or self._now() >= self._issued.expires_at - EARLY_S:
                self._issued = self._read(await self._run())
            return dict(self._issued.headers)

    def forget(self) -> None:
        self._issued = None

    def issued_pair(self) -> ClientPair | None:
        return self._issued.pair if self._issued else None

    async def _run(self) -> bytes:
        settings = self._settings
        try:
            process = await asyncio.create_subprocess_exec(
                settings.command,
                *settings.args,
                env={**settings.env, "KUBERNETES_EXEC_INFO": self._exec_info()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as error:
            hint = f"; {settings.install_hint}" if settings.install_hint else ""
            raise self._fault(f"cannot be run: {error}{hint}") from error
        try:
            async with asyncio.timeout(RUN_S):
                stdout, stderr = await process.communicate()
        except TimeoutError as error:
            raise self._fault(f"did not finish within {RUN_S:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            message = stderr.decode("utf-8", "replace").strip()[-_EXCERPT:]
            raise self._fault(f"failed with exit status {process.returncode}: {message or 'it wrote no message'}")
        return stdout

    def _exec_info(self) -> str:
        spec: dict[str, Any] = {"interactive": False}
        if self._settings.cluster is not None:
            spec["cluster"] = self._settings.cluster
        info = {"apiVersion": self._settings.api_version, "kind": "ExecCredential", "spec": spec}
        return msgspec.json.encode(info).decode()

    def _read(self, text: bytes) -> _IssuedCredentials:
        try:
            credential = msgspec.json.decode(text, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise self._fault(f"gave no ExecCredential: {error}") from error
        if credential.kind != "ExecCredential" or credential.api_version != self._settings.api_version:
            raise self._fault(
                f"gave {credential.kind or 'nothing'} of {credential.api_version or 'no version'}, "
                f"expected ExecCredential of {self._settings.api_version}"
            )
        status = credential.status or _CredentialStatus()
        certificate, key = status.client_certificate_data, status.client_key_data
        if bool(certificate) != bool(key):
            raise self._fault("gave only one of clientCertificateData and clientKeyData")
        if not status.token and not certificate:
            raise self._fault("gave neither a token nor a client certificate")
        where = f"{self._settings.where}: the output of {self._settings.command}"
        expires = status.expiration_timestamp
        return _IssuedCredentials(
            headers=bearer(status.token, where) if status.token else {},
            pair=_pair(where, certificate, key) if certificate and key else None,
            expires_at=expires.timestamp() if expires else float("inf"),
        )

    def _fault(self, what: str) -> AccessError:
        return AccessError(f"{self._settings.where}: {self._settings.command} {what}")


def _pair(where: str, certificate: str, key: str) -> ClientPair:
    return ClientPair(
        certificate=Pem(f"{where}: clientCertificateData", data=certificate.encode()),
        key=Pem(f"{where}: clientKeyData", data=key.encode()),
    )
