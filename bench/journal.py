"""What record and log line of a decision cost: the same filter calls on two engines, one of which keeps a journal and
logs its decisions to a pipe that another process reads.

    python -m bench.journal --nodes 5000
    python -m bench.journal --check

The calls take turns, and the processor time that each takes of its thread, which stands for the event loop, is
measured. Events are recorded, and lines written, some at a time, so calls are compared in groups that contain all of
it: a figure is the median over rounds of the median over groups of the difference between the two engines. A full ring
drops many records now and then, which few groups show: that is measured apart, for each record, and added for the
records of a decision. Both engines keep metrics, as the service does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC
from time import monotonic, thread_time, time
from typing import cast

import numpy as np

from bench.core import make_held, make_node
from bench.filter_requests import FilterRequests, Shape
from bench.fleet import node_name
from bench.measurement import Budget, progress, table
from bench.processes import Failure
from tessera.scheduler.clock import Clock
from tessera.scheduler.decision_log import DecisionLog
from tessera.scheduler.engine import Engine
from tessera.scheduler.journal import TOGETHER, Journal, start_record
from tessera.scheduler.journal_ring import JournalRing
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.metrics.service_metrics import Metrics
from tessera.scheduler.observer import ObserverGroup
from tessera.scheduler.settings import JournalSettings, Settings
from tessera.scheduler.tenure import Tenure
from tessera.services.common_settings import LogFormat, LogOptions
from tessera.services.logs import configure_logs

CARDS, PODS_PER_NODE = 8, 8
SIZES = (1_000, 5_000)
PENDING = 1_280
"""refused pods of the backlog"""
CALLS_PER_PLACEMENT = 20
"""refusals between two placements: after every bind kube-scheduler retries the backlog"""
WARM_UP = 64
GROUP = 2 * TOGETHER
"""calls: each leaves one or two events"""
DROPPED = 2_000
"""records"""
ROUNDS = 5
RING_BYTES, FULL_RING_BYTES = 256 << 20, 1 << 20
"""for all calls, and to measure what records cost that push others out"""
MAX_MICROSECONDS = 15.0

Call = Callable[[bytes], bytes]


def engine(nodes: int, journal: Journal | None) -> Engine:
    """Nodes with running pods."""
    observers = (Metrics(),) if journal is None else (journal, DecisionLog(), Metrics())
    made = Engine(
        Settings(),
        cast("KubeApi", None),  # nothing is written: no filter reaches the API
        clock=Clock(time, monotonic, UTC),
        spawn=lambda work: work.close(),
        observer=ObserverGroup(*observers),
        tenure=Tenure.unlimited(),
    )
    if journal is not None:
        journal.attach(made.ledger)
    for number in range(nodes):
        facts = replace(make_node(number, CARDS), name=node_name(number))
        made.ledger.observe_node(facts)
        for held in range(PODS_PER_NODE):
            made.ledger.observe_pod(make_held(facts, held))
    return made


@dataclass
class Pair:
    """Two engines that are asked the same."""

    nodes: int
    journal: Journal = field(init=False)
    asking: FilterRequests = field(init=False)
    calls: dict[str, Call] = field(init=False)

    def __post_init__(self) -> None:
        settings = Settings(journal=JournalSettings(memory_bytes=RING_BYTES))
        self.journal = Journal(settings, now=time)
        with_journal, without = engine(self.nodes, self.journal), engine(self.nodes, None)
        self.calls = {"with": with_journal.filter.answer, "without": without.filter.answer}
        self.asking = FilterRequests(self.nodes)

    def measure(self, requests: Iterable[bytes], expected: bytes) -> tuple[float, float]:
        """Microseconds per call without record and line, and how many more with them."""
        taken: dict[str, list[float]] = {name: [] for name in self.calls}
        order = list(self.calls)
        for request in requests:
            for name in order:
                call = self.calls[name]
                began = thread_time()
                answer = call(request)
                taken[name].append(thread_time() - began)
                if expected not in answer:
                    raise Failure(f"unexpected answer: {answer[:300]!r}")
            order.reverse()
        without, recorded = (np.array(taken[name]) for name in ("without", "with"))
        more = (recorded - without)[: len(without) // GROUP * GROUP].reshape(-1, GROUP).mean(axis=1)
        return float(np.median(without)) * 1e6, float(np.median(more)) * 1e6

    def retries(self, backlog: Sequence[tuple[Shape, str]], calls: int) -> Iterator[bytes]:
        """Calls for pods of the backlog, with a placement now and then."""
        dice = random.Random(7)
        for number in range(calls):
            if number % CALLS_PER_PLACEMENT == 0:
                request = self.asking.repeated()
                for call in self.calls.values():
                    call(request)
            shape, uid = dice.choice(backlog)
            yield self.asking.request(shape, uid=uid)


@contextmanager
def lines_read_by_a_process() -> Iterator[None]:
    """Log lines go through a pipe, as those of a container do."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        pipe = os.fdopen(os.dup(reader.stdin.fileno()), "w", encoding="utf-8")
        with pipe, closing(configure_logs(LogOptions(format=LogFormat.JSON), pipe)):
            yield
        reader.stdin.close()


