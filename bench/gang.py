"""A gang on a real control plane: seconds from the creation of its last member until all members are bound.

    python -m bench.gang --nodes 1000 --members 512 --others 200
    python -m bench.gang --check
    python -m bench.gang --verdict --check       how soon a gang that does not fit is told so

A real kube-apiserver and a stock kube-scheduler with Tessera beside it; nodes are objects without a kubelet. Every
round creates a gang whose members ask for a card each: alone, then while other pods come and go. To compare, as many
single pods are bound first.
The members are created as fast as the apiserver takes them. No Binding may be written before the last member exists:
a round in which the watch shows one fails. With `--check`, the median of the rounds is held against the budget.

A verdict round leaves room for half of a gang, and measures how long after the creation of the last member a watch
shows the whole reason in the condition of a first member, and in those of all: `members fit; short of ... cards`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from functools import partial
from typing import Any

from bench.cluster_pods import LOADED, MEASURED, pod
from bench.cluster_rounds import CARDS, TESSERA, Bench, Failure, bench, patience, several
from bench.measurement import progress
from tessera.kube.errors import ApiError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import JSON_ACCESSOR, condition_of, node_of
from tests.e2e.cluster import end_tasks
from tests.e2e.processes import NotStarted
from tools.kubernetes import build

NODE_COUNT, MEMBERS, OTHERS, ROUNDS = 1_000, 512, 200, 3
MAX_S = {"alone": 3.0, "busy": 3.5}
"""from the creation of the last member until all are bound: alone, and beside other pods that come and go"""
MAX_WRITES = 1.1
"""per member, without events: a member that must be woken costs a patch beside its Binding"""
MAX_TIMES_SINGLE = 1.5
"""the time that as many single pods take"""
MAX_VERDICT_S = 1.0
"""from the creation of the last member until a member's condition has the whole reason"""
VERDICT_SIZES = (512, 8)
"""members that ask for all cards of a node each, the largest gang first: room is only ever taken"""
OTHERS_PER_SECOND = 50
LIMIT_S = 1_200


def member(number: int, size: int, name: str, *, of_gang: bool, cards: int = 1) -> Json:
    made = pod(f"{name}-{number:04}", MEASURED, memory=0, cores=0, cards=cards)
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
        await found.api.delete(PODS.path(namespace, name), grace_s=0)
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


