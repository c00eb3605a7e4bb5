"""Choosing MIG instances: the smallest profile that holds the memory, at a place that leaves the card usable.

Small and half-card profiles are put at the end, the others at the start, so that large profiles keep aligned room.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.devices import Device, MigPlacement, MigProfile, MigSlot

FROM_THE_END = ("1g.", "3g.")


def choose(device: Device, taken: Sequence[MigSlot], memory: int) -> tuple[MigProfile, MigSlot] | None:
    """The profile and place for `memory` MiB beside the instances already `taken`, or None."""
    occupied = [slot.placement for slot in taken]
    for profile in sorted(device.mig_profiles, key=lambda p: (p.memory, p.slices)):
        if profile.memory < memory:
            continue
        place = _free_place(profile, occupied)
        if place is not None:
            return profile, MigSlot(profile.name, place)
    return None


def _free_place(profile: MigProfile, occupied: Sequence[MigPlacement]) -> MigPlacement | None:
    backwards = profile.name.startswith(FROM_THE_END)
    for place in sorted(profile.placements, key=lambda p: p.start, reverse=backwards):
        if not any(place.overlaps(other) for other in occupied):
            return place
    return None
