"""A pod's request in plain values, including what defaults added, and its ResourceClaims with what they hold.

Of a claim whose selectors no card matches, it says what there is instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device
from tessera.core.model.published_cards import COST_AT_ONCE
from tessera.core.model.requests import (
    ASKED_FIELDS,
    Constraint,
    PodRequest,
    Request,
    Role,
    Weights,
    claim_and_request,
    container_title,
)
from tessera.core.search import near_misses
from tessera.core.search.selection import Candidates
from tessera.inspect.offline_cluster import InspectedCluster
from tessera.inspect.slices import GrantedSlice, holder_slices, holder_title, user_names
from tessera.scheduler.engine_view import ClaimView
from tessera.vendors.base import Vendor
from tessera.vendors.claims.asks import BadClaim
from tessera.wire import keys
from tessera.wire.cel import AllOf
from tessera.wire.objects import Pod, PodClaim

SAID = frozenset(
    {"containers", "constraints", "numa_bind", "node_policy", "device_policy", "weights", "matches", "limits"}
    | {"host", "forecast"}
)
"""fields of a `PodRequest` with texts of their own; the last two belong to the policy and have none"""

LISTED = 6
"""kinds of cards in one sentence; the rest are counted"""


@dataclass(frozen=True, slots=True)
class ContainerSummary:
    """What one container requests of one vendor; amounts are per card."""

    container: str
    role: str
    vendor: str
    resource: str
    cards: int
    memory_mib: int
    memory_percent: int
    cores: int
    claim: str = ""
    """the ResourceClaim that asks for it, then `container` is the claim's request"""

    @property
    def amounts_text(self) -> str:
        memory = f"{self.memory_mib} MiB" if self.memory_mib else f"{self.memory_percent} % of the memory"
        parts = [memory] if self.memory_mib or self.memory_percent else []
        parts += [f"{self.cores} % of the cores"] if self.cores else []
        cards = f"1 {self.vendor} card" if self.cards == 1 else f"{self.cards} {self.vendor} cards"
        each = " with " if self.cards == 1 else ", each with "
        return cards + (f"{each}{' and '.join(parts)}" if parts else "")

    @property
    def text(self) -> str:
        kind = "" if self.role in (Role.APP.value, Role.CLAIM.value) else f" ({self.role} container)"
        title = holder_title("" if self.claim else self.container, self.claim, self.container)
        return f"{title}{kind}: {self.amounts_text}"


@dataclass(frozen=True, slots=True)
class PlacementWish:
    """One setting that narrows or orders the choice of cards."""

    what: str
    value: str
    default: bool = False
    """the pod does not set it; the scheduler's default applies"""

    @property
    def text(self) -> str:
        return f"{self.what}: {self.value}{' (default)' if self.default else ''}"


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A pod's request as placement sees it."""

    asked: tuple[ContainerSummary, ...]
    wishes: tuple[PlacementWish, ...]


def summarize_request(
    request: PodRequest, annotations: Mapping[str, str], vendors: Mapping[str, Vendor]
) -> RequestSummary:
    asked = tuple(
        _asked(container.name, container.role, one, vendors)
        for container in request.containers
        for one in container.requests
    )
    return RequestSummary(asked, tuple(_wishes(request, annotations)))


def _asked(container: str, role: Role, request: Request, vendors: Mapping[str, Vendor]) -> ContainerSummary:
    resource = vendors[request.vendor].names.count
    claim, name = claim_and_request(container)
    return ContainerSummary(
        name or container,
        role.value,
        request.vendor,
        "" if claim else resource,
        request.count,
        request.memory,
        request.percent,
        request.cores,
        claim,
    )


def _wishes(request: PodRequest, annotations: Mapping[str, str]) -> Iterator[PlacementWish]:
    yield PlacementWish("node policy", request.node_policy, keys.NODE_POLICY not in annotations)
    yield PlacementWish("card policy", request.device_policy, keys.DEVICE_POLICY not in annotations)
    if request.numa_bind:
        yield PlacementWish("NUMA", "all cards of a container on one NUMA node")
    if request.weights != Weights():
        weights = request.weights
        yield PlacementWish("weights", f"slot={weights.slot},core={weights.core},memory={weights.memory}")
    for vendor, constraint in request.constraints:
        yield from _constraint(vendor, constraint)
    for container in request.containers:
        for one in container.requests:
            if one.accepts is not None and isinstance(one.accepts.filter, AllOf):
                yield PlacementWish(
                    f"{container_title(container.name)} selects", " and ".join(one.accepts.filter.texts)
                )
    for match in request.matches:
        kind = "different values" if match.distinct else "one value"
        yield PlacementWish("cards of claims", f"{kind} of {match.attribute}")
    for name, limit in request.limits:
        yield PlacementWish(name, str(limit))
    for field in ASKED_FIELDS:
        if field.name not in SAID and (value := getattr(request, field.name)) != field.default:
            yield PlacementWish(field.name.replace("_", " "), str(value))


def _constraint(vendor: str, constraint: Constraint) -> Iterator[PlacementWish]:
    listed = (
        ("models", constraint.use_models),
        ("not models", constraint.avoid_models),
        ("only cards", constraint.use_uuids),
        ("not cards", constraint.avoid_uuids),
    )
    for what, values in listed:
        if values:
            yield PlacementWish(f"{vendor} {what}", ", ".join(values))
    if constraint.mode is not None:
        yield PlacementWish(f"{vendor} modes", constraint.mode or "none of those available")
    for name, value in constraint.extra:
        yield PlacementWish(name, value)


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
        asks = tuple(tuple(_asked_by_claim(ask.name, one.name, one.request) for one in each) for each in ask.requests)
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


def _asked_by_claim(claim: str, name: str, request: Request) -> ContainerSummary:
    amounts = (request.count, request.memory, request.percent, request.cores)
    return ContainerSummary(name, Role.CLAIM.value, request.vendor, "", *amounts, claim)


# -- selectors


def unmet_selectors(ledger: Ledger, pod: PodRequest, candidates: Candidates) -> Iterator[str]:
    """One sentence for each request of a claim that accepts no card of these nodes, with what there is instead."""
    rows, cards_of, left = candidates.rows, ledger.arrays.published_cards, COST_AT_ONCE
    for unmet in near_misses.unmet_selectors(ledger, pod, rows):
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
