"""Decides whether a claim that was allocated here fits on its cards, beside pods without claims and other claims.

One scheduler allocates each card, so a claim that does not fit was allocated by another one, or with an outdated view.
It is refused before anything of it exists: what containers hold already is never exceeded. A holder that has ended may
still be shown for a moment, so a claim waits briefly for room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Protocol

from tessera.core.devices import MigSlot
from tessera.core.grants import NO_USE, Use, effective_use
from tessera.node.dra.claim_reader import RequestPart, claims_of
from tessera.node.dra.offers import Offer, offers
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.fleet import Fleet
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim, PodKey
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.mig import split_legacy_uuid

LEAVING_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""pauses while a holder that ended is still shown"""
UNITS = ("shares", "MiB", "cores")
"""of a `Use`, in order"""


class Pods(Protocol):
    """The pods of the node."""

    version: WatchedValue[int]

    def all(self) -> Sequence[BoundPod]: ...


class Arbiter:
    """Used from the event loop only."""

    def __init__(
        self, settings: AgentSettings, fleet: WatchedValue[Fleet], *, pods: Pods, prepared: PreparedClaims
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._pods = pods
        self._prepared = prepared

    def offered(self) -> dict[str, Offer]:
        """All devices of the node, by name."""
        return {each.name: each for each in offers(self._fleet.value, self._settings)}

    async def admit(self, key: PodKey, parts: Sequence[RequestPart]) -> None:
        """Counts the claim as being prepared. Raises AllocationRefused if it does not fit."""
        for pause in (*LEAVING_S, 0.0):
            version = self._pods.version.value
            problem = self._find_excess(key, parts)
            if not problem:
                # No await since the check: of two claims for the same room, one gets it.
                self._prepared.begin(key.uid, claims_of(parts))
                return
            if pause:
                await self._pods.version.other_than(version, within=pause)
        raise AllocationRefused(f"ResourceClaim {key} does not fit: {problem}; another scheduler allocated it")

    def _find_excess(self, key: PodKey, parts: Sequence[RequestPart]) -> str:
        others = [claim for claim in self._prepared.live_claims() or () if claim.pod.uid != key.uid]
        offered = {each.uuid: each for each in self.offered().values()}
        return find_excess(claims_of(parts), offered, pods=self._pods.all(), others=others)


def find_excess(
    claims: Sequence[Claim], offered: Mapping[str, Offer], *, pods: Iterable[BoundPod], others: Sequence[Claim]
) -> str:
    """Returns why the requests of a claim do not fit on their cards; empty if they do.

    `offered` has a device of each card, by uuid; `others` are requests of other claims."""
    live = [pod for pod in pods if not pod.terminal]
    unreadable = next((pod for pod in live if pod.claims_problem), None)
    if unreadable is not None:
        return f"it is unknown what pod {unreadable.key} holds ({unreadable.claims_problem})"
    for uuid in sorted({each.uuid for claim in claims for each in claim.slices}):
        offer = offered[uuid]
        problem = (
            _amounts_exceeded(claims, offer, live, others)
            if offer.slot is None
            else _places_taken(claims, uuid, live, others)
        )
        if problem:
            return problem
    return ""


def _amounts_exceeded(claims: Sequence[Claim], offer: Offer, pods: Sequence[BoundPod], others: Sequence[Claim]) -> str:
    by_pods = NO_USE
    for pod in pods:
        uses = [(claim.position, use, False) for claim in pod.claims for use in _uses(claim, offer)]
        by_pods = by_pods.plus(effective_use(pod.spans, uses))
    by_claims = _sum(use for claim in others for use in _uses(claim, offer))
    asked = _sum(use for claim in claims for use in _uses(claim, offer))
    most = Use(offer.shares, offer.memory, offer.cores)
    total = by_pods.plus(by_claims).plus(asked)
    for unit, *amounts in zip(UNITS, most, total, by_pods, by_claims, asked, strict=True):
        has, needed, pods_hold, claims_hold, more = amounts
        if needed > has:
            return (
                f"card {offer.uuid} has {has} {unit}, pods without claims hold {pods_hold} of it,"
                f" other claims {claims_hold}, and {more} more are allocated"
            )
    return ""


def _uses(claim: Claim, offer: Offer) -> list[Use]:
    """What a container or request takes of a card. Whether 100 cores exclude others is the scheduler's to say."""
    return [Use(1, each.memory, each.cores) for each in claim.slices if split_legacy_uuid(each.uuid)[0] == offer.uuid]


def _sum(uses: Iterable[Use]) -> Use:
    total = NO_USE
    for use in uses:
        total = total.plus(use)
    return total


def _places_taken(claims: Sequence[Claim], uuid: str, pods: Sequence[BoundPod], others: Sequence[Claim]) -> str:
    asked = [slot for claim in claims for slot in _slots(claim, uuid)]
    for one, other in combinations(asked, 2):
        if one.placement.overlaps(other.placement):
            return f"{one.profile} and {other.profile} of the claim overlap on card {uuid}"
    for holder in (*(claim for pod in pods for claim in pod.claims), *others):
        who = f"{'ResourceClaim' if holder.of_resource_claim else 'pod'} {holder.pod}"
        if not holder.mig and any(split_legacy_uuid(each.uuid)[0] == uuid for each in holder.slices):
            return f"{who} holds card {uuid} without a MIG instance of its own"
        for slot in _slots(holder, uuid):
            if any(slot.placement.overlaps(each.placement) for each in asked):
                return f"{who} holds the place of the MIG instance on card {uuid}"
    return ""


def _slots(claim: Claim, uuid: str) -> list[MigSlot]:
    return [each.slot for each in claim.mig if each.uuid == uuid]
