from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID

from tessera.scheduler.certificates.authority import (
    AUTHORITY_S,
    DAY,
    LEAF_S,
    MAX_NAMES,
    OVERLAP_S,
    Keep,
    Material,
    Pair,
    Renew,
    Trim,
    facts_of,
    make_authority,
    make_leaf,
    plan,
    renewed,
    service_names,
    signed_by,
    split_bundle,
)
from tests.support.network import NAMES, NOW, fresh, kept, renewal


def test_the_service_is_known_by_its_dns_name_and_the_loopback() -> None:
    assert service_names("s", "n") == {"s.n.svc", "s.n.svc.cluster.local", "localhost", "127.0.0.1", "::1"}


def test_a_missing_secret_is_made_and_then_kept() -> None:
    assert renewal(None).reason == "there is no certificate yet"
    made = fresh()
    step = kept(made.data)
    assert step.material == made
    assert step.expiry == NOW + LEAF_S
    assert set(made.data) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert signed_by(made.data["tls.crt"], step.issuer)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (0.0, ""),
        (LEAF_S * 0.66, ""),
        (LEAF_S * 0.67, "the certificate ends soon"),
        (LEAF_S + 1, "the certificate is not valid now"),
    ],
)
def test_a_leaf_is_renewed_by_the_same_authority_when_a_third_of_its_life_is_left(after: float, reason: str) -> None:
    made = fresh()
    if not reason:
        kept(made.data, NOW + after)
        return
    step = renewal(made.data, NOW + after)
    assert step.reason == reason
    assert step.authority == Pair(made.authorities[0], made.authority_key)
    again = renewed(step, now=NOW + after, names=NAMES)
    assert again.authorities == made.authorities
    assert again.leaf != made.leaf
    kept(again.data, NOW + after)


def test_an_authority_is_replaced_when_a_third_of_its_life_is_left_and_both_are_trusted() -> None:
    authority = make_authority(now=NOW)
    late = NOW + AUTHORITY_S * 0.67
    old = Material(make_leaf(authority, NAMES, now=late), (authority.certificate,), authority.key)
    step = renewal(old.data, late)
    assert (step.reason, step.authority) == ("the authority ends soon", None)
    new = renewed(step, now=late, names=NAMES)
    assert new.authorities[1:] == old.authorities
    assert signed_by(new.leaf.certificate, new.authorities[0])
    assert kept(new.data, late).issuer == new.authorities[0]


def test_the_old_authority_leaves_the_bundle_when_everybody_has_moved() -> None:
    old, new = fresh(), fresh()
    both = replace(new, authorities=(*new.authorities, *old.authorities))
    kept(both.data, NOW + OVERLAP_S - 1)
    step = plan(both.data, now=NOW + OVERLAP_S + 1, names=NAMES)
    assert isinstance(step, Trim)
    assert step.material == new
    kept(step.material.data, NOW + OVERLAP_S + 1)


@pytest.mark.parametrize(("days", "authorities"), [(0, 2), (6, 2), (8, 1)])
def test_the_overlap_of_authorities_lasts_a_week(days: int, authorities: int) -> None:
    both = replace(fresh(), authorities=(*(new := fresh()).authorities, *fresh().authorities), leaf=new.leaf)
    step = plan(both.data, now=NOW + days * DAY, names=NAMES)
    assert isinstance(step, Keep | Trim)
    assert len(step.material.authorities) == authorities


def test_trimming_an_authority_whose_key_is_not_ours_forgets_the_key_that_is() -> None:
    authority, other = make_authority(now=NOW), make_authority(now=NOW)
    leaf = make_leaf(authority, NAMES, now=NOW)
    data = Material(leaf, (other.certificate, authority.certificate), other.key).data
    step = plan(data, now=NOW + OVERLAP_S + 1, names=NAMES)
    assert isinstance(step, Trim)
    assert (step.material.authorities, step.material.authority_key) == ((authority.certificate,), b"")
    kept(step.material.data, NOW + OVERLAP_S + 1)


def test_a_leaf_for_other_names_is_renewed_for_both() -> None:
    """Two replicas that want different names would take turns for ever otherwise."""
    mine, theirs = NAMES | {"one.example"}, NAMES | {"two.example"}
    made = fresh(names=theirs)
    step = renewal(made.data, names=mine)
    assert step.reason == "the certificate is not for one.example"
    both = renewed(step, now=NOW, names=mine)
    kept(both.data, names=mine)
    kept(both.data, names=theirs)


