"""A serving certificate from files, read again when they change.

Bad files never replace the served certificate: they are reported, and checked again each time until they are good. The
caller decides when to check; a check costs two `stat` calls while nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tessera.scheduler.certificates.authority import BadCertificate, Pair, facts_of
from tessera.scheduler.certificates.serving_context import ServingContext

LOOK_SECONDS = 5.0
"""seconds between checks; kubelet updates a mounted Secret within about a minute anyway"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """New content, served from now on."""

    expiry: float
    """unix time in seconds"""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The served certificate equals the files."""


@dataclass(frozen=True, slots=True)
class Bad:
    """The files cannot be used; the previous certificate stays."""

    text: str
    is_news: bool
    """False if the previous check had the same result"""


Stamp = tuple[tuple[int, int, int, int], ...]


class CertificateFiles:
    """Follows a certificate and its key."""

    def __init__(self, certificate: str | Path, key: str | Path, serving: ServingContext) -> None:
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._serving = serving
        self._stamp: Stamp | None = None
        """of the files when they were last good"""
        self._complaint = ""

    def look(self) -> Loaded | Unchanged | Bad:
        try:
            # Before reading, so that a change in between is noticed by the next check.
            stamp = (_stamp(self._certificate), _stamp(self._key))
            if stamp == self._stamp:
                return Unchanged()
            pair = Pair(self._certificate.read_bytes(), self._key.read_bytes())
            changed = pair != self._serving.served
            expiry = facts_of(pair.certificate).not_after
            if changed:
                self._serving.serve(pair)
        except OSError as error:
            return self._bad(f"cannot read {error.filename}: {error.strerror}")
        except BadCertificate as error:
            return self._bad(f"{self._certificate}, {self._key}: {error}")
        self._stamp, self._complaint = stamp, ""
        return Loaded(expiry) if changed else Unchanged()

    def _bad(self, text: str) -> Bad:
        is_news = text != self._complaint
        self._complaint, self._stamp = text, None
        return Bad(text, is_news)


def _stamp(path: Path) -> tuple[int, int, int, int]:
    """A value that changes with the content, also when a symlink is switched."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
