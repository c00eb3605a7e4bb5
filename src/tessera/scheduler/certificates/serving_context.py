"""A live TLS context whose certificate can be replaced between two handshakes, and one that follows files.

Loading a second pair into a context in use is not safe: a bad one leaves it without a key, and an RSA pair does not
replace an EC one. So every pair gets a context of its own, and the listener's context passes each new handshake to the
newest. Existing connections keep theirs.

Bad files never replace the served certificate, and are read again each time until they are good. The caller decides
when; it costs two `stat` calls while nothing changes.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.kube.credentials import as_file
from tessera.scheduler.certificates.authority import BadCertificate, Pair, check_pair, facts_of

Stamp = tuple[tuple[int, int, int, int], ...]


class ServingContext:
    """`context` is what listeners get; until the first `serve` handshakes fail."""

    def __init__(self, *, client_ca: bytes = b"") -> None:
        """With `client_ca` (PEM) clients may send a certificate, which this authority must have signed."""
        self._client_ca = client_ca
        self.context = _server_context(client_ca)
        self.context.sni_callback = self._hand_over
        self._newest: ssl.SSLContext | None = None
        self.served: Pair | None = None

    def serve(self, pair: Pair) -> None:
        """Use this certificate from the next handshake on. Raises BadCertificate and keeps the old one if it is bad."""
        check_pair(pair)
        fresh = _server_context(self._client_ca)
        with as_file(pair.certificate + b"\n" + pair.key) as path:
            try:
                fresh.load_cert_chain(path)
            except ssl.SSLError as error:
                raise BadCertificate(f"TLS does not accept the certificate: {error}") from error
        self._newest, self.served = fresh, pair

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._newest
        return None


def _server_context(client_ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca:
        # The first context decides whether a client certificate is requested, the last one how it is verified.
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise BadCertificate(f"the clients' authority is no certificate in PEM: {error}") from error
    return context


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
