"""Families of clusters and workloads on which policies are compared: each seed makes another member of a family.

A family differs from the others in one thing: the models, the number of nodes, what pods ask for, or how demand changes
with time. Each says whether parameters of policies may be set on it (`is_judged` is False) or whether it only judges.
The same seed gives the same trace. Nodes get their names in random order, since ties are decided by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp
from random import Random
from types import MappingProxyType

from tessera_lab.simulator.traces import WHOLE, Trace, TraceNode, TracePod, TraceRequest

SATURATING = 1.35
"""cards requested by the pods of a trace for saturation, as a share of the capacity"""
CHURNING = 4.0
"""the same for a trace that is replayed with its times"""
LOAD = 1.25
"""cards in use if no pod had to wait, in a replay, as a share of the capacity"""
MEDIAN_S, SPREAD = 3_600.0, 1.2
"""run times: the median, and the standard deviation of their logarithm"""
BURSTS = (1, 1, 1, 2, 5, 20, 40)
"""equal pods that arrive together, where demand is bursty"""


@dataclass(frozen=True, slots=True)
class NodeKind:
    model: str
    cards: int
    cpu: int
    """thousandths of a core"""
    memory: int
    """MiB"""
    share: int = 1
    """of the nodes, against the other kinds"""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """What pods ask for, each drawn on its own."""

    host_only: float = 0.1
    """share of the pods without cards"""
    parts: tuple[int, ...] = (100, 200, 250, 300, 500, 500, 700, 800)
    """thousandths of a card"""
    part_share: float = 0.5
    """of the pods with cards, those with part of one"""
    groups: tuple[int, ...] = (2, 4, 4, 8)
    """numbers of cards"""
    group_share: float = 0.03
    choosy: float = 0.15
    """share of the pods with cards that accept one model only"""
    cpu: tuple[int, ...] = (4_000, 8_000, 12_000, 16_000)
    """per card"""
    memory_only: bool = False
    """whether pods ask for memory of a card, and for none of its cores"""


A100 = NodeKind("A100", 8, 96_000, 786_432)
L40S = NodeKind("L40S", 8, 128_000, 524_288)
T4 = NodeKind("T4", 4, 64_000, 262_144)
MANY = (
    NodeKind("H100", 8, 192_000, 1_572_864),
    A100,
    L40S,
    NodeKind("A10", 4, 96_000, 393_216, 2),
    NodeKind("V100", 8, 88_000, 524_288),
    replace(T4, share=3),
    NodeKind("P100", 2, 56_000, 262_144),
)

MIXED = Workload()
INFERENCE = Workload(part_share=0.9, group_share=0.0, parts=(50, 100, 100, 125, 200, 250, 330, 400, 500, 810))
TRAINING = Workload(
    host_only=0.02, part_share=0.1, group_share=0.45, groups=(2, 2, 4, 8, 8), cpu=(6_000, 10_000, 12_000)
)


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    summary: str
    nodes: int
    kinds: tuple[NodeKind, ...]
    workload: Workload = MIXED
    later: Workload | None = None
    """demand drifts from the workload to this one, from the first pod to the last"""
    is_bursty: bool = False
    is_judged: bool = True
    churn_nodes: int = 0
    """nodes in replays, if another number"""

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the pods means something."""
        return self.is_bursty or self.later is not None

    def trace(self, seed: int) -> Trace:
        """For saturation; without times."""
        dice = Random(f"{self.name} {seed}")
        nodes = self._nodes(dice, self.nodes)
        pods = self._pods(dice, nodes, SATURATING)
        return Trace(self.name, nodes, tuple(TracePod(f"pod-{i:06}", ask) for i, ask in enumerate(pods)))

    def churn_trace(self, seed: int) -> Trace:
        """For a replay: as many arrivals as keep `LOAD` of the cards busy."""
        dice = Random(f"{self.name} churn {seed}")
        nodes = self._nodes(dice, self.churn_nodes or self.nodes)
        asks = list(self._pods(dice, nodes, CHURNING))
        mean_s = MEDIAN_S * exp(SPREAD**2 / 2.0)
        capacity = WHOLE * sum(node.cards for node in nodes)
        span = sum(ask.demand for ask in asks) * mean_s / (LOAD * capacity)
        pods, now = [], 0.0
        previous: TraceRequest | None = None
        for number, ask in enumerate(asks):
            # The pods of a burst are equal, and arrive within minutes.
            together = self.is_bursty and ask == previous
            now += 1.0 if together else dice.expovariate(len(asks) / span) * (_mean_burst() if self.is_bursty else 1.0)
            lasts = dice.lognormvariate(0.0, SPREAD) * MEDIAN_S
            pods.append(TracePod(f"pod-{number:06}", ask, now, now + lasts))
            previous = ask
        return Trace(self.name, nodes, tuple(pods))

    def _nodes(self, dice: Random, number: int) -> tuple[TraceNode, ...]:
        weighted = [kind for kind in self.kinds for _ in range(kind.share)]
        kinds = [weighted[place % len(weighted)] for place in range(number)]
        dice.shuffle(kinds)
        return tuple(
            TraceNode(f"node-{place:05}", kind.cpu, kind.memory, kind.cards, kind.model, kind.mig)
            for place, kind in enumerate(kinds)
        )

    def _pods(self, dice: Random, nodes: tuple[TraceNode, ...], load: float) -> Iterator[TraceRequest]:
        wanted = load * WHOLE * sum(node.cards for node in nodes)
        asked = 0
        while asked <= wanted:
            workload = self.workload
            if self.later is not None and dice.random() < asked / wanted:
                workload = self.later
            ask = self._ask(workload, dice)
            for _ in range(dice.choice(BURSTS) if self.is_bursty else 1):
                yield ask
                asked += ask.demand

    def _ask(self, workload: Workload, dice: Random) -> TraceRequest:
        if dice.random() < workload.host_only:
            return TraceRequest(cpu=dice.choice((2_000, 4_000, 8_000)), memory=dice.choice((4_096, 16_384)))
        kind = dice.random()
        cards, milli = 1, WHOLE
        if kind < workload.part_share:
            milli = dice.choice(workload.parts)
        elif kind < workload.part_share + workload.group_share:
            cards = dice.choice(workload.groups)
        models: tuple[str, ...] = ()
        if len(self.kinds) > 1 and dice.random() < workload.choosy:
            models = (dice.choice([each for each in self.kinds if each.cards >= cards]).model,)
        cpu = max(500, cards * milli * dice.choice(workload.cpu) // WHOLE // 500 * 500)
        memory = cards * milli * dice.choice((16, 32, 48))
        return TraceRequest(cpu, memory, cards, milli, models, 0 if workload.memory_only else None)


def _mean_burst() -> float:
    return sum(BURSTS) / len(BURSTS)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("homogeneous", "one model", 60, (A100,), is_judged=False),
            Family("two-models", "two models of different size", 80, (A100, T4), is_judged=False),
            Family("training", "mostly whole cards and groups of them", 60, (A100, L40S), TRAINING, is_judged=False),
            Family("many-models", "seven models, a third of the pods accept only one", 100, MANY, Workload(choosy=0.3)),
            Family("small", "ten nodes", 10, (A100, L40S)),
            Family("large", "2000 nodes", 2_000, (A100, L40S, T4), churn_nodes=200),
            Family("inference", "mostly parts of a card", 60, (L40S, T4), INFERENCE),
            Family("mig", "cards in MIG mode", 40, (replace(A100, mig=True),), replace(INFERENCE, memory_only=True)),
            Family(
                "host-tight",
                "less CPU than the cards need",
                60,
                (replace(A100, cpu=64_000), replace(L40S, cpu=80_000)),
            ),
            Family("memory-only", "pods ask for no cores of a card", 60, (A100, T4), replace(MIXED, memory_only=True)),
            Family(
                "whole-cards",
                "no parts of cards",
                60,
                (A100, L40S, T4),
                replace(TRAINING, part_share=0.0, group_share=0.3),
            ),
            Family("drifting", "from inference to training", 60, (A100, L40S), INFERENCE, later=TRAINING),
            Family("bursty", "equal pods arrive in bursts", 60, (A100, L40S, T4), is_bursty=True),
        )
    }
)
"""by name"""
