"""GPU packing and GPU clustering: use what is in use, or what has neighbours of the same size."""

from __future__ import annotations

from random import Random

import numpy as np

from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.simulator.cluster import Cluster
from tessera.simulator.strategies.base import Floats
from tessera.simulator.strategies.cards import free_parts, tightest
from tessera.simulator.traces import WHOLE, Ask, Trace


class Packing:
    """Cards in use before idle ones, idle cards of nodes in use before idle nodes; the fullest first."""

    def __init__(self, cluster: Cluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._whole = WHOLE * np.array([max(node.cards, 1) for node in trace.nodes])

    def arrived(self, ask: Ask) -> None:
        """Learns nothing."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        parts = free_parts(self._cluster, rows)
        idle = (parts == WHOLE).sum(axis=0)
        sharing = (parts >= max(ask.milli, 1)) & (parts < WHOLE)
        tight = np.where(sharing, parts, WHOLE).min(axis=0)
        in_use = np.maximum(parts, 0).sum(axis=0) < self._whole[rows]
        idle_first: Floats = in_use * 1.0 - idle / 100.0
        if not ask.cards or ask.milli == WHOLE:
            return idle_first
        tier: Floats = np.where(sharing.any(axis=0), 2.0 - tight / WHOLE, idle_first)
        return tier

    def cards(self, ask: Ask, row: int) -> Placement:
        return tightest(self._cluster, ask, row)


class Clustering:
    """Pods that ask for the same part of cards stay together."""

    def __init__(self, cluster: Cluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._packing = Packing(cluster, trace, dice)
        self._running: dict[tuple[int, int], Ints] = {}

    def arrived(self, ask: Ask) -> None:
        """Learns where pods are when it places them."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        same = self._kind(ask)[rows]
        return np.minimum(same, 99) * 10.0 + self._packing.preference(ask, rows)

    def cards(self, ask: Ask, row: int) -> Placement:
        self._kind(ask)[row] += 1
        return tightest(self._cluster, ask, row)

    def _kind(self, ask: Ask) -> Ints:
        key = ask.cards, ask.milli
        if key not in self._running:
            self._running[key] = np.zeros(len(self._cluster.arrays.names), dtype=np.int64)
        return self._running[key]
