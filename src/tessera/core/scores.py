"""Scores of devices and nodes: how much of them is in use.

A dimension without capacity (a card without memory, say) counts nothing instead of voiding the whole score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.core.card_checks import cores_on
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
            size, taken_cores, taken_memory = (cores, memory), cores_on(request, cores), request.memory_on(memory)
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


def use_score(*, used: int, slots: int, used_cores: int, cores: int, used_memory: int, memory: int) -> float:
    """A node's score from its sums, over all vendors, before placing."""
    return SCALE * (
        (used / slots if slots > 0 else 0.0)
        + (used_cores / cores if cores > 0 else 0.0)
        + (used_memory / memory if memory > 0 else 0.0)
    )


def node_score(cards: Iterable[Card]) -> float:
    """The same from the cards themselves: the plain form that the ledger's running sums are checked against."""
    used = slots = used_cores = cores = used_memory = memory = 0
    for card in cards:
        device = card.device
        used, slots = used + card.used, slots + device.slots
        used_cores, cores = used_cores + card.used_cores, cores + device.cores
        used_memory, memory = used_memory + card.used_memory, memory + device.memory
    return use_score(used=used, slots=slots, used_cores=used_cores, cores=cores, used_memory=used_memory, memory=memory)
