"""Policies as the scheduler has them: the core ranks the nodes and chooses the cards.

The scheduler does not place pods without devices. Here a policy that looks ahead places them by the same growth of
loss, as every policy of the published protocol places all pods; under the others they go where kube-scheduler's
default scoring would put them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.core import policies
from tessera.core.arrays import Ints
from tessera.core.demand_history import DemandHistory
from tessera.core.grants import Placement
from tessera.core.policies.base import Ranking
from tessera.core.requests import HostRequest, PodRequest
from tessera.lab.simulator.cluster import Cluster, request_of
from tessera.lab.simulator.strategies.base import Floats
from tessera.lab.simulator.strategies.kube import default_marks
from tessera.lab.simulator.traces import Ask


@dataclass(slots=True)
class Known:
    """What is remembered of one ask under the current forecast."""

    request: PodRequest
    memo: dict[str, object]


class Shipped:
    def __init__(self, cluster: Cluster, *, node: str, device: str) -> None:
        self._cluster = cluster
        self._node, self._device = node, device
        self._history = DemandHistory()
        self._looks_ahead = policies.uses_forecast(node, device)
        self._known: dict[Ask, Known] = {}

    def arrived(self, ask: Ask) -> None:
        if self._looks_ahead:
            ledger = self._cluster.ledger
            pod = replace(request_of(ask), host=HostRequest(ask.cpu, ask.memory))
            if self._history.observe(pod, ledger.arrays, ledger.rules):
                self._known.clear()

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        arrays = self._cluster.arrays
        if not ask.cards and not self._looks_ahead:
            return default_marks(self._cluster, ask, rows)
        known = self._recall(ask)
        return policies.rank_nodes(Ranking(known.request, rows, arrays.score[rows], arrays, known.memo))

    def cards(self, ask: Ask, row: int) -> Placement:
        placement = self._cluster.evaluation(self._recall(ask).request).placement(row)
        assert isinstance(placement, Placement)  # the column fits
        return placement

    def _recall(self, ask: Ask) -> Known:
        known = self._known.get(ask)
        if known is None:
            request = replace(request_of(ask), node_policy=self._node, device_policy=self._device)
            if self._looks_ahead:
                request = replace(
                    request,
                    host=HostRequest(ask.cpu, ask.memory),
                    forecast=self._history.forecast(self._cluster.ledger.arrays),
                )
            known = self._known[ask] = Known(request, {})
        return known
