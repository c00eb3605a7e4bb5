"""How kube-scheduler decides where nobody else does: its default scores, and chance among equal nodes.

Only what matters for pods without affinity, images or taints: much left of CPU and memory, and both in balance.
"""

from __future__ import annotations

from random import Random

import numpy as np

from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.lab.simulator.cluster import Cluster
from tessera.lab.simulator.strategies.base import FULL_MARKS, Floats, Strategy
from tessera.lab.simulator.traces import Ask


def default_marks(cluster: Cluster, ask: Ask, rows: Ints) -> Floats:
    """Least allocated plus balanced allocation, in whole numbers as there."""
    cpu, memory = cluster.left_after(ask, rows)
    least = np.floor((np.floor(FULL_MARKS * cpu) + np.floor(FULL_MARKS * memory)) / 2.0)
    balanced: Floats = np.floor(FULL_MARKS * (1.0 - np.abs(cpu - memory)))
    return least + balanced


class AnyOfTheBest:
    """A strategy whose ties are decided by chance instead of by name."""

    def __init__(self, strategy: Strategy, dice: Random) -> None:
        self._strategy = strategy
        self._dice = dice

    def arrived(self, ask: Ask) -> None:
        self._strategy.arrived(ask)

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        preference = self._strategy.preference(ask, rows)
        best = np.flatnonzero(preference == preference.max())
        chosen = np.zeros(len(rows))
        chosen[best[self._dice.randrange(len(best))]] = 1.0
        return chosen

    def cards(self, ask: Ask, row: int) -> Placement:
        return self._strategy.cards(ask, row)
