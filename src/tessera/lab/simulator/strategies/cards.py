"""Free parts of cards in thousandths, and grants for cards that a strategy chose by itself.

The cards a strategy chooses from are those the core's fit rule found eligible, so that a baseline cannot place what the
scheduler would refuse.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.core import card_checks
from tessera.core.arrays import Ints
from tessera.core.fit import make_ask
from tessera.core.grants import Placement
from tessera.core.node_info import Card
from tessera.lab.simulator.cluster import NVIDIA, Cluster, request_of
from tessera.lab.simulator.traces import Ask


def free_parts(cluster: Cluster, rows: Ints) -> Ints:
    """Thousandths free, by card and column; -1 where there is no card."""
    arrays = cluster.arrays
    parts: Ints = np.where(arrays.kind[:, rows] >= 0, arrays.memory[:, rows] - arrays.used_memory[:, rows], -1)
    return parts


def place(cluster: Cluster, ask: Ask, row: int, key: Callable[[Card], float]) -> Placement:
    """The eligible cards with the smallest keys, earlier cards first where keys are equal."""
    node = cluster.ledger.node(cluster.arrays.names[row])
    assert node is not None
    pod = request_of(ask)
    request = pod.containers[0].requests[0]
    rules = cluster.ledger.rules[NVIDIA]
    fitting, _ = card_checks.eligible(rules, make_ask(node, pod, request, node.cards, container=0))
    ordered = sorted(fitting, key=lambda pair: (key(pair[0]), pair[0].device.index))
    grants = tuple(grant for _, grant in ordered[: ask.cards])
    return Placement(node.name, {NVIDIA: (grants,)})


def tightest(cluster: Cluster, ask: Ask, row: int) -> Placement:
    """The cards with the least room."""
    return place(cluster, ask, row, lambda card: card.free_memory)
