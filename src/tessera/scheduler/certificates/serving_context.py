"""A live TLS context whose certificate can be replaced between two handshakes.

Loading a second pair into a context in use is not safe: a bad one leaves it without a key, and an RSA pair does not
replace an EC one. So every pair gets a context of its own, and the listener's context passes each new handshake to the
newest. Existing connections keep theirs.
"""

from __future__ import annotations

import ssl

from tessera.kube.tls import as_file
from tessera.scheduler.certificates.authority import BadCertificate, Pair, check_pair


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
