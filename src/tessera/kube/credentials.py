"""Credentials as request headers: none, a fixed token or password, or a token file that rotates.

Plugins that issue credentials are in `exec_plugin`, client certificates in `tls`.
"""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path

from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.kube.errors import AccessError
from tessera.kube.tls import RECHECK_S, ClientPair

_TOKEN = re.compile(r"[!-~]+")
"""anything else is a broken file, or an attempt to inject a header"""


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
