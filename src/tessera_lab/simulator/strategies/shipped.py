"""The scheduler's own policies: the core ranks the nodes and chooses the cards.

The scheduler does not place pods without devices, but the published protocol does. A policy that looks ahead places
them by the same growth of loss; under the others they go where kube-scheduler's default scores would put them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tessera.core import policies
from tessera.core.model.arrays import Ints
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.grants import Placement
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.policies.base import Ranking
from tessera.core.policies.demand_history import DemandHistory
from tessera_lab.simulator.cluster import SimulatedCluster, make_request
from tessera_lab.simulator.strategies.base import MAX_SCORE, Floats, Strategy
from tessera_lab.simulator.traces import TraceRequest


@dataclass(slots=True)
class Known:
    """What is cached for one request under the current forecast."""

    request: PodRequest
    memo: dict[str, object]


class Shipped:
    def __init__(self, cluster: SimulatedCluster, *, node: str, device: str) -> None:
        self._cluster = cluster
        self._node, self._device = node, device
        self._history = DemandHistory()
        self._looks_ahead = policies.uses_forecast(node, device)
        self._forecast: DemandForecast | None = None
        self._known: dict[TraceRequest, Known] = {}

    def arrived(self, ask: TraceRequest) -> None:
        if self._looks_ahead:
            ledger = self._cluster.ledger
            pod = replace(make_request(ask), host=HostRequest(ask.cpu, ask.memory))
            self._history.observe(pod, ledger.arrays, ledger.rules)
            forecast = self._history.forecast(ledger.arrays)
            if forecast is not self._forecast:
                self._forecast = forecast
                self._known.clear()

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        arrays = self._cluster.arrays
        if not ask.cards and not self._looks_ahead:
            return kube_scheduler_scores(self._cluster, ask, rows)
        known = self._recall(ask)
        return policies.rank_nodes(Ranking(known.request, rows, arrays.score[rows], arrays, known.memo))

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        placement = self._cluster.evaluation(self._recall(ask).request).placement(row)
        assert isinstance(placement, Placement)  # the column fits
        return placement

    def _recall(self, ask: TraceRequest) -> Known:
        known = self._known.get(ask)
        if known is None:
            request = replace(make_request(ask), node_policy=self._node, device_policy=self._device)
            if self._looks_ahead:
                request = replace(
                    request,
                    host=HostRequest(ask.cpu, ask.memory),
                    forecast=self._forecast,
                )
            known = self._known[ask] = Known(request, {})
        return known


def kube_scheduler_scores(cluster: SimulatedCluster, ask: TraceRequest, rows: Ints) -> Floats:
    """kube-scheduler's default scores: least allocated plus balanced allocation, in whole numbers.

    Affinity, images and taints do not occur in traces.
    """
    cpu, memory = cluster.left_after(ask, rows)
    least = np.floor((np.floor(MAX_SCORE * cpu) + np.floor(MAX_SCORE * memory)) / 2.0)
    balanced: Floats = np.floor(MAX_SCORE * (1.0 - np.abs(cpu - memory)))
    return least + balanced


class RandomTieBreak:
    """A strategy whose ties are random, as in kube-scheduler, instead of decided by name."""

    def __init__(self, strategy: Strategy, dice: Random) -> None:
        self._strategy = strategy
        self._dice = dice

    def arrived(self, ask: TraceRequest) -> None:
        self._strategy.arrived(ask)

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        preference = self._strategy.preference(ask, rows)
        best = np.flatnonzero(preference == preference.max())
        chosen = np.zeros(len(rows))
        chosen[best[self._dice.randrange(len(best))]] = 1.0
        return chosen

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        return self._strategy.cards(ask, row)
