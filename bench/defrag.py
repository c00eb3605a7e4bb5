"""How long it takes to plan moves in a large fragmented cluster, and whether the budget holds.

Every card is shared by a few pods of random sizes, so that about every second card could be freed. Processor time
counts, so other work on the machine matters little. The plan is made again on copies by the plain rule, as always.
Rounds of `tessera defrag run` begin with the API objects: an apiserver is not part of it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections.abc import Callable, Sequence
from time import process_time

import structlog

from bench.core import CARD_MEMORY, NVIDIA, make_node, make_pod
from bench.defrag_rounds import make_round, none_gains, one_gains, read_cluster
from bench.measurement import progress
from bench.preemption import Book
from tessera.core.defragmentation import plan_room, plan_whole_cards
from tessera.core.grants import Grant, Span
from tessera.core.holdings import PodFacts
from tessera.core.ledger import Ledger
from tessera.core.move_planner import DefragmentationPlan, Goal
from tessera.core.relocation import MovablePod
from tessera.core.requests import ContainerRequest, PodRequest, Request, Role
from tessera.core.victims import PodTraits
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors

BUDGET_S = 5.0
"""for one plan at 5000 nodes with 8 cards"""
SIZES = (5, 10, 10, 20, 25, 30, 40, 50, 60, 80, 100)
"""per cent of a card that pods take"""
SEED = 22


def fill(nodes: int, devices: int) -> tuple[Ledger, Book, dict[str, MovablePod]]:
    ledger, book, dice = Ledger(build_vendors(None, Switches())), Book(), random.Random(SEED)
    movable: dict[str, MovablePod] = {}
    for number in range(nodes):
        facts = make_node(number, devices)
        ledger.observe_node(facts)
        for card in facts.devices:
            left = dice.choice((40, 60, 80, 100))
            for place in range(dice.randrange(4)):
                size = dice.choice([size for size in SIZES if size <= left] or [0])
                if not size:
                    break
                left -= size
                uid = f"{card.uuid}-{place}"
                pod = make_pod(uid, memory=CARD_MEMORY * size // 100, cores=size)
                grant = Grant(card.uuid, NVIDIA, CARD_MEMORY * size // 100, size, card.index)
                ledger.observe_pod(PodFacts(uid, "bench", uid, facts.name, (Span(Role.APP),), {NVIDIA: ((grant,),)}))
                book.pods[uid] = PodTraits(uid, "bench", uid, started=10**9 + dice.randrange(10**6))
                movable[uid] = MovablePod(pod)
    return ledger, book, movable


def whole_node(devices: int) -> Goal:
    request = Request(NVIDIA, count=devices, percent=100, cores=100)
    return Goal(PodRequest("new", "bench", "new", (ContainerRequest("main", Role.APP, (request,)),)), count=4)


def _run_rounds(ledger: Ledger, devices: int, write: Callable[[str], None]) -> bool:
    """Whether a plan of a round took too long: with what is read of the pods that may move, which a round does once."""
    over = False
    for name, waiting in (("round, one gains", one_gains(devices)), ("round, none gains", none_gains(devices))):
        progress(name)
        outcome, reading, planning = make_round(read_cluster(ledger, waiting))
        figures = {"case": name, "outcome": outcome.value, "kinds": len(waiting)}
        seconds = {"reading_seconds": round(reading, 2), "planning_seconds": round(planning, 2)}
        write(json.dumps({**figures, **seconds}))
        over = over or planning / len(waiting) > BUDGET_S
    return over


def main(arguments: Sequence[str] | None = None, *, write: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--check", action="store_true", help=f"fail above {BUDGET_S:g} s")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    progress("filling the cluster")
    ledger, book, movable = fill(options.nodes, options.devices)
    most = options.moves
    cases: dict[str, Callable[[], DefragmentationPlan]] = {
        "whole cards": lambda: plan_whole_cards(ledger, book, movable, most_moves=most),
        "four whole nodes": lambda: plan_room(ledger, book, movable, whole_node(options.devices), most_moves=most),
    }
    over = _run_rounds(ledger, options.devices, write)
    for name, make in cases.items():
        progress(name)
        began = process_time()
        plan = make()
        seconds = process_time() - began
        figures = {"case": name, "seconds": round(seconds, 2), "moves": plan.moves, "gained": len(plan.gained)}
        write(json.dumps({**figures, "pods": len(movable)}))
        over = over or seconds > BUDGET_S
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
