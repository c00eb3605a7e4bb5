"""Names of MIG profiles as nvidia-smi writes them, e.g. `1g.18gb+me`.

A name says what a profile is: its compute slices, its share of the card's memory, its special engines. It never depends
on the order in which a driver numbers its profiles. Memory is counted in eighths of the card, rounded to gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tessera.host.cards import GpuInstanceProfile

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

NAMED_ALIKE_MIB = 1024
"""between names that different drivers give one profile: a whole A100 80GB is 7g.79gb or 7g.80gb"""

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


def find_profile(
    profiles: Sequence[GpuInstanceProfile], name: str, *, within_mib: float | None = None
) -> GpuInstanceProfile | None:
    """Returns the profile of this name, or else one with equal slices and engines: the one with the nearest memory, or
    with `within_mib` the only one that is so near. Allow lists may use names that no driver gives, e.g. `7g.79gb`."""
    exact = next((profile for profile in profiles if profile.name == name), None)
    shape = _SHAPE.fullmatch(name)
    if exact is not None or shape is None:
        return exact
    memory_mib = int(shape[2]) * MIB_PER_GIB
    alike = [each for each in profiles if (each.slices, each.media_extensions) == (int(shape[1]), bool(shape[3]))]
    if within_mib is None:
        return min(alike, key=lambda each: abs(each.memory_mib - memory_mib), default=None)
    near = [each for each in alike if abs(each.memory_mib - memory_mib) <= within_mib]
    return near[0] if len(near) == 1 else None


def _divided_up(number: int, by: int) -> int:
    return -(-number // max(by, 1))
