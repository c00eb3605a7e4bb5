"""X.509 in memory: create an authority and serving certificates, parse existing ones, and say when they are replaced.

Pure except for randomness: no files, no requests, no clock (callers pass `now`, unix time in seconds). Certificates
pass strict verifiers: EC P-256, key identifiers, constraints, subject alternative names.

A leaf lives a year and is renewed when a third is left; an authority lives ten and is replaced when a third is left.
A new authority joins the old ones in the bundle; they leave it when the leaf has been the new one's for a week, which
every replica has seen by then. So every certificate that some replica still serves is always trusted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
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

LEAF, LEAF_KEY = "tls.crt", "tls.key"
AUTHORITIES, AUTHORITY_KEY = "ca.crt", "ca.key"
FOREIGN_AUTHORITY = "ca"
"""where the certificate tool of HAMi's chart puts it"""

RENEW_AT = 1 / 3
"""of the life that is left"""
OVERLAP_S = 7 * DAY
"""seconds for which previous authorities stay trusted"""
MAX_TRUSTED = 8
"""authorities in the bundle; more than two or three are a mistake"""
MAX_NAMES = 50
"""names in a leaf, those of its predecessor included"""


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


@dataclass(frozen=True, slots=True)
class Material:
    """The content of the Secret."""

    leaf: Pair
    authorities: tuple[bytes, ...]
    """PEM, the one that signs first"""
    authority_key: bytes

    @property
    def bundle(self) -> bytes:
        """What the apiserver has to trust."""
        return b"".join(self.authorities)

    @property
    def data(self) -> dict[str, bytes]:
        return {
            LEAF: self.leaf.certificate,
            LEAF_KEY: self.leaf.key,
            AUTHORITIES: self.bundle,
            AUTHORITY_KEY: self.authority_key,
        }


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing to do; `issuer` is the authority of the leaf."""

    material: Material
    issuer: bytes
    expiry: float


@dataclass(frozen=True, slots=True)
class Trim:
    """The same leaf, with only its own authority trusted from now on."""

    material: Material
    reason: str = "the authorities before this one are not needed any more"


@dataclass(frozen=True, slots=True)
class Renew:
    """A new leaf is needed."""

    reason: str
    authority: Pair | None = None
    """who signs it; None = a new authority"""
    trusted: tuple[bytes, ...] = ()
    """authorities that stay trusted beside it"""
    names: frozenset[str] = frozenset()
    """the old leaf's names: replicas that want different names must not renew in turn for ever"""


def service_names(service: str, namespace: str) -> frozenset[str]:
    """The service's names: DNS names for the apiserver, loopback for the kube-scheduler beside it."""
    name = f"{service}.{namespace}.svc"
    return frozenset({name, f"{name}.cluster.local", "localhost", "127.0.0.1", "::1"})


def plan(
    data: Mapping[str, bytes] | None, *, now: float, names: frozenset[str], trusted: Iterable[bytes] = ()
) -> Keep | Trim | Renew:
    """What to do about a Secret; `trusted` are the bundles in use, whose authorities must not vanish at once."""
    content = data or {}
    stored = _live(content.get(AUTHORITIES) or content.get(FOREIGN_AUTHORITY, b""), now)
    key = content.get(AUTHORITY_KEY, b"")
    signer = next((Pair(one, key) for one in stored if can_sign(Pair(one, key))), None)
    leaf = Pair(content.get(LEAF, b""), content.get(LEAF_KEY, b""))
    issuer = next((one for one in stored if signed_by(leaf.certificate, one)), None)
    facts, fault = _leaf_fault(leaf, issuer, now=now, names=names)
    if fault or facts is None or issuer is None:
        usable = signer is not None and _can_go_on(facts_of(signer.certificate), now)
        return Renew(
            reason=fault if data is not None else "there is no certificate yet",
            authority=signer if usable else None,
            trusted=_distinct(stored, *(_live(bundle, now) for bundle in trusted)),
            names=facts.names if facts is not None else frozenset(),
        )
    material = Material(leaf, tuple(stored), key)
    if len(stored) > 1 and now - (facts.not_before + BACKDATED) > OVERLAP_S:
        return Trim(Material(leaf, (issuer,), key if can_sign(Pair(issuer, key)) else b""))
    if content.get(AUTHORITIES) != material.bundle:
        return Trim(material, "the bundle holds what is no living authority")
    return Keep(material, issuer, facts.not_after)


def renewed(step: Renew, *, now: float, names: frozenset[str]) -> Material:
    """Execute a renewal."""
    authority = step.authority or make_authority(now=now)
    wanted = names | step.names
    leaf = make_leaf(authority, wanted if len(wanted) <= MAX_NAMES else names, now=now)
    authorities = _distinct((authority.certificate,), step.trusted)[:MAX_TRUSTED]
    return Material(leaf, authorities, authority.key)


def _leaf_fault(leaf: Pair, issuer: bytes | None, *, now: float, names: frozenset[str]) -> tuple[Facts | None, str]:
    """The leaf's facts where it can be read, and why it has to be replaced, or an empty text."""
    try:
        facts = facts_of(leaf.certificate)
        check_pair(leaf)
    except BadCertificate as error:
        return None, f"the stored certificate cannot be used: {error}"
    if issuer is None:
        return facts, "the stored certificate is of no authority that is stored with it"
    missing = names - facts.names
    if missing:
        return facts, f"the certificate is not for {', '.join(sorted(missing))}"
    if not facts.valid_at(now):
        return facts, "the certificate is not valid now"
    if facts.left(now) <= RENEW_AT:
        return facts, "the certificate ends soon"
    if facts_of(issuer).left(now) <= RENEW_AT:
        return facts, "the authority ends soon"
    if not facts_of(issuer).valid_at(now):
        return facts, "the authority is not valid yet"
    return facts, ""


def _can_go_on(authority: Facts, now: float) -> bool:
    """One that was made by a clock that was ahead cannot: no apiserver takes what it signs."""
    return authority.valid_at(now) and authority.left(now) > RENEW_AT


def _live(bundle: bytes, now: float) -> tuple[bytes, ...]:
    """The authorities of a bundle that have not ended."""
    return tuple(one for one in split_bundle(bundle) if _is_live(one, now))[:MAX_TRUSTED]


def _is_live(certificate: bytes, now: float) -> bool:
    try:
        facts = facts_of(certificate)
    except BadCertificate:
        return False
    return facts.is_authority and now < facts.not_after


def _distinct(*groups: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(one for group in groups for one in group))
