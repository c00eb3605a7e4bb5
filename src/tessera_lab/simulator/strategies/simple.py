"""Strategies with one number per node: a random one, the first name, the least free, the smallest product.

Best fit and dot product use whole numbers from 0 to 100 relative to the largest node, as published: nearly equal nodes
are equal, and ties are decided by name.
"""

from __future__ import annotations

from random import Random

import numpy as np

from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera_lab.simulator.cluster import SimulatedCluster
from tessera_lab.simulator.strategies.base import (
    MAX_SCORE,
    Floats,
    free_card_parts,
    place_on_cards,
    place_on_tightest_cards,
)
from tessera_lab.simulator.traces import WHOLE, Trace, TraceRequest


class FirstFit:
    """The first node by name, and its first cards."""

    def __init__(self, cluster: SimulatedCluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._dice = dice
        self._most_cpu = max(node.cpu for node in trace.nodes)
        self._most_cards = WHOLE * max(node.cards for node in trace.nodes)

    def arrived(self, ask: TraceRequest) -> None:
        """Learns nothing."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        return np.zeros(len(rows))

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        return place_on_cards(self._cluster, ask, row, lambda card: card.device.index)

    def _free(self, rows: Ints) -> tuple[Floats, Floats]:
        """Free CPU and cards, as shares of the largest node."""
        cards = np.maximum(free_card_parts(self._cluster, rows), 0).sum(axis=0)
        return self._cluster.arrays.free_cpu[rows] / self._most_cpu, cards / self._most_cards

    def _asked(self, ask: TraceRequest) -> tuple[float, float]:
        return ask.cpu / self._most_cpu, ask.demand / self._most_cards


class RandomChoice(FirstFit):
    """Any node and any cards."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        return np.array([self._dice.random() for _ in range(len(rows))])

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        return place_on_cards(self._cluster, ask, row, lambda _card: self._dice.random())


class BestFit(FirstFit):
    """The node with the least CPU and cards left, and its tightest cards."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        (cpu, cards), (asked_cpu, asked_cards) = self._free(rows), self._asked(ask)
        left = (cpu - asked_cpu + cards - asked_cards) / 2.0
        return np.floor(MAX_SCORE * (1.0 - left))

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        return place_on_tightest_cards(self._cluster, ask, row)


class DotProduct(BestFit):
    """The node with the smallest product of free and requested CPU and cards, and its tightest cards."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        (cpu, cards), (asked_cpu, asked_cards) = self._free(rows), self._asked(ask)
        product = (cpu * asked_cpu + cards * asked_cards) / 2.0
        return np.floor(MAX_SCORE * (1.0 - product))
