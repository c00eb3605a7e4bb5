"""Which kind of instance a reservation means: a profile by its name among those that the card offers.

Names count as the driver writes them, `+me` included, so that variants of one slice count are never taken for each
other. Names that older allow lists made up (`7g.79gb`) are understood by slices and memory, where only one kind fits.
"""

from __future__ import annotations

import re

from tessera.core.devices import MigSlot
from tessera.node.inventory.cards import CardFacts, MigOffer
from tessera.node.modes.base import Refused
from tessera.wire.quotes import quoted

_NAME = re.compile(r"([0-9]{1,2})g\.([0-9]{1,5})gb(\+me)?", re.ASCII)
GIB_APART = 1
"""between a made-up name and the driver's: 79 and 80 for a whole A100 80GB"""
MIB_PER_GIB = 1024


def offer_for(facts: CardFacts, slot: MigSlot) -> MigOffer:
    """The kind of instance to make for a reservation. Raises Refused where it cannot be there."""
    offer = _named(facts, slot)
    if offer is None:
        known = ", ".join(each.name for each in facts.mig_offers) or "none"
        raise Refused(f"card {facts.uuid} offers no MIG profile {quoted(slot.profile)}; its profiles: {known}")
    if slot.placement not in offer.placements:
        raise Refused(
            f"card {facts.uuid} has no place for MIG profile {offer.name} at slice {slot.placement.start}"
            f" over {slot.placement.size} slices"
        )
    return offer


def _named(facts: CardFacts, slot: MigSlot) -> MigOffer | None:
    exact = [each for each in facts.mig_offers if each.name == slot.profile]
    if exact:
        return exact[0]
    parts = _NAME.fullmatch(slot.profile)
    if parts is None:
        return None
    slices, gib, media = int(parts[1]), int(parts[2]), parts[3] is not None
    alike = [
        each
        for each in facts.mig_offers
        if (each.slices, each.media_extensions) == (slices, media)
        and abs(each.memory_mib - gib * MIB_PER_GIB) <= GIB_APART * MIB_PER_GIB
    ]
    return alike[0] if len(alike) == 1 else None
