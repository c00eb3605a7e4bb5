"""A container's slices as it will count them: one for every card, in the order of the cards' index.

CUDA and NVML enumerate the cards inside a container by their place on the node, whatever order the pod's annotation
has, so limits are numbered in that order. Cards that are not here or not well are refused.
"""

from __future__ import annotations

from typing import NamedTuple

from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.claims import Claim
from tessera.node.modes.base import Refused
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
    """In the container's order of cards. Two slices of one card are one device there, with the room of both."""
    found: dict[str, CardSlice] = {}
    for entry in claim.slices:
        card = fleet.card(entry.uuid)
        if card is None:
            raise Refused(f"card {quoted(entry.uuid)} is not among this node's cards")
        if not card.healthy:
            raise Refused(f"card {entry.uuid} takes no work: {card.problem}")
        before = found.get(entry.uuid)
        found[entry.uuid] = CardSlice(
            card,
            memory=entry.memory + (before.memory if before else 0),
            cores=_together(entry.cores, before.cores) if before else entry.cores,
        )
    return tuple(sorted(found.values(), key=lambda each: each.card.facts.index))


def _together(one: int, other: int) -> int:
    return one + other if one and other else 0
