"""One simulated cluster under one policy: places pods, ends them, and moves others for one that does not fit.

`saturation` and `churn` say in which order pods come and go; everything else about a run is here.
"""

from __future__ import annotations

from random import Random

import numpy as np

from tessera.core.model.arrays import Bools, Ints
from tessera_lab.simulator.cluster import SimulatedCluster
from tessera_lab.simulator.defragmentation import Defragmenter
from tessera_lab.simulator.strategies import STRATEGIES
from tessera_lab.simulator.strategies.base import Strategy
from tessera_lab.simulator.traces import Trace, TraceRequest


class Simulation:
    """Begins with an empty cluster. The seed matters only to random policies."""

    def __init__(
        self, trace: Trace, policy: str, seed: int, *, defragment: bool = False, compare_plans: bool = False
    ) -> None:
        self.cluster = SimulatedCluster(trace.nodes, claims=trace.has_claims)
        self.strategy = STRATEGIES[policy](self.cluster, trace, Random(f"{policy} {seed}"))
        self.defragmenter = Defragmenter(self.cluster, may_move=defragment) if defragment or compare_plans else None

    @property
    def moves(self) -> int:
        return 0 if self.defragmenter is None else self.defragmenter.moves

    def place(self, ask: TraceRequest, within: Bools | None = None) -> tuple[int, str] | None:
        """Places a pod, on one of the columns `within` if given; its column and uid, or None if it does not fit."""
        placed = place_pod(self.cluster, self.strategy, ask, within)
        if self.defragmenter is not None:
            if placed is None and self.defragmenter.make_room(ask):
                placed = place_pod(self.cluster, self.strategy, ask)
            if placed is not None:
                self.defragmenter.add(placed[1], ask)
        return placed

    def end(self, ask: TraceRequest, row: int, uid: str) -> None:
        """Ends a pod that was placed on this column; it may have moved since."""
        if self.defragmenter is not None and ask.cards:
            row = self.defragmenter.row_of(uid)
            self.defragmenter.remove(uid)
        self.cluster.end(ask, row, uid)


def place_pod(
    cluster: SimulatedCluster, strategy: Strategy, ask: TraceRequest, within: Bools | None = None
) -> tuple[int, str] | None:
    """Places a pod where the strategy wants it; returns its column and uid, or None if it does not fit."""
    rows = cluster.fitting(ask, within)
    if not len(rows):
        return None
    row = _best(cluster, strategy, ask, rows)
    placement = strategy.cards(ask, row) if ask.cards else None
    return row, cluster.put(ask, row, placement)


def _best(cluster: SimulatedCluster, strategy: Strategy, ask: TraceRequest, rows: Ints) -> int:
    preference = strategy.preference(ask, rows)
    best = rows[preference == preference.max()]
    return int(best[np.argmin(cluster.arrays.order.places[best])])
