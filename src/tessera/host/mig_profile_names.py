"""Names of MIG profiles as nvidia-smi writes them, e.g. `1g.18gb+me`.

A name says what a profile is: its compute slices, its share of the card's memory, its special engines. It never depends
on the order in which a driver numbers its profiles. Memory is counted in eighths of the card, rounded to gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

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

_SHAPE = re.compile(r"([0-9]{1,3})g\.([0-9]{1,6})gb(\+me)?", re.ASCII)


def profile_name(*, slices: int, memory_mib: int, card_mib: int, attribute: str = "") -> str:
    """Returns the name of a profile with `memory_mib` on a card with `card_mib`."""
    eighths = min(_divided_up(MEMORY_SLICES * memory_mib, card_mib), MEMORY_SLICES)
    card_gib = _divided_up(card_mib, MIB_PER_GIB)
    # Half a gigabyte rounds up.
    gigabytes = (2 * eighths * card_gib + MEMORY_SLICES) // (2 * MEMORY_SLICES)
    return f"{slices}g.{gigabytes}gb{attribute}"


def name_from_driver(text: str) -> str | None:
    """Returns the name in a driver's text, e.g. `MIG 1g.18gb`; None if the text has another form."""
    found = _NAME.match(text)
    return found.group(1) if found else None


def has_media_extensions(name: str) -> bool:
    return "+me" in name


class ProfileShape(NamedTuple):
    """What a name says about a profile."""

    slices: int
    memory_mib: int
    media_extensions: bool


def parse_profile_name(name: str) -> ProfileShape | None:
    """Returns None for a name of another form. Allow lists may use names that no driver gives, e.g. `7g.79gb`."""
    found = _SHAPE.fullmatch(name)
    return None if found is None else ProfileShape(int(found[1]), int(found[2]) * MIB_PER_GIB, found[3] is not None)


def _divided_up(number: int, by: int) -> int:
    return -(-number // max(by, 1))
