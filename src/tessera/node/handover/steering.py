"""Remembers what GetPreferredAllocation last proposed, and for whom.

kubelet asks for a preference right before it asks for the devices, so an Allocate with exactly the proposed ids is for
the same container, whoever turned up in between. Any other Allocate, or time, ends the proposal: a kubelet that was not
steered may choose the same ids for anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.node.handover.claims import Claim
from tessera.node.handover.matching import Meant

VALID_S = 10.0
"""seconds; kubelet needs milliseconds"""


@dataclass(frozen=True, slots=True)
class _Proposal:
    ids: frozenset[str]
    meant: Meant
    until: float


class Steering:
    """One proposal at most."""

    def __init__(self) -> None:
        self._proposal: _Proposal | None = None

    def propose(self, ids: Sequence[str], meant: Meant, *, now: float) -> None:
        self._proposal = _Proposal(frozenset(ids), meant, now + VALID_S)

    def withdraw(self) -> None:
        self._proposal = None

    def take(self, ids: Sequence[str], waiting: Sequence[Claim], *, now: float) -> Meant | None:
        """For whom these ids were proposed, if that claim still waits. Ends the proposal in any case."""
        proposal, self._proposal = self._proposal, None
        if proposal is None or proposal.ids != frozenset(ids) or now > proposal.until:
            return None
        return proposal.meant if proposal.meant.claim in waiting else None
