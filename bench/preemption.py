"""How long it takes to find the best victims in a full cluster, and whether the budget holds.

Each case is another full cluster. Every search is followed by the nomination of its result, so that the next one finds
another cluster, as in production. Processor time counts, so other work on the machine matters little. Not here:
evictions, and the wait for victims (`bench/preemption_cluster.py`).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from time import process_time

from bench.core import CARD_MEMORY, NVIDIA, make_node
from bench.measurement import percentile, progress
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import ContainerRequest, PodRequest, Request, Role
from tessera.core.search.preemption import Demand, Preemption, VictimSet
from tessera.core.search.selection import Candidates, Selector
from tessera.core.search.victims import PodTraits
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors

BUDGET_MS = 20.0
"""for one search among 5000 nodes with 8 cards, 95th percentile; where sets are tried, for its longest step"""
PREEMPTOR = 1_000
"""priority; everything else is below it"""
SEARCHES_IN_STEPS = 3
"""at most, of a case that takes seconds for each"""
SEED = 20


@dataclass
class Book:
    """`PodBook` of pods that stand alone and have no budgets."""

    pods: dict[str, PodTraits] = field(default_factory=dict)
    lowest_priority: int | None = 0

    def traits(self, uid: str) -> PodTraits | None:
        return self.pods.get(uid)

    def members(self, group: str) -> Collection[str]:
        return ()

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        yield from ()

    def budgets(self, uid: str) -> tuple[str, ...]:
        return ()

    def disruptions_allowed(self, budget: str) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Case:
    """What fills the cluster, and what asks for room."""

    name: str
    sharers: int
    """pods on each card, which share it equally"""
    priorities: Sequence[int]
    cards: int
    """that the preemptor asks for"""
    share: int
    """per cent of each of these cards"""
    spread_s: int = 10**6
    """of start times; 1: all pods started together"""
    containers: int = 1
    """of the preemptor, each with such a request; with several, sets are tried by the plain rule"""

    @property
    def takes_steps(self) -> bool:
        """Whether many nodes have to be looked at, each in steps between which other requests are served."""
        return self.containers > 1


CASES = (
    Case("one whole card, from whole-card pods", sharers=1, priorities=(0,), cards=1, share=100),
    Case("one whole card, all pods of one age", sharers=1, priorities=(0,), cards=1, share=100, spread_s=1),
    Case("eight whole cards, from whole-card pods", sharers=1, priorities=(0,), cards=8, share=100),
    Case("one whole card, four pods on each", sharers=4, priorities=(0, 10, 100), cards=1, share=100),
    Case("half a card, ten pods on each", sharers=10, priorities=(0, 10, 100), cards=1, share=50),
    Case("two containers with two cards each", sharers=4, priorities=(0, 10), cards=2, share=50, containers=2),
    Case("two half cards, four pods on each", sharers=4, priorities=(0, 5, 10, 50, 100), cards=2, share=50),
)


def fill(case: Case, nodes: int, devices: int) -> tuple[Ledger, Book]:
    ledger = Ledger(build_vendors(None, Switches()))
    book, dice = Book(lowest_priority=min(case.priorities)), random.Random(SEED)
    for number in range(nodes):
        facts = make_node(number, devices)
        ledger.observe_node(facts)
        for pod in _pods(case, facts):
            ledger.observe_pod(pod)
            started = 10**9 + dice.randrange(case.spread_s)
            book.pods[pod.uid] = PodTraits(
                pod.uid, pod.namespace, pod.name, priority=dice.choice(case.priorities), started=started
            )
    return ledger, book


def _pods(case: Case, node: NodeFacts) -> list[PodFacts]:
    found = []
    for card in node.devices:
        for number in range(case.sharers):
            uid = f"{card.uuid}-{number}"
            grant = Grant(card.uuid, NVIDIA, CARD_MEMORY // case.sharers, 100 // case.sharers, card.index)
            found.append(PodFacts(uid, "bench", uid, node.name, (Span(Role.APP),), {NVIDIA: ((grant,),)}))
    return found


def search(preemption: Preemption, pod: PodRequest, candidates: Candidates) -> tuple[VictimSet | None, list[float]]:
    """The victims, and the seconds of each step: between two steps other requests are served."""
    steps: list[float] = []
    searching = preemption.search(Demand.of_pod(pod, candidates, priority=PREEMPTOR))
    while True:
        began = process_time()
        try:
            next(searching)
        except StopIteration as end:
            steps.append(process_time() - began)
            return end.value, steps
        steps.append(process_time() - began)


def measure(case: Case, *, nodes: int, devices: int, searches: int) -> dict[str, float | str]:
    ledger, book = fill(case, nodes, devices)
    selector = Selector(ledger)
    candidates = selector.candidates(ledger.node_names())
    preemption = Preemption(selector, book)
    request = Request(NVIDIA, count=case.cards, memory=CARD_MEMORY * case.share // 100, cores=case.share)
    seconds, stretches, victims = [], [], 0
    began = process_time()
    while not preemption.arrays.catch_up(nodes):
        pass
    start_s = process_time() - began
    gc.collect()
    gc.freeze()
    for number in range(searches):
        uid = f"preemptor-{number}"
        asked = tuple(ContainerRequest(f"c{i}", Role.APP, (request,)) for i in range(case.containers))
        pod = PodRequest(uid, "bench", uid, asked)
        found, steps = search(preemption, pod, candidates)
        seconds.append(sum(steps))
        stretches.append(max(steps))
        if found is None:
            sys.exit(f"{case.name}: no victims found")
        ledger.nominate(facts_of(pod, found.places[0].placement), frozenset((*found.victims, *found.leaving)))
        victims += len(found.victims)
    gc.unfreeze()
    return {
        "case": case.name,
        "p50_ms": percentile(seconds, 50),
        "p95_ms": percentile(seconds, 95),
        "stretch_ms": percentile(stretches, 95),
        "victims": victims / searches,
        "first_look_ms": round(1000 * start_s, 1),
    }


def main(arguments: Sequence[str] | None = None, *, write: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--searches", type=int, default=40)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--check", action="store_true", help=f"fail above {BUDGET_MS:g} ms")
    options = parser.parse_args(arguments)
    over = False
    for case in (each for each in CASES if options.case in each.name):
        progress(case.name)
        searches = min(options.searches, SEARCHES_IN_STEPS) if case.takes_steps else options.searches
        found = measure(case, nodes=options.nodes, devices=options.devices, searches=searches)
        write(json.dumps(found))
        over = over or float(found["stretch_ms" if case.takes_steps else "p95_ms"]) > BUDGET_MS
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
