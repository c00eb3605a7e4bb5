"""A gang on a real control plane: seconds from the creation of its last member until all members are bound.

    python -m bench.gang --nodes 1000 --members 512 --others 200
    python -m bench.gang --check

A real kube-apiserver and a stock kube-scheduler with Tessera beside it; nodes are objects without a kubelet. Every
round creates a gang whose members ask for a card each: alone, then while other pods come and go. To compare, as many
single pods are bound first.
The members are created as fast as the apiserver takes them. No Binding may be written before the last member exists:
a round in which the watch shows one fails. With `--check`, the median of the rounds is held against the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from bench.cluster_pods import LOADED, MEASURED, pod
from bench.cluster_rounds import TESSERA, Bench, Failure, bench, several
from bench.measurement import progress
from tessera.kube.errors import ApiError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS
from tessera.lab.sandbox.api.kinds import Json
from tessera.lab.sandbox.objects import JSON_ACCESSOR
from tests.e2e.cluster import end_tasks
from tests.e2e.processes import NotStarted
from tools.kubernetes import build

NODE_COUNT, MEMBERS, OTHERS, ROUNDS = 1_000, 512, 200, 3
MOST_SECONDS = 3.0
"""from the creation of the last member until all are bound, on a machine that does nothing else"""
MOST_WRITES = 1.1
"""per member, without events: a member that must be woken costs a patch beside its Binding"""
MOST_TIMES_SINGLE = 1.5
"""the time that as many single pods take"""
OTHERS_PER_SECOND = 50
LIMIT_SECONDS = 1_200


def member(number: int, size: int, name: str, *, of_gang: bool) -> Json:
    made = pod(f"{name}-{number:04}", MEASURED, memory=0, cores=0)
    if of_gang:
        made["metadata"]["annotations"] = {"tessera.io/gang": name, "tessera.io/gang-size": str(size)}
    return made


async def churn(found: Bench, count: int) -> None:
    """Other pods come and go until this is cancelled; each lives while `count` / `OTHERS_PER_SECOND` seconds pass."""
    serial = 0
    while True:
        name = f"other-{serial:05}"
        await found.api.create(PODS.path(LOADED), pod(name, LOADED, memory=2_000, cores=5))
        if serial >= count:
            await _delete(found, LOADED, f"other-{serial - count:05}")
        serial += 1
        await asyncio.sleep(1 / OTHERS_PER_SECOND)


async def _delete(found: Bench, namespace: str, name: str) -> None:
    try:
        await found.api.delete(PODS.path(namespace, name), grace_seconds=0)
    except ApiError as error:
        if error.status != 404:
            raise


async def one_gang(
    found: Bench, name: str, size: int, watcher: asyncio.Task[None], *, of_gang: bool = True
) -> dict[str, float]:
    """Create a gang, or as many single pods, wait until it is bound, and remove it."""
    audited = sum(1 for _ in found.plane.audited())
    began = time.perf_counter()
    await several(
        (found.api.create(PODS.path(MEASURED), member(number, size, name, of_gang=of_gang)) for number in range(size)),
        what="members",
    )
    created = time.perf_counter()
    await found.bound.until(lambda: len(found.bound.at) == size, what="all members to be bound", watcher=watcher)
    moments = sorted(found.bound.at.values())
    asked = list(found.plane.audited())[audited:]
    writes = sum(each.writes and each.namespace == MEASURED and each.resource != "events" for each in asked)
    names = [key.partition("/")[2] for key in found.bound.known]
    await several((_delete(found, MEASURED, each) for each in names), what="members")
    await found.bound.until(lambda: not found.bound.known, what="the end of the members", watcher=watcher)
    # The last create is answered after the pod exists, so a Binding may be shown a moment earlier.
    if of_gang and moments[0] < created - 1.0:
        raise Failure(f"a member was bound {created - moments[0]:.1f} s before the last one was created")
    return {
        "creating_s": created - began,
        "whole_s": moments[-1] - began,
        "bound_s": moments[-1] - created,
        "writing_s": moments[-1] - moments[0],
        "writes_per_member": writes / size,
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    async with bench(options.nodes) as found:
        side = found.sides[TESSERA]
        watch = Reflector(found.api, PODS.path(MEASURED), dict[str, Any], found.bound, accessor=JSON_ACCESSOR)
        watcher = asyncio.create_task(watch.run())
        results: dict[str, list[dict[str, float]]] = {"singles": [], "alone": [], "busy": []}
        try:
            await side.start_extender()
            side.kube_scheduler.start()
            # The first pod shows that both are at work.
            await one_gang(found, "first", 1, watcher)
            for kind, seen in results.items():
                others = asyncio.create_task(churn(found, options.others)) if kind == "busy" else None
                for number in range(options.rounds):
                    if others is None:
                        await found.settle(side)
                    name, of_gang = f"{kind}-{number}", kind != "singles"
                    seen.append(await one_gang(found, name, options.members, watcher, of_gang=of_gang))
                    progress(f"  {kind}: {json.dumps({key: round(value, 2) for key, value in seen[-1].items()})}")
                if others is not None:
                    await end_tasks([others])
        finally:
            side.stop()
            await end_tasks([watcher])
    return {
        kind: {key: round(statistics.median(each[key] for each in seen), 2) for key in seen[0]}
        for kind, seen in results.items()
    }


def _times_single(results: dict[str, Any]) -> float:
    return float(results["alone"]["whole_s"] / results["singles"]["whole_s"])


def judged(results: dict[str, Any]) -> tuple[bool, str]:
    lines, kept = [f"{'what':<68} {'value':>8} {'budget':>10}"], True
    rows = [
        ("time from the first creation until all are bound / of single pods", _times_single(results), MOST_TIMES_SINGLE)
    ]
    for kind in ("alone", "busy"):
        found = results[kind]
        rows += [
            (f"s from the last member's creation until all are bound, {kind}", found["bound_s"], MOST_SECONDS),
            (f"API writes per member, {kind}", found["writes_per_member"], MOST_WRITES),
        ]
    for what, value, most in rows:
        is_kept = value <= most
        kept = kept and is_kept
        lines.append(f"{what:<68} {value:>8.4g} {f'<= {most:g}':>10}  {'ok' if is_kept else 'BROKEN'}")
    return kept, "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gang", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=NODE_COUNT, help="default %(default)s")
    parser.add_argument("--members", type=int, default=MEMBERS, help="of a gang, default %(default)s")
    parser.add_argument("--others", type=int, default=OTHERS, help="pods that come and go, default %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each kind, default %(default)s")
    parser.add_argument("--limit", type=int, default=LIMIT_SECONDS, help="time limit in seconds, default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if the budget is exceeded")
    options = parser.parse_args(arguments)
    if min(options.nodes, options.members, options.rounds, options.limit) < 1 or options.others < 0:
        parser.error("needs at least one node, one member, one round and one second")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    results: dict[str, Any] = {}

    async def bounded() -> None:
        async with asyncio.timeout(options.limit):
            results.update(await measure(options))

    try:
        asyncio.run(bounded())
    except* (Failure, NotStarted, OSError, build.Missing, TimeoutError) as failures:
        for failure in failures.exceptions:
            progress(f"not measured: {failure}")
    if not results:
        return 2
    kept, judgement = judged(results)
    print(json.dumps(results) if options.json else judgement)
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
