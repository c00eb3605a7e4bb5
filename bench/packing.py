"""The cost of the policy `fragmentation` beside binpack on equal clusters, in the core and over HTTP.

    python -m bench.packing                  figures of 1000 nodes x 8 cards
    python -m bench.packing --check          the budgets, at that size

Both take turns, and over HTTP the echo too, so that a busy machine slows all alike. Not here: how well the policy
packs, which is what `tessera simulate trace` answers.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from statistics import median
from time import process_time

from bench.core import REPEATED_SHAPES, SEED, Cluster, build, make_pod, settle
from bench.filter import CHECKED, LIMIT_S, MAX_RATIO_SMALL, Figures, start
from bench.measurement import Budget, progress, side_by_side, table
from bench.processes import BenchmarkProcesses, Failure, Size
from tessera.core.policies.demand_history import DemandHistory
from tessera.core.search.selection import Selected

AHEAD, PLAIN = "fragmentation", "binpack"
ROUNDS, BATCH = 9, 40
MAX_TIMES_BINPACK = 2.0
"""processor time of a decision in the core, which is a small part of a call"""
MAX_CALL_TIMES_BINPACK = 1.4
"""median of a call; learning anew, which is rare and costs milliseconds, is in the work and not in the median. A call
under binpack prepares no sister twice and counts no pod, which one that looks ahead does for each"""


class Deciding:
    """One cluster, and the pods that are placed on it under one policy."""

    def __init__(self, cluster: Cluster, policy: str) -> None:
        self._cluster = cluster
        self._policy = policy
        self._history = DemandHistory()
        self._dice = Random(SEED)

    def decide(self) -> float:
        """Seconds for one decision."""
        cluster = self._cluster
        memory, cores = self._dice.choice(REPEATED_SHAPES)
        pod = make_pod(f"new-{next(cluster.uids)}", memory=memory, cores=cores)
        forecast = self._history.forecast(cluster.ledger.arrays) if self._policy == AHEAD else None
        pod = replace(pod, node_policy=self._policy, device_policy=self._policy, forecast=forecast)
        began = process_time()
        answer = cluster.selector.select(pod, cluster.candidates)
        if not isinstance(answer, Selected):
            sys.exit("the cluster is full")
        cluster.ledger.reserve(pod, answer.placement, deadline=1.0)
        self._history.observe(pod, cluster.ledger.arrays, cluster.ledger.rules)
        return process_time() - began


def in_the_core(nodes: int) -> Figures:
    ahead, plain = (Deciding(build(nodes, CHECKED.devices, 4), policy) for policy in (AHEAD, PLAIN))
    settle()
    rounds = [[median(each.decide() for _ in range(BATCH)) for each in (ahead, plain)] for _ in range(ROUNDS + 1)][1:]
    return {
        "core_fragmentation_us": round(median(a for a, _ in rounds) * 1e6, 1),
        "core_binpack_us": round(median(b for _, b in rounds) * 1e6, 1),
        "core_more_us": round(median(a - b for a, b in rounds) * 1e6, 1),
        "core_times_binpack": round(median(a / b for a, b in rounds), 3),
    }


def over_http(size: Size, calls: int, limit: int) -> Figures:
    """Two schedulers that differ only in the policy, and one echo."""
    with BenchmarkProcesses(limit=limit) as processes, ExitStack() as stack:
        ahead, plain = (
            start(processes, stack, size, run=run, policy=policy) for run, policy in (("a", AHEAD), ("b", PLAIN))
        )
        progress(f"measuring {calls} calls of each")
        found = side_by_side(
            {
                AHEAD: (ahead.service.pid, ahead.placing(ahead.asking.repeated)),
                PLAIN: (plain.service.pid, plain.placing(plain.asking.repeated)),
                "echo": (plain.echo_server.pid, plain.echoing(plain.asking.repeated)),
            },
            calls,
        )
    figures: Figures = {"echo_p50_ms": found["echo"].p50}
    for name in (AHEAD, PLAIN):
        figures[f"{name}_p50_ms"] = found[name].p50
        figures[f"{name}_ratio"] = round(found[name].p50 / found["echo"].p50, 3)
        figures[f"{name}_work_us"] = round(found[name].work * 1_000, 1)
    figures["more_work_us"] = round((found[AHEAD].work - found[PLAIN].work) * 1_000, 1)
    figures["times_binpack"] = round(found[AHEAD].p50 / found[PLAIN].p50, 3)
    return figures


def budgets_of(figures: Figures) -> list[Budget]:
    return [
        Budget("fragmentation / binpack, a decision in the core", figures["core_times_binpack"], MAX_TIMES_BINPACK),
        Budget("fragmentation / binpack, a call", figures["times_binpack"], MAX_CALL_TIMES_BINPACK),
        Budget("fragmentation / echo, 1000 nodes", figures["fragmentation_ratio"], MAX_RATIO_SMALL),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=CHECKED.nodes, help="default %(default)s")
    parser.add_argument("--calls", type=int, default=400, help="calls of a kind over HTTP, default %(default)s")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="time limit in seconds, default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if a budget is exceeded; always at 1000 nodes")
    options = parser.parse_args(arguments)
    size = CHECKED if options.check else replace(CHECKED, nodes=options.nodes)
    # The client is measured too: no garbage collection in it.
    gc.disable()
    try:
        figures = in_the_core(size.nodes) | over_http(size, options.calls, options.limit)
    except (Failure, OSError) as error:
        progress(f"not measured: {error}")
        return 2
    print(json.dumps(figures) if options.json else "\n".join(f"{name:<24} {v:>10}" for name, v in figures.items()))
    if not options.check:
        return 0
    budgets = budgets_of(figures)
    progress(table(budgets))
    return 0 if all(budget.kept for budget in budgets) else 1


if __name__ == "__main__":
    sys.exit(main())
