"""The claims of one pod as filter read them, and how a placement is divided between the pod and its claims.

A request's containers are the pod's own, then one for each request of its claims that are not allocated yet. What the
first get is the pod's and written with its Binding; what the others get is the claims', each written on its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import facts_of
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.vendors.claims import ClaimAsk
from tessera.vendors.drafts import BadPod


@dataclass(frozen=True, slots=True)
class ClaimNotReady(BadPod):
    """A pod that waits for one of its claims: there is nothing to place before that has changed."""

    is_stuck: bool = False
    """its claims are allocated where it cannot run, or are being deleted: those that no other pod uses should be
    released"""


class ClaimUse(NamedTuple):
    """One claim of a pod."""

    key: str
    """namespace and name"""
    uid: str
    fence: str = ""
    """of the claim that was read"""
    ask: ClaimAsk | None = None
    """None if it is allocated"""
    positions: range = range(0)
    """of its requests, as in `PodRequest.containers`"""
    is_own: bool = False
    """it was made for the pod"""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """All claims of a pod."""

    uses: tuple[ClaimUse, ...]
    classic: PodRequest
    """what the pod asks without its claims"""
    variants: tuple[PodRequest, ...]
    """what it asks with them, the preferred alternatives first"""
    node: str = ""
    """where its allocated claims are; empty if none is allocated"""
    pinned_by: str = ""
    """the first of those"""

    @property
    def elsewhere(self) -> ClaimNotReady:
        """Why no other node will do."""
        return ClaimNotReady("", f"{self.pinned_by} is allocated on node {self.node}", is_stuck=True)

    @property
    def shared(self) -> str:
        """Key of a claim that is not allocated, and that other pods may use too; empty if there is none."""
        return next((use.key for use in self.uses if use.ask is not None and not use.is_own), "")

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(use.uid for use in self.uses)

    def rest(self, request: PodRequest, placement: Placement, handed: Collection[str]) -> PodFacts:
        """What the pod holds of a placement once these claims hold their own parts."""
        gone = {position for use in self.uses if use.uid in handed for position in use.positions}
        last = len(self.classic.containers)
        kept = [position for use in self.uses if use.uid not in handed for position in use.positions]
        length = max(kept) + 1 if kept else last
        grants = {
            vendor: tuple(() if position in gone else own for position, own in enumerate(containers[:length]))
            for vendor, containers in placement.grants.items()
        }
        held = {vendor: containers for vendor, containers in grants.items() if any(containers)}
        shortened = replace(request, containers=request.containers[:length])
        return facts_of(shortened, placement._replace(grants=held))

    def classic_part(self, placement: Placement) -> Placement:
        """What the Binding of the pod writes."""
        count = len(self.classic.containers)
        grants = {vendor: containers[:count] for vendor, containers in placement.grants.items()}
        return placement._replace(grants={vendor: own for vendor, own in grants.items() if any(own)})
