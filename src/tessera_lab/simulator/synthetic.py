"""Makes a synthetic trace: plausible nodes and pods, the same for the same seed.

Sizes follow what sharing clusters report: most pods request part of a card, half of the cards go to whole-card pods,
and a few pods take several. `write_trace` uses the columns that `traces` reads.
"""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random

from tessera_lab.simulator.traces import WHOLE, Trace, TraceNode, TracePod, TraceRequest

MODELS = (("A100", 8, 96_000, 786_432), ("T4", 4, 64_000, 262_144), ("L40S", 8, 128_000, 524_288))
"""model, cards, thousandths of cores, MiB"""
PARTS = (100, 200, 250, 300, 500, 500, 700, 800)
DAY = 86_400.0


def make_trace(*, nodes: int, seed: int = 1, load: float = 1.0) -> Trace:
    """A trace with this many nodes, and pods that request `load` times their cards."""
    dice = Random(seed)
    made = []
    for place in range(nodes):
        model, cards, cpu, memory = MODELS[place % len(MODELS)]
        made.append(TraceNode(f"node-{place:05}", cpu, memory, cards, model))
    capacity = WHOLE * sum(node.cards for node in made)
    pods: list[TracePod] = []
    asked = 0
    while asked < load * capacity:
        ask = _ask(dice)
        created = dice.uniform(0.0, DAY)
        lasts = dice.expovariate(1.0 / (DAY / 4.0))
        pods.append(TracePod(f"pod-{len(pods):06}", ask, created, created + lasts))
        asked += ask.demand
    return Trace(f"synthetic-{nodes}-{seed}", tuple(made), tuple(pods))


def _ask(dice: Random) -> TraceRequest:
    kind = dice.random()
    if kind < 0.1:
        return TraceRequest(cpu=dice.choice((2_000, 4_000, 8_000)), memory=dice.choice((4_096, 16_384)))
    models = (dice.choice(MODELS)[0],) if dice.random() < 0.15 else ()
    cards, milli = 1, WHOLE
    if kind < 0.6:
        milli = dice.choice(PARTS)
    elif kind > 0.97:
        cards = dice.choice((2, 4, 4, 8))
    cpu = max(1_000, cards * milli * dice.choice((4, 8, 12, 16)) // 1_000 * 1_000)
    return TraceRequest(cpu, cards * milli * dice.choice((16, 32, 48)), cards, milli, models)


def write_trace(trace: Trace, nodes: Path, pods: Path) -> None:
    """Writes both files, as CSV."""
    with nodes.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
        rows.writerows((n.name, n.cpu, n.memory, n.cards, n.model) for n in trace.nodes)
    with pods.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        names = (
            "name",
            "cpu_milli",
            "memory_mib",
            "num_gpu",
            "gpu_milli",
            "gpu_spec",
            "creation_time",
            "deletion_time",
        )
        rows.writerow(names)
        for pod in trace.pods:
            a = pod.ask
            times = ("" if time is None else f"{time:.0f}" for time in (pod.created, pod.deleted))
            rows.writerow((pod.name, a.cpu, a.memory, a.cards, a.milli, "|".join(a.models), *times))
