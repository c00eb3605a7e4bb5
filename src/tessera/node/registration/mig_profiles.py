"""Which kinds of MIG instances a card registers: those that it can make and that the configuration allows.

Profiles are found by what the card itself says, never by a table of models. What is registered always has the name that
the driver uses, also where an allow list of another age writes it differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tessera.core.devices import MigProfile
from tessera.node.inventory.cards import MigOffer
from tessera.node.settings import MigAllowance

NAMED_ALIKE_MIB = 1024
"""between names of the same profile by different drivers: the whole A100 80GB is 7g.79gb or 7g.80gb"""

_NAME = re.compile(r"([0-9]{1,3})g\.([0-9]{1,6})gb(\+me)?")
_WORD = re.compile(r"[^\s-]+")
_FAMILY = re.compile(r"[^\s-]*[0-9][^\s-]*")
"""the first word of a model with a number in it, e.g. `H100`"""


def allowed_offers(
    offers: Sequence[MigOffer], *, model: str, allowances: Sequence[MigAllowance]
) -> tuple[MigOffer, ...]:
    """In the card's own order. `model` is the type that the card registers."""
    usable = [offer for offer in offers if offer.placements]
    if not allowances:
        return tuple(offer for offer in usable if not _repeats(offer, usable))
    allowance = _allowance(usable, model=model, allowances=allowances)
    if allowance is None:
        return ()
    chosen = {offer.name for name in allowance.profiles if (offer := _named(name, usable)) is not None}
    return tuple(offer for offer in usable if offer.name in chosen)


def profile_of(offer: MigOffer, offers: Sequence[MigOffer]) -> MigProfile:
    """As the scheduler sees it; `offers` are all of the card."""
    most = max(each.multiprocessors for each in offers)
    return MigProfile(
        name=offer.name,
        memory=offer.memory_mib,
        cores=-(-100 * offer.multiprocessors // most) if most else 100,
        slices=offer.slices,
        placements=offer.placements,
    )


def _repeats(offer: MigOffer, offers: Sequence[MigOffer]) -> bool:
    """Whether a kind differs from another one only by its media engines, which no pod can ask for."""
    return offer.media_extensions and any(
        not other.media_extensions and (other.slices, other.memory_mib) == (offer.slices, offer.memory_mib)
        for other in offers
    )


def _allowance(offers: Sequence[MigOffer], *, model: str, allowances: Sequence[MigAllowance]) -> MigAllowance | None:
    """The first whose models are part of the model. HAMi's own list names models that no driver reports: so if there is
    none, the first of the same family of cards whose profiles this very card offers."""
    for allowance in allowances:
        if any(each in model for each in allowance.models):
            return allowance
    words = set(_WORD.findall(model))
    for allowance in allowances:
        families = {found[0] for each in allowance.models if (found := _FAMILY.search(each)) is not None}
        if families & words and all(_named(name, offers, within=NAMED_ALIKE_MIB) for name in allowance.profiles):
            return allowance
    return None


def _named(name: str, offers: Sequence[MigOffer], *, within: float = math.inf) -> MigOffer | None:
    """The kind of this name, or else the one with as many slices whose memory comes nearest, `within` so many MiB."""
    for offer in offers:
        if offer.name == name:
            return offer
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    slices, memory, media = int(found[1]), int(found[2]) * 1024, bool(found[3])
    alike = [
        (abs(offer.memory_mib - memory), position)
        for position, offer in enumerate(offers)
        if (offer.slices, offer.media_extensions) == (slices, media)
    ]
    apart, position = min(alike, default=(math.inf, 0))
    return offers[position] if apart <= within and alike else None
