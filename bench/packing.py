"""What looking ahead costs: a decision under the policy `fragmentation` beside one under binpack, on equal clusters.

Batches alternate, so that a busy machine slows both; the median round decides. Not here: how well the policy packs,
which is what `tessera simulate trace` answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from random import Random
from statistics import median
from time import perf_counter

from bench.core import REPEATED_SHAPES, SEED, Budget, Cluster, build, make_pod, settle, table
from tessera.core.selection import Selected
from tessera.core.workload import Workload

ROUNDS, BATCH = 9, 40
MOST_TIMES_BINPACK = 3.0


class Deciding:
    """One cluster, and the pods that are placed on it under one policy."""

    def __init__(self, cluster: Cluster, policy: str) -> None:
        self._cluster = cluster
        self._policy = policy
        self._workload = Workload()
        self._dice = Random(SEED)

    def decide(self) -> float:
        """Seconds for one decision."""
        cluster = self._cluster
        memory, cores = self._dice.choice(REPEATED_SHAPES)
        pod = make_pod(f"new-{next(cluster.uids)}", memory=memory, cores=cores)
        outlook = self._workload.outlook if self._policy == "fragmentation" else None
        pod = replace(pod, node_policy=self._policy, device_policy=self._policy, outlook=outlook)
        began = perf_counter()
        answer = cluster.selector.select(pod, cluster.candidates)
        if not isinstance(answer, Selected):
            sys.exit("the cluster is full")
        cluster.ledger.reserve(pod, answer.placement, deadline=1.0)
        self._workload.observe(pod, cluster.ledger.arrays, cluster.ledger.rules)
        return perf_counter() - began


def measure(nodes: int) -> dict[str, float]:
    ahead = Deciding(build(nodes, 8, 4), "fragmentation")
    plain = Deciding(build(nodes, 8, 4), "binpack")
    settle()
    rounds = [[median(each.decide() for _ in range(BATCH)) for each in (ahead, plain)] for _ in range(ROUNDS + 1)][1:]
    return {
        "fragmentation_ms": round(median(a for a, _ in rounds) * 1_000, 4),
        "binpack_ms": round(median(b for _, b in rounds) * 1_000, 4),
        "times_binpack": round(median(a / b for a, b in rounds), 3),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1_000, help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a list")
    parser.add_argument("--check", action="store_true", help="exit 1 where the budget is broken")
    options = parser.parse_args(arguments)
    figures = measure(options.nodes)
    budget = Budget("fragmentation / binpack", figures["times_binpack"], MOST_TIMES_BINPACK)
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:<20} {value}" for name, value in figures.items()))
        print(table([budget]))
    return 0 if budget.kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
