"""When self-managed certificates are kept, renewed or trimmed. Pure: from a Secret's content and the time to a plan.

A leaf lives a year and is renewed when a third is left; an authority lives ten and is replaced when a third is left.
A new authority joins the old ones in the bundle; they leave it when the leaf has been the new one's for a week, which
every replica has seen by then. So every certificate that some replica still serves is always trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tessera.scheduler.certificates.authority import (
    BACKDATED,
    DAY,
    BadCertificate,
    Facts,
    Pair,
    can_sign,
    check_pair,
    facts_of,
    make_authority,
    make_leaf,
    signed_by,
    split_bundle,
)

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
