"""POST /filter over HTTP against the running scheduler, beside an echo that only decodes the same request.

    python -m bench.filter --nodes 1000 --devices 8 --pods-per-node 16 --json
    python -m bench.filter --check

Every request is about a new pod, and every answer reserves its cards, so that the cluster keeps changing. Names come in
another order each time, as the parallel workers of kube-scheduler leave them. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.filter_requests import FilterRequests
from bench.measurement import Answer, Budget, Caller, in_turns, memory_of, percentile, progress, side_by_side, table
from bench.processes import BenchmarkProcesses, Failure, Server, Service, Size

WARM_UP = 40
"""calls before measuring; every repeated shape has been seen by then"""
PENDING = 2_000
"""refused pods of the backlog"""
CALLS_PER_BIND = 20
"""refusals between two placements: after every bind kube-scheduler retries the backlog"""
LIMIT_S = 420

MAX_RATIO_SMALL, MAX_RATIO_LARGE = 2.5, 2.0
"""at 1000 and 5000 nodes"""
MAX_REFUSED_RATIO = 1.5
MAX_GROWTH = 1.3
MAX_READY_S = 15.0
MAX_RESIDENT_MB, MAX_PENDING_MB = 400.0, 600.0
CHECKED = Size(1_000, 8, 16)
LARGE = Size(5_000, 8, 16)
LARGE_EMPTY = Size(5_000, 8, 0)

Act = Callable[[], float]
Figures = dict[str, float]


@dataclass(slots=True)
class Target:
    """One service, and the echo beside it."""

    size: Size
    service: Service
    echo_server: Server
    filter: Caller
    echo: Caller
    echo_refusal: Caller
    asking: FilterRequests
    backlog: list[tuple[tuple[int, int], str]] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(5))

    def placing(self, request: Callable[[], bytes]) -> Act:
        def act() -> float:
            answer = self.filter.post(request())
            if b'"NodeNames":["' not in answer.body:
                raise Failure(f"a pod was not placed: {_shortened(answer)}")
            return answer.seconds

        return act

    def refusing(self, *, shuffled: bool) -> Act:
        """A call for a pod of the backlog, with a placement now and then."""
        calls = 0

        def act() -> float:
            nonlocal calls
            calls += 1
            if calls % CALLS_PER_BIND == 0:
                self.placing(self.asking.repeated)()
            shape, uid = self.dice.choice(self.backlog)
            return self.refuse(shape, uid, shuffled=shuffled)

        return act

    def refuse(self, shape: tuple[int, int], uid: str, *, shuffled: bool) -> float:
        answer = self.filter.post(self.asking.request(shape, uid=uid, shuffled=shuffled))
        if b'"FailedNodes":{"' not in answer.body:
            raise Failure(f"a pod was not refused: {_shortened(answer)}")
        return answer.seconds

    def echoing(self, request: Callable[[], bytes], caller: Caller | None = None) -> Act:
        chosen = caller or self.echo
        return lambda: chosen.post(request()).seconds


def _shortened(answer: Answer) -> str:
    return answer.body[:300].decode(errors="replace")


def start(processes: BenchmarkProcesses, stack: ExitStack, size: Size, *, run: str = "0", policy: str = "") -> Target:
    service = processes.service(processes.canned_api(size), policy=policy)
    progress(f"ready after {service.ready_s} s")
    echo = processes.echo()
    target = Target(
        size,
        service,
        echo,
        filter=stack.enter_context(Caller(service.extender, "/filter")),
        echo=stack.enter_context(Caller(echo.port, "/echo")),
        echo_refusal=stack.enter_context(Caller(echo.port, "/echo-refusal")),
        asking=FilterRequests(size.nodes, run=run),
    )
    in_turns(
        {"filter": target.placing(target.asking.repeated), "echo": target.echoing(target.asking.repeated)}, WARM_UP
    )
    return target


def beside_echo(
    name: str, target: Target, act: Act, request: Callable[[], bytes], calls: int, caller: Caller | None = None
) -> Figures:
    """Wall clock, and the processor time of both event loops."""
    progress(f"measuring {calls} calls: {name}")
    found = side_by_side(
        {name: (target.service.pid, act), "echo": (target.echo_server.pid, target.echoing(request, caller))}, calls
    )
    ours, echo = found[name], found["echo"]
    ratio, by_work = ours.p50 / echo.p50, ours.work / echo.work
    progress(f"  p50 {ours.p50:.3f} ms, echo {echo.p50:.3f} ms, ratio {ratio:.2f}, by work {by_work:.2f}")
    return {
        f"{name}_p50_ms": ours.p50,
        f"{name}_p99_ms": ours.p99,
        f"{name}_echo_p50_ms": echo.p50,
        f"{name}_ratio": round(ratio, 3),
        f"{name}_work_ms": ours.work,
        f"{name}_work_ratio": round(by_work, 3),
    }


def placements(target: Target, calls: int) -> Figures:
    """Repeated shapes, then shapes never seen before, then names in a fixed order."""
    asking = target.asking
    found = beside_echo("filter", target, target.placing(asking.repeated), asking.repeated, calls)
    found["echo_p50_ms"] = found.pop("filter_echo_p50_ms")
    found["ratio"] = found.pop("filter_ratio")
    found |= beside_echo("unseen", target, target.placing(asking.unseen), asking.repeated, calls // 2)

    def listed() -> bytes:
        return asking.repeated(shuffled=False)

    return found | beside_echo("same_order", target, target.placing(listed), listed, calls // 2)


def refusals(target: Target, calls: int) -> Figures:
    """A backlog of pods that do not fit, and calls for one of them."""
    target.backlog = list(target.asking.hopeless(PENDING))
    progress(f"refusing {PENDING} pods for the first time; now {memory_of(target.service.pid).now} MiB resident")
    first = [target.refuse(shape, uid, shuffled=True) for shape, uid in target.backlog]
    found = {"refused_first_p50_ms": percentile(first, 50), "refused_first_p99_ms": percentile(first, 99)}
    for name, shuffled in (("refused", True), ("refused_same_order", False)):

        def request(shuffled: bool = shuffled) -> bytes:
            return target.asking.repeated(shuffled=shuffled)

        act = target.refusing(shuffled=shuffled)
        found |= beside_echo(name, target, act, request, calls, target.echo_refusal)
    return found | {"backlog_resident_mb": memory_of(target.service.pid).now}


def state(target: Target) -> Figures:
    memory = memory_of(target.service.pid)
    return {"ready_s": target.service.ready_s, "resident_mb": memory.now, "peak_mb": memory.peak}


def measure(size: Size, calls: int, limit: int, *, policy: str = "") -> Figures:
    """All figures of one cluster; the names say the unit."""
    with BenchmarkProcesses(limit=limit) as processes, ExitStack() as stack:
        target = start(processes, stack, size, policy=policy)
        return placements(target, calls) | state(target) | refusals(target, calls // 2)


def growth(empty: Target, loaded: Target, calls: int) -> float:
    """How much slower a placement is with running pods than without.

    Names come in one order here: looking them up, which costs the same for both, would hide a difference.
    """
    progress(f"comparing with an empty cluster: {calls} calls each")

    def placing(target: Target) -> Act:
        return target.placing(lambda: target.asking.repeated(shuffled=False))

    taken = in_turns({"without": placing(empty), "with": placing(loaded)}, calls)
    return round(percentile(taken["with"], 50) / percentile(taken["without"], 50), 3)


def check(calls: int, limit: int) -> list[Budget]:
    """The budgets, at the sizes for which they are defined."""
    with BenchmarkProcesses(limit=limit) as processes, ExitStack() as stack:
        small = placements(start(processes, stack, CHECKED), calls)
    with BenchmarkProcesses(limit=limit) as processes, ExitStack() as stack:
        loaded = start(processes, stack, LARGE)
        started = state(loaded)
        large = placements(loaded, calls)
        empty = start(processes, stack, LARGE_EMPTY, run="e")
        grown = growth(empty, loaded, calls)
        refused = refusals(loaded, calls // 2)
    return [
        Budget("filter / echo, 1000 nodes", small["ratio"], MAX_RATIO_SMALL),
        Budget("filter / echo, 5000 nodes", large["ratio"], MAX_RATIO_LARGE),
        Budget("filter with 16 pods a node / with none", grown, MAX_GROWTH),
        Budget(
            "refusal / echo of the same size, 5000 nodes, 2000 pods pending",
            refused["refused_ratio"],
            MAX_REFUSED_RATIO,
        ),
        Budget("start with 80,000 pods, seconds to ready", started["ready_s"], MAX_READY_S),
        Budget("start with 80,000 pods, resident MiB", started["resident_mb"], MAX_RESIDENT_MB),
        Budget("with 2000 pods pending, resident MiB", refused["backlog_resident_mb"], MAX_PENDING_MB),
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.filter", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=CHECKED.nodes, help="default %(default)s")
    parser.add_argument("--devices", type=int, default=CHECKED.devices, help="cards per node, default %(default)s")
    parser.add_argument(
        "--pods-per-node", type=int, default=CHECKED.pods_per_node, help="running pods per node, default %(default)s"
    )
    parser.add_argument("--policy", default="", help="for nodes and cards; default: that of the scheduler")
    parser.add_argument("--calls", type=int, default=400, help="measured calls of a kind, default %(default)s")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="time limit in seconds, default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="compare with the budgets; exit 1 if one is exceeded")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # The client is measured too: no garbage collection in it.
    gc.disable()
    try:
        if options.check:
            budgets = check(options.calls, options.limit)
            print(json.dumps({b.name: b.value for b in budgets}) if options.json else table(budgets))
            return 0 if all(budget.kept for budget in budgets) else 1
        size = Size(options.nodes, options.devices, options.pods_per_node)
        found = measure(size, options.calls, options.limit, policy=options.policy)
    except (Failure, OSError) as error:
        progress(f"not measured: {error}")
        return 2
    print(json.dumps(found) if options.json else "\n".join(f"{name:<28} {value:>10}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
