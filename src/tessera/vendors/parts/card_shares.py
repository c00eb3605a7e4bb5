"""Parts of requests that several vendors share: a number of cards, and memory of each.

An amount that cannot be honoured is always a `BadRequest` with advice; it is never read as no request. The webhook's
defaults (missing counts, whole cards) are not applied here.
"""

from __future__ import annotations

from tessera.core.model.requests import Request
from tessera.vendors.drafts import BadRequest, Resources

MAX_MIB_OF_A_CARD = 2**24
"""MiB; 16 TiB, far above any card: a larger number was meant as bytes (`gpumem: 1Gi`)"""

LEAST_MIB_OF_A_CARD = 64
"""MiB; a CUDA context alone takes more. A smaller number was meant as GiB, or had a suffix: the apiserver turns
`gpumem: 2000m` into `2` before any webhook sees it"""

LEAST_ASK = 1
"""MiB; asks for as little as there is, for example to look at a card. HAMi's own tests ask for it"""

WHOLE_MEMORY = 100
"""per cent of a card's memory for a container that names no amount"""


def cards_asked(resources: Resources, name: str, *, unit: str = "") -> int | BadRequest | None:
    """The number of cards that a container asks for; None if it asks for none."""
    count = resources.amount(name, unit=unit)
    return count or None if isinstance(count, int) else count


def whole_cards(
    resources: Resources, name: str, *, vendor: str, memory: int = 0, cores: int = 0
) -> Request | BadRequest | None:
    """A request for a number of cards; `memory` and `cores` are charged per card."""
    count = cards_asked(resources, name, unit="cards")
    if count is None or isinstance(count, BadRequest):
        return count
    return Request(vendor=vendor, count=count, memory=memory, percent=WHOLE_MEMORY, cores=cores)


def memory_of(resources: Resources, name: str, *, mib_per_unit: int = 1) -> int | BadRequest:
    """Memory in MiB; 0 if the container names none."""
    unit = "MiB" if mib_per_unit == 1 else f"units of {mib_per_unit} MiB"
    units = resources.amount(name, most=MAX_MIB_OF_A_CARD // mib_per_unit, unit=unit)
    if isinstance(units, BadRequest):
        return units
    return (units or 0) * mib_per_unit
