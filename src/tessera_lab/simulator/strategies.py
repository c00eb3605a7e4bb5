"""What a strategy decides in a simulation: the order of nodes for a pod, and the cards on the chosen node.

A strategy never decides whether a pod fits: it only gets columns that fit, and chooses among cards that the core's fit
rule accepts, so that no baseline can place what the scheduler would refuse. It sees pods in the order of their arrival
and may learn from them. Here are the published baselines with one number per node, whose scores are whole numbers, so
that nearly equal nodes are equal; and the scheduler's own policies, for which the core ranks nodes and chooses cards.

The scheduler does not place pods without devices, but the published protocol does. A policy that looks ahead places
them by the same growth of loss; under the others they go where kube-scheduler's default scores would put them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

import numpy as np

from tessera.core import policies
from tessera.core.fit import card_checks
from tessera.core.fit.fit import make_ask
from tessera.core.model.arrays import Ints
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.grants import Placement
from tessera.core.model.node_info import Card
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.policies.base import Ranking
from tessera.core.policies.demand_history import DemandHistory
from tessera_lab.simulator.cluster import NVIDIA, Floats, SimulatedCluster, make_request
from tessera_lab.simulator.traces import WHOLE, Trace, TraceRequest

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


class BestFit(FirstFit):
    """The node with the least CPU and cards left, and its tightest cards."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        (cpu, cards), (asked_cpu, asked_cards) = self._free(rows), self._asked(ask)
        left = (cpu - asked_cpu + cards - asked_cards) / 2.0
        return np.floor(MAX_SCORE * (1.0 - left))

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        return place_on_tightest_cards(self._cluster, ask, row)


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
