"""What a strategy decides in a simulation: the order of nodes for a pod, and the cards on the chosen node.

A strategy never decides whether a pod fits: it only gets columns that fit, and chooses among cards that the core's fit
rule accepts, so that no baseline can place what the scheduler would refuse. It sees pods in the order of their arrival
and may learn from them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessera.core.fit import card_checks
from tessera.core.fit.fit import make_ask
from tessera.core.model.arrays import Ints
from tessera.core.model.grants import Placement
from tessera.core.model.node_info import Card
from tessera_lab.simulator.cluster import NVIDIA, SimulatedCluster, make_request
from tessera_lab.simulator.traces import Trace, TraceRequest

Floats = npt.NDArray[np.float64]

MAX_SCORE = 100
"""kube-scheduler's highest score; the published strategies use whole numbers up to it"""


class Strategy(Protocol):
    def arrived(self, ask: TraceRequest) -> None:
        """A pod has arrived and is placed next."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        """Scores by column: larger is better, and ties are decided by node name."""
        ...

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        """The cards on the chosen node; only for pods that request cards."""
        ...


class StrategyFactory(Protocol):
    """Creates a strategy for one run."""

    def __call__(self, cluster: SimulatedCluster, trace: Trace, dice: Random) -> Strategy: ...


def free_card_parts(cluster: SimulatedCluster, rows: Ints) -> Ints:
    """Free thousandths by card and column; -1 if there is no card."""
    arrays = cluster.arrays
    parts: Ints = np.where(arrays.kind[:, rows] >= 0, arrays.memory[:, rows] - arrays.used_memory[:, rows], -1)
    return parts


def place_on_cards(cluster: SimulatedCluster, ask: TraceRequest, row: int, key: Callable[[Card], float]) -> Placement:
    """The eligible cards with the smallest keys; ties go to the first card."""
    node = cluster.ledger.node(cluster.arrays.names[row])
    assert node is not None
    pod = make_request(ask)
    request = pod.containers[0].requests[0]
    rules = cluster.ledger.rules[NVIDIA]
    fitting, _ = card_checks.eligible(rules, make_ask(node, pod, request, node.cards, container=0))
    ordered = sorted(fitting, key=lambda pair: (key(pair[0]), pair[0].device.index))
    grants = tuple(grant for _, grant in ordered[: ask.cards])
    return Placement(node.name, {NVIDIA: (grants,)})


def place_on_tightest_cards(cluster: SimulatedCluster, ask: TraceRequest, row: int) -> Placement:
    """The eligible cards with the least free memory."""
    return place_on_cards(cluster, ask, row, lambda card: card.free_memory)