def dropping(journal: Journal) -> float:
    """Microseconds for a record that enters a full ring."""
    entries = journal._ring.after(journal.sequence - DROPPED)
    ring = JournalRing(start_record(Settings(), identity="", time=0.0), limit=FULL_RING_BYTES)
    size = FULL_RING_BYTES // len(entries) * 2
    best = float("inf")
    for _ in range(ROUNDS):
        began = thread_time()
        for entry in entries:
            ring.append(entry, size)
        best = min(best, thread_time() - began)
    return best / len(entries) * 1e6


def measure(nodes: int, calls: int) -> dict[str, float]:
    """Microseconds; the names say of what."""
    progress(f"building two engines with {nodes} nodes")
    pair = Pair(nodes)
    asking = pair.asking
    placed, refused = b'"NodeNames":["', b'"FailedNodes":{"'
    pair.measure((asking.repeated() for _ in range(WARM_UP)), placed)
    progress(f"measuring {calls} calls of each kind")
    found = {}
    found["placed"], found["placed_more"] = pair.measure((asking.repeated() for _ in range(calls)), placed)
    _, found["unseen_more"] = pair.measure((asking.unseen() for _ in range(calls)), placed)
    backlog = asking.hopeless(PENDING)
    first = (asking.request(shape, uid=uid) for shape, uid in backlog)
    found["first_refused"], found["first_refused_more"] = pair.measure(first, refused)
    found["refused"], found["refused_more"] = pair.measure(pair.retries(backlog, calls), refused)
    dropped = found["dropped_more"] = dropping(pair.journal)
    for kind, records in (("placed", 2), ("unseen", 2), ("first_refused", 1), ("refused", 1)):
        found[f"{kind}_more"] += records * dropped
    return {name: round(value, 2) for name, value in found.items()}


def check(calls: int) -> list[Budget]:
    budgets = []
    for nodes in SIZES:
        rounds = [measure(nodes, calls) for _ in range(ROUNDS)]
        found = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
        budgets += [
            Budget(f"placement, {nodes} nodes, more microseconds", found["placed_more"], MAX_MICROSECONDS),
            Budget(f"first refusal, {nodes} nodes, more microseconds", found["first_refused_more"], MAX_MICROSECONDS),
            Budget(f"repeated refusal, {nodes} nodes, more microseconds", found["refused_more"], MAX_MICROSECONDS),
        ]
    return budgets


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.journal", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=SIZES[0], help="default %(default)s")
    parser.add_argument("--calls", type=int, default=1_280, help="measured calls of a kind, default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="compare with the budgets; exit 1 if one is exceeded")
    options = parser.parse_args(arguments)
    gc.disable()
    try:
        with lines_read_by_a_process():
            if options.check:
                budgets = check(options.calls)
                print(json.dumps({b.name: b.value for b in budgets}) if options.json else table(budgets))
                return 0 if all(budget.kept for budget in budgets) else 1
            found = measure(options.nodes, options.calls)
    except Failure as error:
        progress(f"not measured: {error}")
        return 2
    print(json.dumps(found) if options.json else "\n".join(f"{name:<28} {value:>10}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
