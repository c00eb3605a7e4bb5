"""The ResourceClaims of a pod in plain values, and what there is for a claim whose selectors no card matches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tessera.core import mismatches
from tessera.core.devices import Device
from tessera.core.ledger import Ledger
from tessera.core.published_cards import COST_AT_ONCE
from tessera.core.requests import PodRequest, Request, Role
from tessera.core.selection import Candidates
from tessera.inspect.cluster import InspectedCluster
from tessera.inspect.request import ContainerSummary
from tessera.inspect.slices import GrantedSlice, holder_slices, user_names
from tessera.scheduler.engine_view import ClaimView
from tessera.vendors.claims import BadClaim
from tessera.wire.cel import AllOf
from tessera.wire.objects import Pod, PodClaim

LISTED = 6
"""kinds of cards in one sentence; the rest are counted"""


@dataclass(frozen=True, slots=True)
class ClaimSummary:
    """One ResourceClaim of a pod."""

    name: str
    """of the claim; the pod's own name for it while it does not exist"""
    state: str
    """in words"""
    template: str = ""
    """that it is made of"""
    asks: tuple[tuple[ContainerSummary, ...], ...] = ()
    """for each request, its alternatives; empty if it cannot be read"""
    problem: str = ""
    """why it is not served"""
    slices: tuple[GrantedSlice, ...] = ()
    pods: tuple[str, ...] = ()
    """that it is reserved for"""

    @property
    def lines(self) -> list[str]:
        """What it is, then what it asks for."""
        template = f" of template {self.template}" if self.template else ""
        users = f", reserved for {', '.join(self.pods)}" if self.pods else ""
        asks = [f"  {' or '.join(each.amounts_text for each in alternatives)}" for alternatives in self.asks]
        return [f"{self.name}{template}: {self.state}{users}", *asks, *([f"  {self.problem}"] if self.problem else [])]


def summarize_claims(cluster: InspectedCluster, pod: Pod) -> tuple[ClaimSummary, ...]:
    """In the order in which the pod names them; those that turned out not to be needed are left out."""
    found = (_summarize(cluster, pod, own) for own in pod.spec.resource_claims or ())
    return tuple(each for each in found if each is not None)


def _summarize(cluster: InspectedCluster, pod: Pod, own: PodClaim) -> ClaimSummary | None:
    template, name = own.resource_claim_template_name or "", own.resource_claim_name
    if name is None:
        made = [each for each in pod.status.resource_claim_statuses or () if each.name == own.name]
        if made and made[0].resource_claim_name is None:
            return None
        name = made[0].resource_claim_name if made else None
    found = cluster.view.claim(f"{pod.metadata.namespace}/{name}") if name else None
    if found is None:
        return ClaimSummary(name or own.name, "it does not exist yet", template)
    return replace(summarize_claim(cluster, found), template=template)


def summarize_claim(cluster: InspectedCluster, found: ClaimView) -> ClaimSummary:
    claim, ask = found.claim, found.ask
    asks: tuple[tuple[ContainerSummary, ...], ...] = ()
    if not isinstance(ask, BadClaim):
        asks = tuple(tuple(_asked(ask.name, one.name, one.request) for one in each) for each in ask.requests)
    slices = holder_slices(cluster.ledger, found.facts, ()) if found.facts is not None else ()
    return ClaimSummary(
        claim.metadata.name,
        _state(found),
        asks=asks,
        problem=ask.text if isinstance(ask, BadClaim) and not found.is_allocated else "",
        slices=slices,
        pods=user_names(cluster.view.users_of, found.facts)
        if found.facts is not None
        else tuple(each.name for each in claim.status.reserved_for or ()),
    )


def _state(found: ClaimView) -> str:
    if found.claim.metadata.deletion_timestamp:
        return "being deleted"
    if not found.is_allocated:
        return "not allocated"
    return f"allocated on {found.facts.node}" if found.facts is not None else "allocated by another driver"


def _asked(claim: str, name: str, request: Request) -> ContainerSummary:
    amounts = (request.count, request.memory, request.percent, request.cores)
    return ContainerSummary(name, Role.CLAIM.value, request.vendor, "", *amounts, claim)


# -- selectors


def unmet_selectors(ledger: Ledger, pod: PodRequest, candidates: Candidates) -> Iterator[str]:
    """One sentence for each request of a claim that accepts no card of these nodes, with what there is instead."""
    rows, cards_of, left = candidates.rows, ledger.arrays.published_cards, COST_AT_ONCE
    for unmet in mismatches.unmet_selectors(ledger, pod, rows):
        if not unmet.published or not isinstance(unmet.selectors, AllOf):
            continue
        alone = [AllOf(unmet.selectors.driver, (text,)) for text in unmet.selectors.texts]
        failing = []
        for each in alone:
            left -= cards_of.ask(each, left)
            if cards_of.is_asked(each) and not ledger.arrays.selected(each, rows).any():
                failing.append(each.texts[0])
        what = f"no card matches {' nor '.join(failing)}" if failing else "no card matches all of its selectors"
        cards = [device for node in candidates.names for device in ledger.devices(node).values() if device.published]
        yield f"{unmet.title}: {what}; there are {_kinds(cards)}"


def _kinds(cards: Sequence[Device]) -> str:
    counts = Counter((device.model, _profiles(device)) for device in cards).most_common()
    said = [f"{number} x {model}{profiles}" for (model, profiles), number in counts[:LISTED]]
    more = f" and {len(counts) - LISTED} other kinds" if len(counts) > LISTED else ""
    return f"{', '.join(said)}{more}"


def _profiles(device: Device) -> str:
    names = [profile for profile, _ in device.published if profile]
    return f" (MIG {', '.join(names)})" if names else ""
