"""The cards of the node as all parts of the agent see them, and the devices that kubelet counts instead.

`HardwareWatch` writes one `WatchedValue[Fleet]`; the registration and every ListAndWatch stream read it. Cards that the
configuration excludes are not in it.

kubelet counts each card as many times as pods may share it, each time under another id. All replicas of a card share
its health. A replica says nothing about which part of the card a pod gets. Preferred allocation makes kubelet take
replicas of the very cards that the scheduler chose. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.host.cards import CardFacts
from tessera.wire.node_config import NodeSettings

MAX_DEVICES = 40_000
"""per node; kubelet accepts messages of up to 4 MiB, and a replica needs up to 80 bytes"""

_REPLICA = re.compile(r"([^-]*(?:-[^-]*){5})-[0-9]+", re.ASCII)
"""six dashes, the last part a number"""


@dataclass(frozen=True, slots=True)
class CardState:
    """A card and its health."""

    facts: CardFacts
    """the last known facts, if it cannot be read now"""
    problem: str = ""
    """why it takes no new work; empty if healthy"""
    mode: str = ""
    """the mode it is shared in, on a node that names modes of single cards; empty: all cards have the node's"""

    @property
    def healthy(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class Fleet:
    """All cards in order of index; uuids are unique."""

    cards: tuple[CardState, ...] = ()
    problem: str = ""
    """why the hardware cannot be read at all; the cards are then the last known ones"""

    def __iter__(self) -> Iterator[CardState]:
        return iter(self.cards)

    def in_mode(self, mode: str) -> Fleet:
        """Returns the cards that are shared in a mode, which the node uses."""
        return Fleet(tuple(card for card in self.cards if card.mode in ("", mode)), self.problem)

    def card(self, uuid: str) -> CardState | None:
        return next((card for card in self.cards if card.facts.uuid == uuid), None)


class Replica(NamedTuple):
    """One device as kubelet sees it."""

    id: str
    healthy: bool
    numa: int | None
    """None if it is unknown or not to be reported"""


def replicas(fleet: Fleet, node: NodeSettings) -> tuple[Replica, ...]:
    """Returns replicas in order of cards and numbers."""
    room = MAX_DEVICES // max(len(fleet.cards), 1)
    return tuple(
        Replica(f"{card.facts.uuid}-{number}", card.healthy, card.facts.numa if node.numa_topology else None)
        for card in fleet
        for number in range(min(_times(card, node), room))
    )


def _times(card: CardState, node: NodeSettings) -> int:
    mode = card.mode or node.mode
    if node.serves_instances and card.facts.mig_enabled:
        # Its instances are counted instead (`static_mig`).
        return 0
    if mode == "none":
        return 1
    if mode == "mig":
        # The scheduler plans with all instances that fit, so kubelet must not run out of devices first.
        return max(node.split_count, *(offer.instances for offer in card.facts.mig_profiles), 0)
    return node.split_count


def physical(device_id: str) -> str:
    """Returns the card of a device id."""
    before, found, _ = device_id.partition("::")
    if found:
        return before
    replica = _REPLICA.fullmatch(device_id)
    return replica[1] if replica else device_id


def preferred(
    wanted: Sequence[str] | None, *, available: Sequence[str], must_include: Sequence[str], count: int
) -> tuple[str, ...]:
    """Returns exactly `count` devices, or none: then kubelet chooses by itself. `wanted` are the cards of one
    container's slices in order, one per slice; None if they are unknown."""
    if wanted is None or not 0 < count <= len(wanted):
        return ()
    chosen = list(dict.fromkeys(must_include))
    # Devices that kubelet takes in any case already serve the slices of their cards.
    served = Counter(physical(each) for each in chosen)
    free: dict[str, list[str]] = {}
    for each in dict.fromkeys(available):
        if each not in chosen:
            free.setdefault(physical(each), []).append(each)
    for card in wanted[:count]:
        if served[card]:
            served[card] -= 1
        elif free.get(card):
            chosen.append(free[card].pop(0))
        else:
            return ()
    return tuple(chosen) if len(chosen) == count else ()
