"""Scores of devices and nodes: how much of them is in use.

A dimension without capacity (a card without memory, say) counts nothing instead of voiding the whole score.
"""

from __future__ import annotations

from collections.abc import Iterable

from tessera.core.cards import Card
from tessera.core.generic import cores_on
from tessera.core.requests import Request, Weights

SCALE = 10
"""HAMi's scale: a full card scores 10 per dimension"""


def _part(used: int, total: int) -> float:
    return used / total if total > 0 else 0.0


def device_score(card: Card, request: Request, weights: Weights) -> float:
    """Use of the card with the request on it. The memory that counts is the memory that would be granted."""
    device = card.device
    slots, cores, memory = device.slots, device.cores, device.memory
    # Written out, since every decision comes by here once a card.
    return SCALE * (
        weights.slot * ((card.used + 1) / slots if slots > 0 else 0.0)
        + weights.core * ((card.used_cores + cores_on(request, cores)) / cores if cores > 0 else 0.0)
        + weights.memory * ((card.used_memory + request.memory_on(memory)) / memory if memory > 0 else 0.0)
    )


def use_score(*, used: int, slots: int, used_cores: int, cores: int, used_memory: int, memory: int) -> float:
    """A node's score from its sums, over all vendors, before placing."""
    return SCALE * (_part(used, slots) + _part(used_cores, cores) + _part(used_memory, memory))


def node_score(cards: Iterable[Card]) -> float:
    """The same from the cards themselves: the plain form that the ledger's running sums are checked against."""
    cards = list(cards)
    return use_score(
        used=sum(card.used for card in cards),
        slots=sum(card.device.slots for card in cards),
        used_cores=sum(card.used_cores for card in cards),
        cores=sum(card.device.cores for card in cards),
        used_memory=sum(card.used_memory for card in cards),
        memory=sum(card.device.memory for card in cards),
    )
