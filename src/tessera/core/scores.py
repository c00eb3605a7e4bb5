"""Scores of devices and nodes: how much of them is in use.

A dimension without capacity (a card without memory, say) counts nothing instead of voiding the whole score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.node_info import Card
from tessera.core.requests import Request, Weights

SCALE = 10
"""HAMi's scale: a full card scores 10 per dimension"""


def device_scores(cards: Sequence[Card], request: Request, weights: Weights) -> list[float]:
    """Use of each card with the request on it. The memory that counts is the memory that would be granted."""
    scores = []
    size, taken_cores, taken_memory = (-1, -1), 0, 0
    for card in cards:
        device = card.device
        slots, cores, memory = device.slots, device.cores, device.memory
        if (cores, memory) != size:
            # Cards of a node are mostly alike.
            size, taken_cores, taken_memory = (cores, memory), request.cores_on(cores), request.memory_on(memory)
        # Written out, since every decision runs this once per card.
        scores.append(
            SCALE
            * (
                weights.slot * ((card.used + 1) / slots if slots > 0 else 0.0)
                + weights.core * ((card.used_cores + taken_cores) / cores if cores > 0 else 0.0)
                + weights.memory * ((card.used_memory + taken_memory) / memory if memory > 0 else 0.0)
            )
        )
    return scores


@dataclass(slots=True)
class UseTotals:
    """The sums over all cards of a node, of all vendors, from which its score follows."""

    used: int = 0
    slots: int = 0
    used_cores: int = 0
    cores: int = 0
    used_memory: int = 0
    memory: int = 0

    def score(self) -> float:
        return SCALE * (
            (self.used / self.slots if self.slots > 0 else 0.0)
            + (self.used_cores / self.cores if self.cores > 0 else 0.0)
            + (self.used_memory / self.memory if self.memory > 0 else 0.0)
        )


def node_score(cards: Sequence[Card]) -> float:
    """A node's score from its cards, before placing: the plain form that the running sums are checked against."""
    devices = [card.device for card in cards]
    return UseTotals(
        used=sum(card.used for card in cards),
        slots=sum(device.slots for device in devices),
        used_cores=sum(card.used_cores for card in cards),
        cores=sum(device.cores for device in devices),
        used_memory=sum(card.used_memory for card in cards),
        memory=sum(device.memory for device in devices),
    ).score()
