from __future__ import annotations

import ipaddress
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tessera.scheduler.certificates.authority import (
    AUTHORITY_S,
    BACKDATED,
    DAY,
    LEAF_S,
    BadCertificate,
    Pair,
    can_sign,
    check_pair,
    facts_of,
    make_authority,
    make_leaf,
    signed_by,
    split_bundle,
)

NOW = 1_700_000_000.0
NAMES = ("tessera.gpu.svc", "localhost", "127.0.0.1", "::1")


def test_an_authority_lives_ten_years_and_may_only_sign_leaves() -> None:
    made = make_authority(now=NOW)
    facts = facts_of(made.certificate)
    assert (facts.not_before, facts.not_after) == (NOW - BACKDATED, NOW + AUTHORITY_S)
    assert facts.is_authority
    certificate = x509.load_pem_x509_certificate(made.certificate)
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert signed_by(made.certificate, made.certificate)
    check_pair(made)


def test_two_authorities_have_different_names() -> None:
    subjects = {x509.load_pem_x509_certificate(make_authority(now=NOW).certificate).subject for _ in range(2)}
    assert len(subjects) == 2


def test_a_leaf_lives_a_year_serves_its_names_and_signs_nothing() -> None:
    authority = make_authority(now=NOW)
    leaf = make_leaf(authority, NAMES, now=NOW)
    facts = facts_of(leaf.certificate)
    assert (facts.not_before, facts.not_after) == (NOW - BACKDATED, NOW + LEAF_S)
    assert facts.names == set(NAMES)
    assert not facts.is_authority
    usage = x509.load_pem_x509_certificate(leaf.certificate).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    check_pair(leaf)
    assert signed_by(leaf.certificate, authority.certificate)
    assert not signed_by(leaf.certificate, make_authority(now=NOW).certificate)
    assert not can_sign(leaf)
    assert can_sign(authority)


def test_a_leaf_never_outlives_its_authority() -> None:
    authority = make_authority(now=NOW)
    late = NOW + AUTHORITY_S - 30 * DAY
    leaf = make_leaf(authority, NAMES, now=late)
    assert facts_of(leaf.certificate).not_after == NOW + AUTHORITY_S
    with pytest.raises(BadCertificate, match="has ended"):
        make_leaf(authority, NAMES, now=NOW + AUTHORITY_S)


def test_times_are_counted_in_parts_of_a_life() -> None:
    facts = facts_of(make_authority(now=NOW).certificate)
    assert facts.valid_at(NOW)
    assert not facts.valid_at(NOW - BACKDATED - 1)
    assert not facts.valid_at(facts.not_after)
    assert facts.left(facts.not_before) == 1
    assert facts.left(facts.not_after) == 0


@pytest.mark.parametrize("name", ["", "ü.example", "a\ud800"])
def test_a_name_that_no_server_can_have_is_refused(name: str) -> None:
    with pytest.raises(BadCertificate, match="name of a server"):
        make_leaf(make_authority(now=NOW), [name], now=NOW)


def test_a_leaf_without_a_name_is_refused() -> None:
    with pytest.raises(BadCertificate, match="needs a name"):
        make_leaf(make_authority(now=NOW), [], now=NOW)


def test_a_long_name_is_shortened_in_the_subject_only() -> None:
    name = f"{'x' * 60}.{'y' * 60}.svc"
    leaf = make_leaf(make_authority(now=NOW), [name], now=NOW)
    assert facts_of(leaf.certificate).names == {name}


def test_what_is_made_passes_strict_verification() -> None:
    authority = make_authority(now=datetime.now(UTC).timestamp())
    leaf = make_leaf(authority, NAMES, now=datetime.now(UTC).timestamp())
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(server, leaf)
    for name in NAMES:
        assert _handshake(client, server, name) == set(NAMES)


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(file.name)


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> set[str]:
    """The names of the certificate that a client sees and accepts."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    seen: Any = one.getpeercert()
    # The library writes IPv6 addresses in full.
    return {value if kind == "DNS" else str(_address(value)) for kind, value in seen["subjectAltName"]}


def _address(text: str) -> Any:
    return ipaddress.ip_address(text)


# -- what others made


def _foreign() -> tuple[Pair, bytes]:
    authority = trustme.CA()
    made = authority.issue_cert("hami-scheduler.kube-system.svc")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    return Pair(chain, made.private_key_pem.bytes()), authority.cert_pem.bytes()


def test_certificates_of_others_are_read() -> None:
    leaf, authority = _foreign()
    check_pair(leaf)
    assert facts_of(leaf.certificate).names == {"hami-scheduler.kube-system.svc"}
    assert signed_by(leaf.certificate, authority)


def test_a_key_of_another_certificate_is_no_pair() -> None:
    one, other = make_authority(now=NOW), make_authority(now=NOW)
    with pytest.raises(BadCertificate, match="does not belong"):
        check_pair(Pair(one.certificate, other.key))
    assert not can_sign(Pair(one.certificate, other.key))


def test_an_authority_with_an_rsa_key_is_not_used_to_sign() -> None:
    pair = _self_signed(rsa.generate_private_key(65537, 2048), basic=True)
    check_pair(pair)
    assert not can_sign(pair)
    with pytest.raises(BadCertificate, match="elliptic"):
        make_leaf(pair, NAMES, now=NOW)


def _self_signed(key: Any, *, basic: bool) -> Pair:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    began = datetime.fromtimestamp(NOW, UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=1))
    )
    if basic:
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), text)


def test_a_certificate_without_extensions_has_no_names_and_is_no_authority() -> None:
    pair = _self_signed(ec.generate_private_key(ec.SECP256R1()), basic=False)
    facts = facts_of(pair.certificate)
    assert (facts.names, facts.is_authority) == (frozenset(), False)


def test_an_encrypted_key_is_refused_with_a_reason() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    with pytest.raises(BadCertificate, match="encrypted"):
        check_pair(Pair(make_authority(now=NOW).certificate, text))


BAD = [
    b"",
    b"nonsense",
    b"\x00\xff" * 100,
    b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
    b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n",
]


@pytest.mark.parametrize("text", BAD)
def test_nonsense_is_a_typed_error(text: bytes) -> None:
    good = make_authority(now=NOW)
    with pytest.raises(BadCertificate):
        facts_of(text)
    with pytest.raises(BadCertificate):
        check_pair(Pair(text, good.key))
    with pytest.raises(BadCertificate):
        check_pair(Pair(good.certificate, text))
    assert not signed_by(text, good.certificate)
    assert not signed_by(good.certificate, text)
    assert not can_sign(Pair(text, text))
    assert split_bundle(text) == ()


@pytest.mark.parametrize("place", [0, 40, 80, 200, 300, 400])
def test_a_damaged_certificate_is_read_or_refused(place: int) -> None:
    good = make_leaf(make_authority(now=NOW), NAMES, now=NOW)
    der = bytearray(x509.load_pem_x509_certificate(good.certificate).public_bytes(Encoding.DER))
    for bit in range(8):
        der[place] ^= 1 << bit
        damaged = ssl.DER_cert_to_PEM_cert(bytes(der)).encode()
        for read in (facts_of, lambda text: check_pair(Pair(text, good.key)), split_bundle):
            try:
                read(damaged)
            except BadCertificate:
                continue


def test_a_bundle_is_split_into_its_certificates_each_once() -> None:
    one, other = make_authority(now=NOW).certificate, make_authority(now=NOW).certificate
    text = b"# a comment\n" + one + b"\n" + other.replace(b"\n", b"\r\n") + one
    assert split_bundle(text) == (one, other)
