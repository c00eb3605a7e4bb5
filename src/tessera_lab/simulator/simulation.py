"""One simulated cluster under one policy: pods arrive, are placed or wait, and leave.

Two orders of arrival. `saturate` is the published protocol: pods arrive one by one in a random order, followed by
random repetitions, none leaves and none is tried again; the result is the share of all cards that is allocated once the
pods that arrived request a given share of the capacity. `replay` follows the times of a trace: pods wait in the order
of arrival if they do not fit, run for their recorded time and leave, and every waiting pod is tried again when a pod
ends. So a policy gains nothing by refusing pods: they stay in its queue and count in its waiting times. The same seed
gives the same pods to every policy.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import MappingProxyType

import numpy as np

from tessera.core.model.arrays import Ints
from tessera_lab.simulator.cluster import SimulatedCluster
from tessera_lab.simulator.defragmentation import NOTHING_FREED, Defragmenter, FreedCards, allocation_bound
from tessera_lab.simulator.fgd import FragmentationGradientDescent
from tessera_lab.simulator.strategies import BestFit, FirstFit, RandomTieBreak, Shipped, Strategy, StrategyFactory
from tessera_lab.simulator.traces import Trace, TraceError, TraceNode, TracePod, TraceRequest


def _fragmentation(cluster: SimulatedCluster, trace: Trace, dice: Random) -> Strategy:
    return Shipped(cluster, node="fragmentation", device="fragmentation")


def _hami(node: str, device: str, cluster: SimulatedCluster, trace: Trace, dice: Random) -> Strategy:
    return RandomTieBreak(Shipped(cluster, node=node, device=device), dice)


STRATEGIES: Mapping[str, StrategyFactory] = MappingProxyType(
    {
        "fragmentation": _fragmentation,
        "fgd": FragmentationGradientDescent,
        "best-fit": BestFit,
        "first-fit": FirstFit,
        "binpack-binpack": partial(_hami, "binpack", "binpack"),
        "binpack-spread": partial(_hami, "binpack", "spread"),
        "spread-binpack": partial(_hami, "spread", "binpack"),
        "spread-spread": partial(_hami, "spread", "spread"),
    }
)
"""the last four are HAMi's node and device policies, with random ties; `binpack-spread` is its default"""


class Simulation:
    """Begins with an empty cluster. The seed matters only to random policies."""

    def __init__(
        self, trace: Trace, policy: str, seed: int, *, defragment: bool = False, compare_plans: bool = False
    ) -> None:
        self.cluster = SimulatedCluster(trace.nodes)
        self.strategy = STRATEGIES[policy](self.cluster, trace, Random(f"{policy} {seed}"))
        self.defragmenter = Defragmenter(self.cluster, may_move=defragment) if defragment or compare_plans else None

    @property
    def moves(self) -> int:
        return 0 if self.defragmenter is None else self.defragmenter.moves

    def place(self, ask: TraceRequest) -> tuple[int, str] | None:
        """Places a pod; its column and uid, or None if it does not fit."""
        placed = place_pod(self.cluster, self.strategy, ask)
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


def place_pod(cluster: SimulatedCluster, strategy: Strategy, ask: TraceRequest) -> tuple[int, str] | None:
    """Places a pod where the strategy wants it; returns its column and uid, or None if it does not fit."""
    rows = cluster.fitting(ask)
    if not len(rows):
        return None
    row = _best(cluster, strategy, ask, rows)
    placement = strategy.cards(ask, row) if ask.cards else None
    return row, cluster.put(ask, row, placement)


def _best(cluster: SimulatedCluster, strategy: Strategy, ask: TraceRequest, rows: Ints) -> int:
    preference = strategy.preference(ask, rows)
    best = rows[preference == preference.max()]
    return int(best[np.argmin(cluster.arrays.order.places[best])])


STEPS = 100
"""points of a curve for arrivals of 100 %"""


@dataclass(frozen=True, slots=True)
class SaturationOptions:
    """What varies besides policy and seed."""

    until: float = 1.3
    shuffle_nodes: bool = False
    """whether nodes get random names: ties are decided by name"""
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
        placed = simulation.place(ask) is not None
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
