"""The published saturation protocol: pods arrive one by one, none leaves, none is tried again.

The result is the share of all cards that is allocated once the pods that arrived request a given share of the capacity.
Pods arrive in a random order, followed by random repetitions; the same seed gives the same pods to every policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tessera.core.model.arrays import Bools
from tessera_lab.simulator.cluster import SimulatedCluster
from tessera_lab.simulator.defragmentation import allocation_bound
from tessera_lab.simulator.simulation import Simulation
from tessera_lab.simulator.traces import Trace, TraceNode, TracePod, TraceRequest

STEPS = 100
"""points of a curve for arrivals of 100 %"""


@dataclass(frozen=True, slots=True)
class SaturationOptions:
    """What varies besides policy and seed."""

    until: float = 1.3
    shuffle_nodes: bool = False
    """whether nodes get random names: ties are decided by name"""
    sample: float = 1.0
    """share of the nodes that each pod is offered, as kube-scheduler does in large clusters"""
    keep_order: bool = False
    """whether pods arrive in the order of the trace instead of a random one"""
    defragment: bool = False
    """whether other pods move for one that does not fit"""


PUBLISHED = SaturationOptions()


@dataclass(frozen=True, slots=True)
class SaturationResult:
    """One run: per cent allocated by per cent arrived, and the refused pods."""

    curve: tuple[float, ...]
    """at arrivals of 0, 1, 2 ... per cent"""
    arrived: tuple[tuple[int, int], ...]
    """pods by the number of cards they request"""
    refused: tuple[tuple[int, int], ...]
    moves: int = 0
    """of pods, for others that did not fit"""
    bound: float = 100.0
    """per cent that no packing can exceed which places the pods that arrived before the first refusal"""

    def at(self, arrival: float) -> float:
        return self.curve[min(round(arrival * STEPS), len(self.curve) - 1)]


def saturate(trace: Trace, policy: str, seed: int, options: SaturationOptions = PUBLISHED) -> SaturationResult:
    """One run from an empty cluster."""
    if options.shuffle_nodes:
        trace = replace(trace, nodes=_renamed(trace.nodes, seed))
    simulation = Simulation(trace, policy, seed, defragment=options.defragment)
    cluster = simulation.cluster
    sampling = np.random.default_rng(seed)
    capacity = trace.capacity
    curve: list[float] = []
    arrived: dict[int, int] = {}
    refused: dict[int, int] = {}
    asked = 0
    asks: list[TraceRequest] = []
    placed_all = 0
    for pod in generate_arrivals(trace, seed, until=options.until, keep_order=options.keep_order):
        ask = pod.ask
        asks.append(ask)
        simulation.strategy.arrived(ask)
        within = _sampled(cluster, options.sample, sampling) if options.sample < 1.0 else None
        placed = simulation.place(ask, within) is not None
        arrived[ask.cards] = arrived.get(ask.cards, 0) + 1
        refused[ask.cards] = refused.get(ask.cards, 0) + (not placed)
        if placed and placed_all == len(asks) - 1:
            placed_all += 1
        asked += ask.demand
        while len(curve) <= asked * STEPS // capacity:
            curve.append(100.0 * cluster.taken / capacity)
    return SaturationResult(
        tuple(curve),
        tuple(sorted(arrived.items())),
        tuple(sorted(refused.items())),
        simulation.moves,
        allocation_bound(asks, placed_all, capacity),
    )


def _sampled(cluster: SimulatedCluster, part: float, dice: np.random.Generator) -> Bools:
    sample = np.zeros(len(cluster.arrays.free_cpu), dtype=np.bool_)
    sample[dice.choice(cluster.rows, max(1, round(part * len(cluster.rows))), replace=False)] = True
    return sample


def _renamed(nodes: tuple[TraceNode, ...], seed: int) -> tuple[TraceNode, ...]:
    order = list(range(len(nodes)))
    Random(seed).shuffle(order)
    return tuple(replace(node, name=f"node-{place:05}") for place, node in zip(order, nodes, strict=True))


def generate_arrivals(trace: Trace, seed: int, *, until: float, keep_order: bool = False) -> Iterator[TracePod]:
    """Yields pods until those yielded request `until` times the capacity."""
    dice = Random(seed)
    pods = list(trace.pods)
    if not keep_order:
        dice.shuffle(pods)
    limit = until * trace.capacity
    asked = 0
    for pod in _endless(pods, dice):
        yield pod
        asked += pod.ask.demand
        if asked >= limit:
            return


def _endless(pods: list[TracePod], dice: Random) -> Iterator[TracePod]:
    yield from pods
    while True:
        yield dice.choice(pods)
