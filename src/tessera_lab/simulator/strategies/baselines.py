"""Published baselines with one number per node: random, first fit, best fit, dot product, GPU packing and clustering.

Scores are whole numbers, as published: nearly equal nodes are equal, and ties are decided by name. Packing and
clustering look only at cards and score in bands: the band says what is used, the number inside how full it is.
"""

from __future__ import annotations

from random import Random

import numpy as np

from tessera.core.model.arrays import Ints
from tessera.core.model.grants import Placement
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


NODE_IN_USE = MAX_SCORE // 2
"""top of the band of nodes with cards in use, none of which fits the pod"""
NODE_IDLE = MAX_SCORE // 3
"""top of the band of idle nodes, and the floor of the band above"""
QUARTER = MAX_SCORE // 4
"""clustering has four bands"""
PER_MARK = WHOLE // 10
"""thousandths of a card that cost a shared card one mark"""


class GpuPacking:
    """Cards in use before idle ones, idle cards of nodes in use before idle nodes; then the fullest or the smallest."""

    def __init__(self, cluster: SimulatedCluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster

    def arrived(self, ask: TraceRequest) -> None:
        """Learns nothing."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        if not ask.cards:
            return np.zeros(len(rows))
        parts = free_card_parts(self._cluster, rows)
        idle = (parts == WHOLE).sum(axis=0)
        shared = (parts >= ask.milli) & (parts < WHOLE)
        tight = np.where(shared, parts, WHOLE).min(axis=0)
        on_shared = MAX_SCORE - tight // PER_MARK
        on_idle = max(NODE_IN_USE - ask.cards, NODE_IDLE)
        nodes: Floats = np.where(shared.any(axis=0), on_shared, on_idle).astype(np.float64)
        return np.where(idle == (parts >= 0).sum(axis=0), NODE_IDLE - idle, nodes)

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        return place_on_tightest_cards(self._cluster, ask, row)


class GpuClustering:
    """Nodes that run only pods of the same kind first, then mixed nodes with that kind, then idle nodes; fullest first.

    The kind is the number of whole cards that a pod requests, or that it requests part of one.
    """

    def __init__(self, cluster: SimulatedCluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._most_cards = WHOLE * max(node.cards for node in trace.nodes)
        self._running: dict[int, Ints] = {}

    def arrived(self, ask: TraceRequest) -> None:
        """Nothing to learn here: `cards` counts the pods that it places."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        if not ask.cards:
            return np.zeros(len(rows))
        free = np.maximum(free_card_parts(self._cluster, rows), 0).sum(axis=0)
        same = self._kind(ask)[rows] > 0
        kinds = np.array([where[rows] > 0 for where in self._running.values()]).sum(axis=0)
        band = np.where(same, np.where(kinds == 1, 3, 2), np.where(kinds == 0, 1, 0))
        marks: Floats = (QUARTER * (self._most_cards - free) // self._most_cards + band * QUARTER).astype(np.float64)
        return marks

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        self._kind(ask)[row] += 1
        return place_on_tightest_cards(self._cluster, ask, row)

    def _kind(self, ask: TraceRequest) -> Ints:
        key = ask.cards if ask.milli == WHOLE else 0
        if key not in self._running:
            self._running[key] = np.zeros(len(self._cluster.arrays.names), dtype=np.int64)
        return self._running[key]
