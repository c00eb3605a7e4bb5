"""X.509 in memory: create an authority and serving certificates, and parse existing ones.

Pure except for randomness: no files, no requests, no clock (callers pass `now`, unix time in seconds). Certificates
pass strict verifiers: EC P-256, key identifiers, constraints, subject alternative names. `renewal` decides when to
replace a certificate.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

E = TypeVar("E", bound=x509.ExtensionType)

DAY = 86_400.0
"""seconds"""
AUTHORITY_S = 3650 * DAY
LEAF_S = 365 * DAY
BACKDATED = 3600.0
"""seconds of backdating, for clocks that are behind"""
MAX_COMMON_NAME = 64
"""characters, the limit of X.520; verifiers read the alternative names anyway"""
MAX_BUNDLE = 64
"""certificates read from one text"""

_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""exceptions of parsing foreign certificates"""


class BadCertificate(Exception):
    """Not a certificate, not a key, or not a pair."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (a chain: leaf first) and its key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a certificate that decisions need; times are unix seconds."""

    not_before: float
    not_after: float
    names: frozenset[str]
    """DNS names and addresses"""
    is_authority: bool

    def valid_at(self, now: float) -> bool:
        return self.not_before <= now < self.not_after

    def left(self, now: float) -> float:
        """The fraction of the lifetime that is left; negative after the end."""
        return (self.not_after - now) / max(self.not_after - self.not_before, 1.0)


# -- making


def make_authority(*, now: float) -> Pair:
    """A new authority with a unique name, so that two in one bundle can be told apart."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"tessera-ca-{identifier.digest.hex()[:16]}")
    built = (
        _builder(name, name, key, now=now, seconds=AUTHORITY_S)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return Pair(_pem(built.sign(key, hashes.SHA256())), _key_pem(key))


def make_leaf(authority: Pair, names: Iterable[str], *, now: float) -> Pair:
    """A serving certificate for these names and addresses. It never outlives its authority."""
    signer, signer_key = _one(authority.certificate), _private(authority.key)
    if not isinstance(signer_key, ec.EllipticCurvePrivateKey):
        raise BadCertificate("the authority's key is not an elliptic-curve key")
    wanted = sorted(set(names))
    if not wanted:
        raise BadCertificate("a serving certificate needs a name")
    alternatives = [_alternative(one) for one in wanted]
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(LEAF_S, signer.not_valid_after_utc.timestamp() - now)
    if life <= 0:
        raise BadCertificate("the authority has ended")
    built = (
        _builder(_name(wanted[0]), signer.subject, key, now=now, seconds=life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issuer(signer, signer_key.public_key()), critical=False)
    )
    return Pair(_pem(built.sign(signer_key, hashes.SHA256())), _key_pem(key))


# -- reading


def facts_of(certificate: bytes) -> Facts:
    """What the first certificate of a PEM text says."""
    found = _one(certificate)
    try:
        extensions = found.extensions
        alternatives = _extension(extensions, x509.SubjectAlternativeName)
        basic = _extension(extensions, x509.BasicConstraints)
    except _UNREADABLE as error:
        raise BadCertificate(f"unreadable extensions: {error}") from error
    names: set[str] = set()
    if alternatives is not None:
        names.update(alternatives.get_values_for_type(x509.DNSName))
        names.update(str(address) for address in alternatives.get_values_for_type(x509.IPAddress))
    return Facts(
        not_before=found.not_valid_before_utc.timestamp(),
        not_after=found.not_valid_after_utc.timestamp(),
        names=frozenset(names),
        is_authority=basic is not None and basic.ca,
    )


def check_pair(pair: Pair) -> None:
    """Raise `BadCertificate` if the key does not belong to the certificate."""
    try:
        public = _one(pair.certificate).public_key()
    except _UNREADABLE as error:
        raise BadCertificate("a certificate with an unknown kind of key") from error
    if public != _private(pair.key).public_key():
        raise BadCertificate("the key does not belong to the certificate")


def can_sign(authority: Pair) -> bool:
    """Whether `make_leaf` works with this pair."""
    try:
        check_pair(authority)
        return facts_of(authority.certificate).is_authority and isinstance(
            _private(authority.key), ec.EllipticCurvePrivateKey
        )
    except BadCertificate:
        return False


def signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the first certificate was directly made by the (first) authority."""
    try:
        _one(certificate).verify_directly_issued_by(_one(authority))
    except (BadCertificate, InvalidSignature, *_UNREADABLE):
        return False
    return True


def split_bundle(text: bytes) -> tuple[bytes, ...]:
    """The certificates of a PEM text, each once, in order; none where it cannot be read."""
    try:
        return tuple(dict.fromkeys(_pem(one) for one in _all(text)))
    except BadCertificate:
        return ()


# -- inside


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now: float, seconds: float
) -> x509.CertificateBuilder:
    began = datetime.fromtimestamp(now, UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began - timedelta(seconds=BACKDATED))
        .not_valid_after(began + timedelta(seconds=int(seconds)))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:MAX_COMMON_NAME])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issuer(signer: x509.Certificate, key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    """The identifier that the signer states, which other programs derive in other ways; it has to be the same here."""
    try:
        stated = _extension(signer.extensions, x509.SubjectKeyIdentifier)
    except _UNREADABLE as error:
        raise BadCertificate(f"unreadable extensions: {error}") from error
    if stated is None:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(stated)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not name or not name.isascii():
        raise BadCertificate(f"{name!r} cannot be the name of a server")
    return x509.DNSName(name)


def _extension(extensions: x509.Extensions, kind: type[E]) -> E | None:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _all(text: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text)[:MAX_BUNDLE]
    except _UNREADABLE as error:
        raise BadCertificate("not a certificate in PEM") from error


def _one(text: bytes) -> x509.Certificate:
    return _all(text)[0]


def _private(text: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(text, password=None)
    except TypeError as error:
        raise BadCertificate("the key is encrypted; only plain keys can be used") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadCertificate("not a key in PEM") from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
