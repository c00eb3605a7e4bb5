"""Replays a trace with its times: pods arrive, wait if they do not fit, run for their recorded time, and leave.

The queue is in the order of arrival, and every waiting pod is tried again when a pod ends. So a policy gains nothing by
refusing pods: they stay in its queue and count in its waiting times. `speed` divides the times between arrivals, but
not the run times: it makes a busy trace of one from a half-empty cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tessera_lab.simulator.defragmentation import NOTHING_FREED, FreedCards
from tessera_lab.simulator.simulation import Simulation
from tessera_lab.simulator.traces import Trace, TraceError, TraceNode, TraceRequest

SAMPLES = 200
"""points of the curve over time"""
PLANS = 8
"""moments at which a plan for whole cards is made, and compared with what is possible"""


@dataclass(frozen=True, slots=True)
class ChurnOptions:
    speed: float = 1.0
    """how many times faster pods arrive than in the trace"""
    shrink: int = 1
    """keeps every n-th node only: if most of the cluster is idle, no pod waits"""
    first: int = 0
    """of the nodes that are kept, from 0 to `shrink` - 1"""
    defragment: bool = False
    """whether other pods move for one that does not fit"""
    compare_plans: bool = False
    """whether plans for whole cards are made at some moments, and compared with what is possible"""


AS_RECORDED = ChurnOptions()


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """One replay; times in seconds, allocation in per cent."""

    allocation: float
    """mean over the time in which pods arrive"""
    over_time: tuple[float, ...]
    wait_mean: float
    wait_p50: float
    wait_p95: float
    waited: float
    """per cent of the pods that waited at all"""
    backlog: int
    """pods still waiting after the last pod has ended"""
    wait_by_cards: tuple[tuple[int, float], ...]
    """mean wait by the number of cards asked for"""
    pods_by_cards: tuple[tuple[int, int], ...] = ()
    moves: int = 0
    """of pods, for others that waited"""
    freed: FreedCards = NOTHING_FREED
    """what a plan for whole cards would have freed, at some moments"""


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    at: float
    place: int
    ask: TraceRequest
    lasts: float


@dataclass(slots=True)
class AllocationClock:
    """Card time used so far, and the curve over time."""

    began: float
    ends: float
    capacity: int
    now: float = 0.0
    used: float = 0.0

    def pass_to(self, time: float, taken: int, curve: list[float]) -> None:
        upto = min(time, self.ends)
        if upto > self.now:
            self.used += taken * (upto - self.now)
            step = (self.ends - self.began) / SAMPLES
            while len(curve) < SAMPLES and self.began + len(curve) * step < upto:
                curve.append(100.0 * taken / self.capacity)
            self.now = upto


def replay(trace: Trace, policy: str, seed: int, options: ChurnOptions = AS_RECORDED) -> ChurnResult:
    """One replay from an empty cluster. The seed matters only to random policies."""
    arrivals = _arrivals(trace, options.speed)
    trace = replace(trace, nodes=_kept(trace, options))
    simulation = Simulation(trace, policy, seed, defragment=options.defragment, compare_plans=options.compare_plans)
    defragmenter = simulation.defragmenter
    freed = NOTHING_FREED
    # Traces begin with a few pods long before the rest, so the first hundredth of the arrivals is left out.
    began = arrivals[len(arrivals) // 100].at
    clock = AllocationClock(began, arrivals[-1].at, trace.capacity, began)
    curve: list[float] = []
    waits: list[tuple[int, float]] = []
    queue: list[Arrival] = []
    running: list[tuple[float, int, int, str, TraceRequest]] = []
    left = iter(arrivals)
    coming = next(left, None)
    while coming is not None or running:
        time = min(coming.at if coming else np.inf, running[0][0] if running else np.inf)
        clock.pass_to(time, simulation.cluster.taken, curve)
        if options.compare_plans and defragmenter is not None and len(curve) * PLANS // SAMPLES > freed.plans:
            freed = freed.plus(defragmenter.compare())
        has_freed = False
        while running and running[0][0] <= time:
            _, _, row, uid, ask = heapq.heappop(running)
            simulation.end(ask, row, uid)
            has_freed = True
        fresh = []
        while coming is not None and coming.at <= time:
            simulation.strategy.arrived(coming.ask)
            fresh.append(coming)
            coming = next(left, None)
        tried = [*queue, *fresh] if has_freed else fresh
        left_over = [] if has_freed else queue
        queue = _start(simulation, tried, time, running, waits) + left_over
        queue.sort()
    return replace(_result(clock, curve, waits, queue), moves=simulation.moves, freed=freed)


def _kept(trace: Trace, options: ChurnOptions) -> tuple[TraceNode, ...]:
    """Every n-th node of the list, ordered by model, so that models keep their shares."""
    ordered = sorted(trace.nodes, key=lambda node: (node.model, node.cards, node.name))
    return tuple(ordered[options.first :: options.shrink])


def _start(
    simulation: Simulation,
    pods: Sequence[Arrival],
    time: float,
    running: list[tuple[float, int, int, str, TraceRequest]],
    waits: list[tuple[int, float]],
) -> list[Arrival]:
    """Tries each pod once; returns those that do not fit. Equal requests fail together until a pod ends."""
    waiting: list[Arrival] = []
    refused: set[TraceRequest] = set()
    for pod in pods:
        placed = None if pod.ask in refused else simulation.place(pod.ask)
        if placed is None:
            refused.add(pod.ask)
            waiting.append(pod)
        else:
            row, uid = placed
            heapq.heappush(running, (time + pod.lasts, pod.place, row, uid, pod.ask))
            waits.append((pod.ask.cards, time - pod.at))
    return waiting


def _arrivals(trace: Trace, speed: float) -> list[Arrival]:
    timed = [pod for pod in trace.pods if pod.created is not None and pod.lasts is not None]
    if not timed:
        raise TraceError(f"trace {trace.name} has no creation_time and deletion_time: it cannot be replayed")
    return sorted(
        Arrival((pod.created or 0.0) / speed, place, pod.ask, pod.lasts or 0.0) for place, pod in enumerate(timed)
    )


def _result(
    clock: AllocationClock, curve: list[float], waits: list[tuple[int, float]], queue: list[Arrival]
) -> ChurnResult:
    """Pods that never started have no waiting time; the backlog counts them."""
    times = np.array([wait for _, wait in waits] or [0.0])
    by_cards = {cards: [w for c, w in waits if c == cards] for cards in sorted({cards for cards, _ in waits})}
    span = max(clock.ends - clock.began, 1.0) * clock.capacity
    return ChurnResult(
        allocation=100.0 * clock.used / span,
        over_time=tuple(curve),
        wait_mean=float(times.mean()),
        wait_p50=float(np.percentile(times, 50)),
        wait_p95=float(np.percentile(times, 95)),
        waited=100.0 * float((times > 0).mean()),
        backlog=len(queue),
        wait_by_cards=tuple((cards, sum(found) / len(found)) for cards, found in by_cards.items()),
        pods_by_cards=tuple((cards, len(found)) for cards, found in by_cards.items()),
    )
