"""The published saturation protocol: pods arrive one by one, none leave, none are tried again.

The figure is the part of all cards that is allocated when the pods that arrived ask for so much of the capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from tessera.core.arrays import Bools, Ints
from tessera.lab.simulator.arrivals import arriving
from tessera.lab.simulator.cluster import Cluster
from tessera.lab.simulator.strategies import STRATEGIES
from tessera.lab.simulator.strategies.base import Strategy
from tessera.lab.simulator.traces import Ask, Trace, TraceNode

STEPS = 100
"""points of a curve for arrivals of 100 %"""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run varies beside policy and seed."""

    until: float = 1.3
    shuffle_nodes: bool = False
    """whether nodes get other names by the seed, which are what decides ties"""
    sample: float = 1.0
    """part of the nodes that each pod is offered, as kube-scheduler does in large clusters"""


PUBLISHED = Options()


@dataclass(frozen=True, slots=True)
class Result:
    """One run: per cent allocated by per cent arrived, and who was refused."""

    curve: tuple[float, ...]
    """at arrivals of 0, 1, 2 ... per cent"""
    arrived: tuple[tuple[int, int], ...]
    """pods by the number of cards they ask for"""
    refused: tuple[tuple[int, int], ...]

    def at(self, arrival: float) -> float:
        return self.curve[min(round(arrival * STEPS), len(self.curve) - 1)]


def saturate(trace: Trace, policy: str, seed: int, options: Options = PUBLISHED) -> Result:
    """One run from an empty cluster."""
    dice = Random(f"{policy} {seed}")
    cluster = Cluster(_renamed(trace.nodes, seed) if options.shuffle_nodes else trace.nodes)
    strategy = STRATEGIES[policy](cluster, trace, dice)
    sampling = np.random.default_rng(seed)
    capacity = trace.capacity
    curve: list[float] = []
    arrived: dict[int, int] = {}
    refused: dict[int, int] = {}
    asked = 0
    for pod in arriving(trace, seed, until=options.until):
        ask = pod.ask
        strategy.arrived(ask)
        within = _sampled(cluster, options.sample, sampling) if options.sample < 1.0 else None
        placed = place(cluster, strategy, ask, within) is not None
        arrived[ask.cards] = arrived.get(ask.cards, 0) + 1
        refused[ask.cards] = refused.get(ask.cards, 0) + (not placed)
        asked += ask.demand
        while len(curve) <= asked * STEPS // capacity:
            curve.append(100.0 * cluster.taken / capacity)
    return Result(tuple(curve), tuple(sorted(arrived.items())), tuple(sorted(refused.items())))


def place(cluster: Cluster, strategy: Strategy, ask: Ask, within: Bools | None = None) -> tuple[int, str] | None:
    """Place a pod where the strategy wants it: its column and uid, or None where nothing fits."""
    rows = cluster.fitting(ask, within)
    if not len(rows):
        return None
    row = _best(cluster, strategy, ask, rows)
    placement = strategy.cards(ask, row) if ask.cards else None
    return row, cluster.put(ask, row, placement)


def _best(cluster: Cluster, strategy: Strategy, ask: Ask, rows: Ints) -> int:
    preference = strategy.preference(ask, rows)
    best = rows[preference == preference.max()]
    return int(best[np.argmin(cluster.arrays.order.places[best])])


def _sampled(cluster: Cluster, part: float, dice: np.random.Generator) -> Bools:
    sample = np.zeros(len(cluster.arrays.free_cpu), dtype=np.bool_)
    sample[dice.choice(cluster.rows, max(1, round(part * len(cluster.rows))), replace=False)] = True
    return sample


def _renamed(nodes: tuple[TraceNode, ...], seed: int) -> tuple[TraceNode, ...]:
    order = list(range(len(nodes)))
    Random(seed).shuffle(order)
    return tuple(
        TraceNode(f"node-{place:05}", node.cpu, node.memory, node.cards, node.model)
        for place, node in zip(order, nodes, strict=True)
    )
