"""A serving certificate from files, read again when they change.

Bad files never replace the served certificate, and are read again each time until they are good. The caller decides
when; it costs two `stat` calls while nothing changes.
"""

from __future__ import annotations

from pathlib import Path

from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.scheduler.certificates.authority import BadCertificate, Pair, facts_of
from tessera.scheduler.certificates.serving_context import ServingContext

Stamp = tuple[tuple[int, int, int, int], ...]


class CertificateFiles:
    """Follows a certificate and its key."""

    def __init__(self, certificate: str, key: str, serving: ServingContext) -> None:
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._serving = serving
        self._stamp: Stamp | None = None
        """of the files when they were last good"""

    def read(self) -> float | None:
        """Serves what is new. Returns the end of that certificate in unix time; None if nothing is new.

        Raises BadCertificate."""
        try:
            # Before reading, so that a change in between is noticed the next time.
            stamp = (_stamp(self._certificate), _stamp(self._key))
            if stamp == self._stamp:
                return None
            self._stamp = None
            pair = Pair(*(read_file(path, limit=MAX_SMALL_BYTES) for path in (self._certificate, self._key)))
            expiry = facts_of(pair.certificate).not_after
            is_new = pair != self._serving.served
            if is_new:
                self._serving.serve(pair)
        except OSError as error:
            raise BadCertificate(f"cannot read {error.filename}: {error.strerror}") from error
        except BadCertificate as error:
            raise BadCertificate(f"{self._certificate}, {self._key}: {error}") from error
        self._stamp = stamp
        return expiry if is_new else None


def _stamp(path: Path) -> tuple[int, int, int, int]:
    """A value that changes with the content, also when a symlink is switched."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