class Verdicts:
    """When the members of a gang were told the whole reason, as a watch shows it."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.bound = 0
        self.changed = asyncio.Event()

    def put(self, key: str, obj: Json) -> None:
        text = str((condition_of(obj, "PodScheduled") or {}).get("message", ""))
        if "members fit; short of" in text and "members exist" not in text:
            self.at.setdefault(key, time.perf_counter())
        self.bound += bool(node_of(obj))
        self.changed.set()

    def drop(self, key: str) -> None:
        self.changed.set()

    def synced(self) -> None:
        """Nothing waits for the first list."""

    async def until(self, count: int) -> None:
        async with patience(lambda: f"the reason in {count} conditions; it is in {len(self.at)}"):
            while len(self.at) < count:
                self.changed.clear()
                await self.changed.wait()


async def one_verdict(found: Bench, name: str, size: int) -> dict[str, float]:
    """A gang for half of which there is room."""
    seen = Verdicts()
    watch = Reflector(found.api, PODS.path(MEASURED), dict[str, Any], seen, accessor=JSON_ACCESSOR)
    watcher = asyncio.create_task(watch.run())
    try:
        members = [member(number, size, name, of_gang=True, cards=CARDS) for number in range(size)]
        await several((found.api.create(PODS.path(MEASURED), one) for one in members), what="members")
        created = time.perf_counter()
        await seen.until(size)
        if seen.bound:
            raise Failure("a member of a gang that does not fit was bound")
        names = [one["metadata"]["name"] for one in members]
        await several((_delete(found, MEASURED, each) for each in names), what="members")
        return {"first_s": max(min(seen.at.values()) - created, 0.0), "all_s": max(seen.at.values()) - created}
    finally:
        await end_tasks([watcher])


async def measure_verdicts(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, list[dict[str, float]]] = {}
    async with bench(options.nodes) as found:
        side = found.sides[TESSERA]
        watch = Reflector(found.api, PODS.path(LOADED), dict[str, Any], found.bound, accessor=JSON_ACCESSOR)
        watcher = asyncio.create_task(watch.run())
        try:
            await side.start_extender()
            side.kube_scheduler.start()
            taken = 0
            for size in VERDICT_SIZES:
                load = [whole_node(number) for number in range(taken, options.nodes - size // 2)]
                await several((found.api.create(PODS.path(LOADED), one) for one in load), what="pods")
                taken += len(load)
                is_bound = partial(_are_bound, found, taken)
                await found.bound.until(is_bound, what="the load to be bound", watcher=watcher)
                for number in range(options.rounds):
                    await found.settle(side)
                    seen = results.setdefault(str(size), [])
                    seen.append(await one_verdict(found, f"verdict-{size}-{number}", size))
                    figures = {key: round(value, 2) for key, value in seen[-1].items()}
                    progress(f"  {size} members: {json.dumps(figures)}")
        finally:
            side.stop()
            await end_tasks([watcher])
    return {
        size: {key: round(statistics.median(each[key] for each in seen), 2) for key in seen[0]}
        for size, seen in results.items()
    }


def _are_bound(found: Bench, count: int) -> bool:
    return len(found.bound.at) == count


def whole_node(number: int) -> Json:
    """A pod with all cards of a node."""
    return pod(f"load-{number:04}", LOADED, memory=0, cores=0, cards=CARDS)


def judged_verdicts(results: dict[str, Any]) -> tuple[bool, str]:
    lines, kept = [f"{'what':<68} {'value':>8} {'budget':>10}"], True
    for size, found in results.items():
        for key, what in (("first_s", "the first member is told"), ("all_s", "all members are told")):
            is_judged = key == "first_s"
            is_kept = not is_judged or found[key] <= MAX_VERDICT_S
            kept = kept and is_kept
            budget = f"<= {MAX_VERDICT_S:g}" if is_judged else ""
            verdict = ("ok" if is_kept else "BROKEN") if is_judged else ""
            label = f"s from the last of {size} members until {what}"
            lines.append(f"{label:<68} {found[key]:>8.4g} {budget:>10}  {verdict}".rstrip())
    return kept, "\n".join(lines)


def _times_single(results: dict[str, Any]) -> float:
    return float(results["alone"]["whole_s"] / results["singles"]["whole_s"])


def judged(results: dict[str, Any]) -> tuple[bool, str]:
    lines, kept = [f"{'what':<68} {'value':>8} {'budget':>10}"], True
    rows = [
        ("time from the first creation until all are bound / of single pods", _times_single(results), MAX_TIMES_SINGLE)
    ]
    for kind in ("alone", "busy"):
        found = results[kind]
        rows += [
            (f"s from the last member's creation until all are bound, {kind}", found["bound_s"], MAX_S[kind]),
            (f"API writes per member, {kind}", found["writes_per_member"], MAX_WRITES),
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
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="time limit in seconds, default %(default)s")
    parser.add_argument("--verdict", action="store_true", help="measure how soon a gang is told that it does not fit")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if the budget is exceeded")
    options = parser.parse_args(arguments)
    if options.verdict and options.nodes < max(VERDICT_SIZES) // 2:
        parser.error(f"--verdict needs at least {max(VERDICT_SIZES) // 2} nodes")
    if min(options.nodes, options.members, options.rounds, options.limit) < 1 or options.others < 0:
        parser.error("needs at least one node, one member, one round and one second")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    results: dict[str, Any] = {}

    async def bounded() -> None:
        async with asyncio.timeout(options.limit):
            results.update(await (measure_verdicts(options) if options.verdict else measure(options)))

    try:
        asyncio.run(bounded())
    except* (Failure, NotStarted, OSError, build.Missing, TimeoutError) as failures:
        for failure in failures.exceptions:
            progress(f"not measured: {failure}")
    if not results:
        return 2
    kept, judgement = judged_verdicts(results) if options.verdict else judged(results)
    print(json.dumps(results) if options.json else judgement)
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
