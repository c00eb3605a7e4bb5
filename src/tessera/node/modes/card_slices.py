"""A container's slices in the order in which the container enumerates its cards.

CUDA and NVML enumerate cards inside a container by index, whatever order the pod's annotation has, so limits are
numbered by index. A card that is missing or unhealthy is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.claims import Claim
from tessera.node.modes.base import AllocationRefused
from tessera.wire.quotes import quoted


class CardSlice(NamedTuple):
    """What a container gets of one card."""

    card: CardState
    memory: int
    """MiB"""
    cores: int
    """percent; 0 = not limited"""

    @property
    def uuid(self) -> str:
        return self.card.facts.uuid


def slices_by_card(claim: Claim, fleet: Fleet) -> tuple[CardSlice, ...]:
    """Returns slices in the container's order of cards. Two slices of one card become one. Raises AllocationRefused."""
    found: dict[str, CardSlice] = {}
    for entry in claim.slices:
        card = fleet.card(entry.uuid)
        if card is None:
            raise AllocationRefused(f"card {quoted(entry.uuid)} is not among this node's cards")
        if not card.healthy:
            raise AllocationRefused(f"card {entry.uuid} takes no work: {card.problem}")
        before = found.get(entry.uuid)
        found[entry.uuid] = CardSlice(
            card,
            memory=entry.memory + (before.memory if before else 0),
            # A slice without a core limit makes the sum unlimited.
            cores=0 if before and not (entry.cores and before.cores) else entry.cores + (before.cores if before else 0),
        )
    return tuple(sorted(found.values(), key=lambda each: each.card.facts.index))
