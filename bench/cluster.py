"""Pods per second with a real kube-apiserver and a stock kube-scheduler: Tessera beside a baseline extender.

    python -m bench.cluster --nodes 1000 --pods 500 --preload 16 --json
    python -m bench.cluster --check
    python -m bench.cluster --claims --rounds 5

In every round the pods exist before the schedulers start; measured is the time from the first bound pod to the last.
The sides take turns on one control plane, in alternating order, so that a busy machine slows all of them. A ratio is
made of two consecutive rounds, which both begin with the control plane at rest. Only one side's programs run at a time.
Nodes are objects without a kubelet: only the way to the Binding is measured. Everything is on loopback and ends with
this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from bench.cluster_claims import claim_bench
from bench.cluster_pods import MEASURED
from bench.cluster_rounds import BARE, NOOP, STOCK, TESSERA, Bench, Failure, Round, bench
from bench.measurement import progress
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS
from tessera_lab.sandbox.objects import JSON_ACCESSOR
from tests.e2e.cluster import end_tasks
from tests.e2e.processes import NotStarted
from tools.kubernetes import build

NODE_COUNT, POD_COUNT = 1_000, 500
LOADS = (0, 16)
"""device pods on every node; the budget holds for both"""
LEAST_RATIO, LEAST_CLAIMS_RATIO = 0.85, 2.0
MAX_WRITES, MAX_CLAIMS_WRITES = 1.0, 3.0
"""per pod, without events: the Binding; with a claim also its finalizer and its status"""
ROUNDS = 30
"""single rounds differ by a fifth and more on a shared machine"""
LIMIT_S = 2_700


# -- figures


async def compare(found: Bench, *, pods: int, rounds: int, bare: int, baseline: str = NOOP) -> dict[str, Any]:
    """All figures of one load; the names say the unit."""
    watch = Reflector(found.api, PODS.path(MEASURED), dict[str, Any], found.bound, accessor=JSON_ACCESSOR)
    watcher = asyncio.create_task(watch.run())
    seen: dict[str, list[Round]] = {BARE: [], baseline: [], TESSERA: []}
    try:
        for number in range(rounds):
            order = [baseline, TESSERA] if number % 2 == 0 else [TESSERA, baseline]
            for name in [*([BARE] if number < bare else []), *order]:
                done = await found.round(found.sides[name], pods, watcher)
                seen[name].append(done)
                progress(f"  {found.loaded} pods per node, round {number + 1}: {name} {done.pods_per_s:.1f} pods/s")
    finally:
        await end_tasks([watcher])
    return figures(found.loaded, seen, baseline)


def figures(load: int, seen: dict[str, list[Round]], baseline: str = NOOP) -> dict[str, Any]:
    pairs = [mine.pods_per_s / other.pods_per_s for mine, other in zip(seen[TESSERA], seen[baseline], strict=True)]
    result: dict[str, Any] = {"preload": load}
    for name, rounds in seen.items():
        if rounds:
            result[f"{name}_pods_per_s"] = round(statistics.median(each.pods_per_s for each in rounds), 1)
    result["ratio"] = round(middle_mean(pairs), 3)
    error = standard_error(pairs)
    result["ratio_error"] = None if error is None else round(error, 3)
    result["ratios"] = [round(pair, 3) for pair in pairs]
    result["writes_per_pod"] = round(max(each.writes_per_pod for each in seen[TESSERA]), 3)
    result["events_per_pod"] = round(statistics.median(each.events_per_pod for each in seen[TESSERA]), 2)
    work = {
        name: {
            program: round(statistics.median(each.work[program] for each in rounds), 2) for program in rounds[0].work
        }
        for name, rounds in seen.items()
        if rounds
    }
    result["work_ms_per_pod"] = work
    # The ratio to expect where all processors are busy: then only processor time counts.
    result["work_ratio"] = round(sum(work[baseline].values()) / sum(work[TESSERA].values()), 3)
    return result


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: as robust against single bad rounds as the median, with less variance."""
    return statistics.fmean(_middle_half(values))


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the middle mean, from winsorized values; None for a single value."""
    kept = _middle_half(values)
    if len(kept) < 2:
        return None
    bounded = [min(max(value, kept[0]), kept[-1]) for value in values]
    return statistics.stdev(bounded) * math.sqrt(len(values)) / len(kept)


def _middle_half(values: Sequence[float]) -> list[float]:
    """Sorted."""
    ordered = sorted(values)
    aside = len(ordered) // 4
    return ordered[aside : len(ordered) - aside]


async def measure(options: argparse.Namespace, loads: Sequence[int]) -> list[dict[str, Any]]:
    """One set of figures for each load, smallest first."""
    results = []
    if options.claims:
        async with claim_bench(options.nodes) as found:
            return [await compare(found, pods=options.pods, rounds=options.rounds, bare=0, baseline=STOCK)]
    async with bench(options.nodes) as found:
        for load in sorted(loads):
            await found.load(load)
            results.append(await compare(found, pods=options.pods, rounds=options.rounds, bare=options.bare_rounds))
    return results


async def bounded(options: argparse.Namespace, loads: Sequence[int]) -> list[dict[str, Any]]:
    """Measures within the time limit, and cleans up after SIGTERM."""
    task = asyncio.ensure_future(measure(options, loads))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(options.limit):
            return await task
    except TimeoutError as error:
        raise Failure(f"not done after {options.limit} s") from error
    except asyncio.CancelledError as error:
        raise Failure("ended by a signal") from error


# -- the command


def judged(results: Sequence[dict[str, Any]], *, claims: bool = False) -> tuple[bool, str]:
    least, most = (LEAST_CLAIMS_RATIO, MAX_CLAIMS_WRITES) if claims else (LEAST_RATIO, MAX_WRITES)
    other = "DynamicResources" if claims else "the baseline extender"
    lines = [f"{'what':<68} {'value':>8} {'budget':>10}"]
    kept = True
    for found in results:
        load = f"{found['preload']} device pods per node"
        ratio, error, writes = found["ratio"], found["ratio_error"], found["writes_per_pod"]
        well = ratio >= least, writes <= most
        said = "ok" if well[0] else "BROKEN", "ok" if well[1] else "BROKEN"
        exact = f"+- {error:.3f}" if error is not None else "one round: no error estimate"
        what = f"pods/s of Tessera / of {other}, {load}"
        lines.append(f"{what:<68} {ratio:>8.4g} {f'>= {least}':>10}  {said[0]} ({exact})")
        lines.append(f"{f'API writes per pod, {load}':<68} {writes:>8.4g} {f'<= {most:g}':>10}  {said[1]}")
        kept = kept and all(well)
    return kept, "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=NODE_COUNT, help="default %(default)s")
    parser.add_argument("--pods", type=int, default=POD_COUNT, help="per round, default %(default)s")
    parser.add_argument("--preload", type=int, default=0, help="device pods on every node, default %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each side, default %(default)s")
    parser.add_argument(
        "--bare-rounds", type=int, default=1, help="without any extender, to compare; default %(default)s"
    )
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="time limit in seconds, default %(default)s")
    parser.add_argument(
        "--claims",
        action="store_true",
        help="pods with ResourceClaims, beside a stock kube-scheduler that allocates them",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="both loads of the budget; exit 1 if it is exceeded")
    options = parser.parse_args(arguments)
    if options.nodes < 1 or options.pods < 2 or options.rounds < 1:
        parser.error("needs at least one node, two pods and one round")
    if options.preload < 0 or options.bare_rounds < 0 or options.limit < 1:
        parser.error("--preload and --bare-rounds cannot be negative, and --limit is at least a second")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    results: list[dict[str, Any]] = []
    try:
        results = asyncio.run(bounded(options, LOADS if options.check else (options.preload,)))
    except* (Failure, NotStarted, OSError, build.Missing) as failures:
        for failure in failures.exceptions:
            progress(f"not measured: {failure}")
    if not results:
        return 2
    kept, judgement = judged(results, claims=options.claims)
    if options.json:
        print(json.dumps(results if options.check and not options.claims else results[0]))
    elif options.check:
        print(judgement)
    else:
        print("\n".join(f"{name:<28} {value}" for name, value in results[0].items()))
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
