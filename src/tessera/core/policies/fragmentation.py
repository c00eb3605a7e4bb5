"""fragmentation: put a pod where what is left over is worth most to the pods to come.

A pod goes to the node whose loss (`fragmentation_loss`) grows least, and there to the cards whose waste
(`fragmentation_waste`) grows least; equal growth is decided by node name. The growth on a node is remembered by shape
and worked out again only when the node changes.

Only an order: every node that fits stays a candidate. MIG cards are weighed by their free memory and cores; where an
instance can sit is fitting's business.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.core.arrays import CardArrays
from tessera.core.cards import Card
from tessera.core.outlook import GRAIN, PRIOR
from tessera.core.policies.base import Floats, Policy, Ranking
from tessera.core.policies.fragmentation_loss import DIGITS, growth
from tessera.core.policies.fragmentation_waste import waste_table
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request


def rank(ranking: Ranking) -> Floats:
    """Larger is better: the growth of the loss, below zero."""
    known = ranking.memo.get(NAME)
    if not isinstance(known, Remembered):
        known = ranking.memo[NAME] = Remembered(ranking.pod)
    preference: Floats = -known.growth(ranking.arrays)[ranking.rows]
    return preference


def card_score(pod: PodRequest, request: Request) -> Callable[[Card], float]:
    """By card: how much its waste grows with the request on it."""
    table = waste_table(pod.outlook or PRIOR)

    def growth(card: Card) -> float:
        device = card.device
        cores = _cores_asked(request, device.cores)
        before = _steps(card.free_memory, device.memory), _steps(card.free_cores, device.cores)
        left_memory, left_cores = card.free_memory - request.memory_on(device.memory), card.free_cores - cores
        after = _steps(left_memory, device.memory), _steps(left_cores, device.cores)
        return round(float(table[after] - table[before]), DIGITS)

    return growth


def _cores_asked(request: Request, total: int) -> int:
    return total if request.cores >= min(WHOLE_CARD_CORES, total) else request.cores


def _steps(free: int, total: int) -> int:
    return max(free, 0) * GRAIN // total if total > 0 else GRAIN


NAME = "fragmentation"
POLICY = Policy(NAME, cards=lambda _card, score: score, nodes=rank, card_score=card_score, looks_ahead=True)


class Remembered:
    """One shape's growth on every column, kept up to date with the arrays' log."""

    def __init__(self, pod: PodRequest) -> None:
        self._pod = pod
        self._epoch = -1
        self._seen = 0
        self._growth: Floats = np.zeros(0)

    def growth(self, arrays: CardArrays) -> Floats:
        dirty = arrays.changed_since(self._seen) if self._epoch == arrays.epoch else None
        if dirty is None:
            columns = np.arange(len(arrays.names), dtype=np.int64)
            self._growth = growth(arrays, self._pod, columns)
        elif dirty:
            columns = np.array(dirty, dtype=np.int64)
            self._growth[columns] = growth(arrays, self._pod, columns)
        self._seen, self._epoch = arrays.now, arrays.epoch
        return self._growth
