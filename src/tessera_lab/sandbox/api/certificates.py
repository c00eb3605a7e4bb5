"""A certificate authority and a serving certificate for loopback, made on the spot when the server is to speak TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import trustme


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
