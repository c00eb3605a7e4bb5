"""Further traces made from the default openb trace, to check a policy on pods for which it was not tuned.

The published variants stress one thing each: pods without cards, parts of cards, several cards, or accepted models.
Others are drawn here by the rules that the known files show. The same seed gives the same traces. They are not the
published files, so figures compare policies with each other, not with papers.

    python -m bench.variants --data FOLDER --to FOLDER
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from tessera_lab.simulator.traces import WHOLE, Trace, TraceError, TracePod, read_trace, write_trace

SEED = 7
CPU_PODS = (0.05, 0.20, 0.25)
"""share of the pods that request no card"""
SHARED = (0.60, 0.80, 1.00)
"""share of the requested cards that is requested in parts of a card"""
SEVERAL = (0.30, 0.40, 0.50)
"""share of the cards that pods with several cards request"""
CONSTRAINED = (0.10, 0.25, 0.33)
"""share of the pods with cards that accept only some models"""


def kind(pod: TracePod) -> str:
    ask = pod.ask
    if not ask.cards:
        return "none"
    return "several" if ask.cards > 1 else "part" if ask.milli < WHOLE else "whole"


def by_kind(pods: Sequence[TracePod]) -> dict[str, list[TracePod]]:
    found: dict[str, list[TracePod]] = defaultdict(list)
    for pod in pods:
        found[kind(pod)].append(pod)
    return found


def demand(pods: Sequence[TracePod]) -> int:
    return sum(pod.ask.demand for pod in pods)


def drawn(pods: Sequence[TracePod], number: int, dice: Random) -> list[TracePod]:
    """`count` draws; none repeats before all were drawn once."""
    again = max(number - len(pods), 0)
    return dice.sample(list(pods), number - again) + dice.choices(list(pods), k=again)


def with_cpu_pods(pods: Sequence[TracePod], part: float, dice: Random) -> list[TracePod]:
    kinds = by_kind(pods)
    carded = [pod for pod in pods if pod.ask.cards]
    return carded + drawn(kinds["none"], round(len(carded) * part / (1.0 - part)), dice)


def with_shared(pods: Sequence[TracePod], part: float, dice: Random) -> list[TracePod]:
    """Replaces whole cards by parts of cards; the number of pods stays the same."""
    kinds = by_kind(pods)
    shared, others = kinds["part"], kinds["whole"] + kinds["several"]
    number = len(shared) + len(others)
    one, other = demand(shared) / len(shared), demand(others) / len(others)
    wanted = round(number * part * other / (part * other + (1.0 - part) * one))
    return kinds["none"] + drawn(shared, wanted, dice) + drawn(others, number - wanted, dice)


def with_several(pods: Sequence[TracePod], part: float, dice: Random) -> list[TracePod]:
    """Adds pods with several cards, and removes none."""
    several = by_kind(pods)["several"]
    rest = demand(pods) - demand(several)
    wanted = round(rest * part / (1.0 - part) / (demand(several) / len(several)))
    return [pod for pod in pods if kind(pod) != "several"] + drawn(several, wanted, dice)


def with_models(pods: Sequence[TracePod], sample: Sequence[TracePod], part: float, dice: Random) -> list[TracePod]:
    """Takes the accepted models from pods of the same kind in a trace that has constraints."""
    accepted = {name: [p.ask.models for p in some if p.ask.models] for name, some in by_kind(sample).items()}
    carded = [place for place, pod in enumerate(pods) if pod.ask.cards]
    chosen = set(dice.sample(carded, round(part * len(carded))))
    return [
        replace(pod, ask=replace(pod.ask, models=dice.choice(accepted[kind(pod)] or [()]) if place in chosen else ()))
        for place, pod in enumerate(pods)
    ]


def variants(default: Trace, constrained: Trace) -> Iterator[Trace]:
    """The variants, with names like the published ones."""
    pods = default.pods

    def trace(name: str, made: Sequence[TracePod]) -> Trace:
        return Trace(name, default.nodes, tuple(replace(p, name=f"pod-{i:05}") for i, p in enumerate(made)))

    for part in CPU_PODS:
        yield trace(f"cpu{1000 * part:03.0f}", with_cpu_pods(pods, part, Random(SEED)))
    for part in SHARED:
        yield trace(f"gpushare{100 * part:.0f}", with_shared(pods, part, Random(SEED)))
    for part in SEVERAL:
        yield trace(f"multigpu{100 * part:.0f}", with_several(pods, part, Random(SEED)))
    for part in CONSTRAINED:
        yield trace(f"gpuspec{100 * part:.0f}", with_models(pods, constrained.pods, part, Random(SEED)))


def openb(parser: argparse.ArgumentParser, folder: Path, names: Sequence[str]) -> list[Trace]:
    """Reads the traces of these names; exits if the folder does not have them."""
    nodes = folder / "openb_node_list_gpu_node.csv"
    try:
        return [read_trace(nodes, folder / f"openb_pod_list_{name}.csv") for name in names]
    except TraceError as error:
        parser.error(str(error))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.variants", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the openb files")
    parser.add_argument("--to", type=Path, required=True, help="folder to write nodes.csv and the pods into")
    options = parser.parse_args()
    default, constrained = openb(parser, options.data, ("default", "gpuspec20"))
    options.to.mkdir(parents=True, exist_ok=True)
    for trace in variants(default, constrained):
        write_trace(trace, options.to / "nodes.csv", options.to / f"{trace.name}.csv")
        print(f"{trace.name:<12} {len(trace.pods)} pods, {demand(trace.pods) / trace.capacity:.1%} of the cards")


if __name__ == "__main__":
    main()
