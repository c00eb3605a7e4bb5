"""Strategies that look at one number a node: chance, the first name, the least room, the smallest product."""

from __future__ import annotations

from random import Random

import numpy as np

from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.simulator.cluster import Cluster
from tessera.simulator.strategies.base import Floats
from tessera.simulator.strategies.cards import free_parts, place, tightest
from tessera.simulator.traces import WHOLE, Ask, Trace


class FirstFit:
    """The first node by name, and its first cards."""

    def __init__(self, cluster: Cluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._dice = dice
        largest = max(trace.nodes, key=lambda node: node.cpu)
        self._most_cpu = largest.cpu
        self._most_cards = WHOLE * max(node.cards for node in trace.nodes)

    def arrived(self, ask: Ask) -> None:
        """Learns nothing."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        return np.zeros(len(rows))

    def cards(self, ask: Ask, row: int) -> Placement:
        return place(self._cluster, ask, row, lambda card: card.device.index)

    def _free(self, rows: Ints) -> tuple[Floats, Floats]:
        """CPU and cards, as parts of the largest node."""
        cards = np.maximum(free_parts(self._cluster, rows), 0).sum(axis=0)
        return self._cluster.arrays.free_cpu[rows] / self._most_cpu, cards / self._most_cards


class Chance(FirstFit):
    """Any node, any cards."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        return np.array([self._dice.random() for _ in range(len(rows))])

    def cards(self, ask: Ask, row: int) -> Placement:
        return place(self._cluster, ask, row, lambda _card: self._dice.random())


class BestFit(FirstFit):
    """The node with the least left of CPU and cards, and its tightest cards."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        cpu, cards = self._free(rows)
        return -(cpu + cards)

    def cards(self, ask: Ask, row: int) -> Placement:
        return tightest(self._cluster, ask, row)


class DotProduct(FirstFit):
    """The node whose free CPU and cards, weighed by what the pod asks of each, are least."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        cpu, cards = self._free(rows)
        return -(cpu * ask.cpu / self._most_cpu + cards * ask.demand / self._most_cards)

    def cards(self, ask: Ask, row: int) -> Placement:
        return tightest(self._cluster, ask, row)
