"""Decides which containers must wait and whose SM limit applies, by activity and priority on each card.

0 is the highest priority. While a container with a higher priority is active on a card, the others wait. A limit
applies only while a container with a higher or equal priority is active as well. Activity is the time of the last
kernel: HAMi-core writes `recent_kernel` only while the limit applies, so judging by it would switch limits off for
good. Old regions have nothing else. A container may write anything into its region; it counts only on cards it was
given. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import NamedTuple, TypeVar

from tessera.monitor.regions import Region

K = TypeVar("K", bound=Hashable)

ACTIVE_S = 10
"""since the last kernel: two rounds, as long as `recent_kernel` lasts"""
WAITING = -1
"""value of `recent_kernel` that suspends launches"""


class Orders(NamedTuple):
    """New values for a region."""

    recent_kernel: int
    utilization_switch: int


def steer(
    regions: Mapping[K, Region], *, now: float, granted: Mapping[K, Collection[str] | None] | None = None
) -> dict[K, Orders]:
    """Returns orders for every container. `granted` are the uuids of its cards; if None or missing, those in its region
    count."""
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
    # A time in the future is a mistake or a trick.
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
    """Returns each card once, however often a region names it."""
    named = (device for device in region.devices if device.key)
    return frozenset(device.key for device in named if granted is None or device.uuid in granted)
