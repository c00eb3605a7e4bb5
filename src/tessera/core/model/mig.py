"""Chooses MIG instances: the smallest profile that holds the memory, at a place that leaves the card usable.

Small and half-card profiles are put at the end, the others at the start, so that large profiles keep aligned room.
A policy that expects certain instances may weigh the places instead, but never chooses the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tessera.core.model.devices import Device, MigPlacement, MigProfile, MigSlot

FROM_THE_END = ("1g.", "3g.")

MAX_SLICES = 10
"""memory slices of a card whose places can be weighed; the largest cards sold have 8, and each one doubles the table"""

PlaceLoss = Callable[[Sequence[MigPlacement]], float]
"""what a card loses when these places are taken; smaller is better"""


def choose(
    device: Device,
    taken: Sequence[MigSlot],
    memory: int,
    *,
    loss: PlaceLoss | None = None,
    profiles: Sequence[MigProfile] | None = None,
    only: Collection[MigSlot] | None = None,
) -> tuple[MigProfile, MigSlot] | None:
    """The profile and place for `memory` MiB beside the instances already `taken`, or None. Among some `profiles`, or
    all of the card's; `only` some instances, or any."""
    occupied = [slot.placement for slot in taken]
    for profile in by_size(device.mig_profiles if profiles is None else profiles):
        if profile.memory < memory:
            continue
        places = free_places(profile, occupied)
        if only is not None:
            places = (place for place in places if MigSlot(profile.name, place) in only)
        first = next(places, None)
        if first is not None:
            place = first if loss is None else min((first, *places), key=lambda place: loss([*occupied, place]))
            return profile, MigSlot(profile.name, place)
    return None


def bits(places: Iterable[MigPlacement]) -> int:
    """The memory slices of these places, one bit each, as far as `MAX_SLICES`."""
    found = 0
    for place in places:
        for position in range(place.start, min(place.start + place.size, MAX_SLICES)):
            found |= 1 << position
    return found


def smallest_places(profiles: Iterable[MigProfile]) -> tuple[int, ...]:
    """The slices of each place for one of these profiles, one bit each, without places that include another one."""
    places = {bits([place]) for profile in profiles for place in profile.placements}
    return tuple(sorted(each for each in places if not any(other != each and other & ~each == 0 for other in places)))


def place_choices(places: Sequence[int], *, blocked: int, most: int) -> Iterator[tuple[int, int]]:
    """Every choice of one to `most` of these places that overlap neither each other nor what is blocked: their number,
    and their slices."""
    for position, place in enumerate(places):
        if not place & blocked:
            yield 1, place
            if most > 1:
                rest = place_choices(places[position + 1 :], blocked=blocked | place, most=most - 1)
                yield from ((number + 1, slices | place) for number, slices in rest)


def by_size(profiles: Sequence[MigProfile]) -> list[MigProfile]:
    """In the order in which they are tried."""
    return sorted(profiles, key=lambda profile: (profile.memory, profile.slices))


def free_places(profile: MigProfile, occupied: Sequence[MigPlacement]) -> Iterator[MigPlacement]:
    """In the order in which they are taken."""
    backwards = profile.name.startswith(FROM_THE_END)
    for place in sorted(profile.placements, key=lambda p: p.start, reverse=backwards):
        if not any(place.overlaps(other) for other in occupied):
            yield place