def test_too_many_old_names_are_forgotten() -> None:
    many = NAMES | {f"n{i}.example" for i in range(MAX_NAMES)}
    made = fresh(names=many)
    again = renewed(renewal(made.data, names=NAMES | {"new.example"}), now=NOW, names=NAMES | {"new.example"})
    assert facts_of(again.leaf.certificate).names == NAMES | {"new.example"}


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize(
    "text", [None, b"", b"nonsense", make_authority(now=NOW).certificate, make_authority(now=NOW).key]
)
def test_damaged_content_is_replaced_and_the_replacement_kept(name: str, text: bytes | None) -> None:
    data = dict(fresh().data)
    if text is None:
        del data[name]
    else:
        data[name] = text
    step = renewal(data)
    kept(renewed(step, now=NOW, names=NAMES).data)


@pytest.mark.parametrize("text", [None, b"", b"nonsense", make_authority(now=NOW).key])
def test_without_the_key_of_its_authority_a_leaf_is_kept_until_it_ends(text: bytes | None) -> None:
    made = fresh()
    data = {**made.data, "ca.key": text or b""}
    kept(data)
    step = renewal(data, NOW + LEAF_S * 0.7)
    assert (step.authority, step.trusted) == (None, made.authorities)


def test_an_ended_authority_is_not_trusted_any_longer() -> None:
    made = fresh()
    late = NOW + AUTHORITY_S + 1
    step = renewal(made.data, late)
    assert (step.authority, step.trusted) == (None, ())


@pytest.mark.parametrize("ahead", [2 * 3600.0, 10 * DAY, 2 * AUTHORITY_S])
def test_what_was_made_by_a_clock_that_was_ahead_is_made_anew_by_one_that_is_right(ahead: float) -> None:
    made = renewed(renewal(None), now=NOW + ahead, names=NAMES)
    step = plan(made.data, now=NOW, names=NAMES)
    assert isinstance(step, Renew)
    right = renewed(step, now=NOW, names=NAMES)
    issuer = kept(right.data).issuer
    assert facts_of(issuer).valid_at(NOW)
    assert facts_of(right.leaf.certificate).valid_at(NOW)


def test_a_leaf_of_an_authority_that_is_not_valid_yet_is_renewed() -> None:
    """As a clock that was set right has left it."""
    authority = make_authority(now=NOW + DAY)
    made = Material(make_leaf(authority, NAMES, now=NOW), (authority.certificate,), authority.key)
    step = plan(made.data, now=NOW, names=NAMES)
    assert isinstance(step, Renew)
    assert (step.reason, step.authority) == ("the authority is not valid yet", None)


def test_authorities_in_use_stay_trusted_beside_a_new_one() -> None:
    in_use, ended = make_authority(now=NOW), make_authority(now=NOW - AUTHORITY_S)
    leaf = make_leaf(in_use, NAMES, now=NOW)
    bundle = in_use.certificate + ended.certificate + leaf.certificate
    step = renewal(None, trusted=[bundle, b"nonsense", b""])
    assert step.trusted == (in_use.certificate,)
    assert renewed(step, now=NOW, names=NAMES).authorities[1:] == (in_use.certificate,)


def test_a_secret_of_hamis_certificate_tool_is_taken_over() -> None:
    foreign = trustme.CA()
    made = foreign.issue_cert(*NAMES)
    now = time.time()
    data = {
        "ca": foreign.cert_pem.bytes(),
        "tls.crt": b"".join(blob.bytes() for blob in made.cert_chain_pems),
        "tls.key": made.private_key_pem.bytes(),
    }
    step = plan(data, now=now, names=NAMES | {"more.example"})
    assert isinstance(step, Renew)
    new = renewed(step, now=now, names=NAMES | {"more.example"})
    assert set(split_bundle(foreign.cert_pem.bytes())) <= set(new.authorities)
    same = plan(data, now=now, names=NAMES)
    assert isinstance(same, Trim)
    kept({**data, **same.material.data}, now)


def test_an_authority_with_unreadable_extensions_is_not_trusted() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    began = datetime.fromtimestamp(NOW, UTC)
    odd = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"nonsense")
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=1))
        .add_extension(odd, critical=False)
    )
    text = built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    assert split_bundle(text) == (text,)
    assert renewal(None, trusted=[text]).trusted == ()
