"""The devices that kubelet counts: every card as many times as pods may share it, each time under another id.

All replicas of a card share its health. Pure; a replica says nothing about which part of the card a pod gets.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tessera.node.fleet import CardState, Fleet
from tessera.wire.node_config import NodeSettings

MOST_DEVICES = 40_000
"""on a node; kubelet takes messages of at most 4 MiB, and a replica needs up to 80 bytes"""

_REPLICA = re.compile(r"([^-]*(?:-[^-]*){5})-[0-9]+", re.ASCII)
"""six dashes, the last part a number"""


class Replica(NamedTuple):
    """One device as kubelet sees it."""

    id: str
    healthy: bool
    numa: int | None
    """None where it is unknown or not to be told"""


def replicas(fleet: Fleet, node: NodeSettings) -> tuple[Replica, ...]:
    """In order of cards and numbers."""
    room = MOST_DEVICES // max(len(fleet.cards), 1)
    return tuple(
        Replica(f"{card.facts.uuid}-{number}", card.healthy, card.facts.numa if node.numa_topology else None)
        for card in fleet
        for number in range(min(_times(card, node), room))
    )


def _times(card: CardState, node: NodeSettings) -> int:
    if node.mig_strategy != "none" and node.mode != "mig" and card.facts.mig_enabled:
        # Its instances are counted instead (`static_mig`).
        return 0
    if node.mode == "none":
        return 1
    if node.mode == "mig":
        # The scheduler counts on all instances that fit, so kubelet must not run out of devices before that.
        return max(node.split_count, *(offer.instances for offer in card.facts.mig_offers), 0)
    return node.split_count


def physical(device_id: str) -> str:
    """The card that a device id means."""
    before, found, _ = device_id.partition("::")
    if found:
        return before
    replica = _REPLICA.fullmatch(device_id)
    return replica[1] if replica else device_id
