"""What a strategy decides in a simulation: the order of nodes for a pod, and the cards on the chosen one.

Whether a pod fits is never its business: it is asked only about columns that fit. A strategy sees the pods in the order
of their arrival and may learn from them.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.lab.simulator.cluster import Cluster
from tessera.lab.simulator.traces import Ask, Trace

Floats = npt.NDArray[np.float64]

FULL_MARKS = 100
"""the best score of a node in kube-scheduler, which the published strategies score with in whole numbers"""


class Strategy(Protocol):
    def arrived(self, ask: Ask) -> None:
        """A pod has come; it is placed next."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        """By column, larger is better; equal ones are decided by node name."""
        ...

    def cards(self, ask: Ask, row: int) -> Placement:
        """The cards on the chosen node; only for pods that ask for some."""
        ...


class Maker(Protocol):
    """Makes a strategy for one run."""

    def __call__(self, cluster: Cluster, trace: Trace, dice: Random) -> Strategy: ...
