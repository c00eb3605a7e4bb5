"""Which containers have to wait and whose SM limit counts, by the activity and priority of all that share a card.

0 is the highest priority. While a higher one is active on a card the others wait; limits count only while a higher or
an equal one is active beside. Activity is the time of the last kernel: HAMi-core writes `recent_kernel` only while the
limit counts, so judging by it would switch limits off for good. Old regions have nothing else. A container may write
anything into its region: it counts only on cards that it was given. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import NamedTuple, TypeVar

from tessera.monitor.regions import Region

K = TypeVar("K", bound=Hashable)

ACTIVE_S = 10
"""since the last kernel; two rounds, as long as `recent_kernel` lasts"""
WAITING = -1
"""of `recent_kernel`: launches sleep"""


class Orders(NamedTuple):
    """What a region is to say from now on."""

    recent_kernel: int
    utilization_switch: int


def steer(
    regions: Mapping[K, Region], *, now: float, granted: Mapping[K, Collection[str] | None] | None = None
) -> dict[K, Orders]:
    """For every container. `granted`: uuids of its cards; None, or not there: those that its region names."""
    granted = granted or {}
    cards = {key: _cards(region, granted.get(key)) for key, region in regions.items()}
    counted = {key: _counted_down(region.recent_kernel) for key, region in regions.items()}
    active: Counter[tuple[bytes, int]] = Counter()
    for key, region in regions.items():
        if region.priority >= 0 and _is_active(region, counted[key], now):
            active.update((card, region.priority) for card in cards[key])
    return {key: _orders(region, counted[key], cards[key], active) for key, region in regions.items()}


def _counted_down(recent_kernel: int) -> int:
    return recent_kernel - 1 if recent_kernel > 0 else recent_kernel


def _is_active(region: Region, recent_kernel: int, now: float) -> bool:
    if not region.last_kernel_time:
        return recent_kernel > 0
    # A time that is yet to come is somebody's mistake or trick.
    return abs(now - region.last_kernel_time) <= ACTIVE_S


def _orders(
    region: Region, recent_kernel: int, cards: Collection[bytes], active: Mapping[tuple[bytes, int], int]
) -> Orders:
    higher = any(card in cards and priority < region.priority for card, priority in active)
    beside = any(active.get((card, region.priority), 0) > 1 for card in cards)
    if higher:
        return Orders(min(recent_kernel, WAITING), 1)
    return Orders(max(recent_kernel, 0), int(beside))


def _cards(region: Region, granted: Collection[str] | None) -> frozenset[bytes]:
    """Each once, however often a region names it."""
    named = (device for device in region.devices if device.key)
    return frozenset(device.key for device in named if granted is None or device.uuid in granted)
