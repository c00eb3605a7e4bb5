"""Chooses the weights of the policy `fragmentation` by simulation.

Three traces and an order of arrival that no published figure uses. From the smallest value of every weight, one weight
after the other takes its best value: of those that allocate as much as the best but for `NOISE` (mean of the traces at
100 % and 130 % arrival) the one that refuses the fewest pods with several cards. Other traces have no say.

    python -m bench.weights --data FOLDER        39 runs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

from bench.variants import openb
from tessera_lab.simulator.simulation import saturate
from tessera_lab.simulator.traces import Trace

TRACES = ("default", "gpuspec20", "multigpu20")
SEEDS = (52,)
ARRIVALS = (1.0, 1.3)
GRID: Mapping[str, tuple[float, ...]] = {
    "UNSERVED": (0.05, 0.1, 0.2, 0.4),
    "GROUP": (0.0025, 0.005, 0.01, 0.02),
    "SCARCE": (0.05, 0.1, 0.2, 0.4),
    "NO_DEMAND": (0.01, 0.02, 0.04, 0.08),
}
NOISE = 0.1
"""percentage points of allocation; smaller differences are noise, as another order of arrival shows"""

Weights = dict[str, float]


@contextmanager
def weighed(weights: Weights) -> Iterator[None]:
    """The policy with these weights; its caches are cleared before and after."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tessera.core.policies.fragmentation")]

    def forget() -> None:
        for module in modules:
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()

    with ExitStack() as changed:
        for module in modules:
            for name, value in weights.items():
                if hasattr(module, name):
                    changed.enter_context(patch.object(module, name, value))
        forget()
        yield
    forget()


@dataclass(frozen=True, slots=True)
class Outcome:
    weights: Weights
    allocated: float
    """per cent, mean of all traces"""
    refused: int
    """pods with several cards, of all traces"""


def outcome(traces: list[Trace], weights: Weights) -> Outcome:
    with weighed(weights):
        results = [saturate(trace, "fragmentation", seed) for trace in traces for seed in SEEDS]
    allocated = fmean(result.at(arrival) for result in results for arrival in ARRIVALS)
    refused = sum(number for result in results for cards, number in result.refused if cards > 1)
    print(f"{allocated:.3f} {refused:>4} {weights}", flush=True)
    return Outcome(weights, allocated, refused)


def best(outcomes: list[Outcome]) -> Outcome:
    """The best; of equal ones the first, which has the smaller value."""
    most = max(each.allocated for each in outcomes)
    return min((each for each in outcomes if each.allocated >= most - NOISE), key=lambda each: each.refused)


def choose(traces: list[Trace]) -> Weights:
    chosen = outcome(traces, {name: values[0] for name, values in GRID.items()})
    for name, values in GRID.items():
        others = [outcome(traces, chosen.weights | {name: value}) for value in values[1:]]
        chosen = best([chosen, *others])
    return chosen.weights


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.weights", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the openb files")
    options = parser.parse_args()
    print("chosen", choose(openb(parser, options.data, TRACES)))


if __name__ == "__main__":
    main()
