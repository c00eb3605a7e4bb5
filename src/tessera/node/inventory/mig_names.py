"""Names of MIG profiles as nvidia-smi writes them, e.g. `1g.18gb+me`.

A name is made of what a profile is: compute slices, memory as a share of the card, special engines. Never of the order
in which a driver numbers its profiles. A card's memory is cut into eighths; gigabytes are rounded from those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MIB_PER_GIB = 1024
MEMORY_SLICES = 8
"""equal parts that names count a card's memory in, whatever the card"""

ATTRIBUTES: Mapping[int, str] = {
    0x7: "+me",
    0x8: "+me",
    0xA: "+gfx",
    0xB: "+gfx",
    0xC: "+gfx",
    0xD: "-me",
    0xE: "-me",
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}
"""by NVML's enumeration of profiles; the others have no special engines"""

_NAME = re.compile(r"(?:MIG )?([1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z.]{1,16})*)\Z", re.ASCII)


def profile_name(*, slices: int, memory_mib: int, card_mib: int, attribute: str = "") -> str:
    """The name of a profile with so much memory on a card with so much."""
    eighths = min(_divided_up(MEMORY_SLICES * memory_mib, card_mib), MEMORY_SLICES)
    card_gib = _divided_up(card_mib, MIB_PER_GIB)
    # Half a gigabyte counts as a whole one.
    gigabytes = (2 * eighths * card_gib + MEMORY_SLICES) // (2 * MEMORY_SLICES)
    return f"{slices}g.{gigabytes}gb{attribute}"


def name_from_driver(text: str) -> str | None:
    """The name that a driver gave, e.g. `MIG 1g.18gb`; None where it gave none that can be used."""
    found = _NAME.match(text)
    return found.group(1) if found else None


def has_media_extensions(name: str) -> bool:
    return "+me" in name


def _divided_up(number: int, by: int) -> int:
    return -(-number // max(by, 1))
