"""How long it takes to plan moves in a large fragmented cluster, and whether the budget holds.

Every card is shared by a few pods of random sizes, so that about every second card could be freed; or cards are full,
so that hardly any pod finds another place; and both again with all cards in MIG mode. Processor time counts, so other
work on the machine matters little. The plan is made again on copies by the plain rule, as always.
The scheduler plans between other requests, on a copy of its ledger: no step of either may hold them up for long.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import process_time
from typing import TypeVar

import structlog

from bench.core import CARD_MEMORY, NVIDIA, SHARERS, make_node, make_pod
from bench.measurement import progress
from bench.preemption import Book
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import MIG, MigPlacement, MigProfile, MigSlot, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Constraint, ContainerRequest, PodRequest, Request, Role
from tessera.core.search import Steps, finish
from tessera.core.search.defragmentation import copy_in_steps, plan_room, plan_whole_cards
from tessera.core.search.move_planner import Goal
from tessera.core.search.relocation import MovablePod
from tessera.core.search.victims import PodTraits
from tessera.scheduler.features.moves.rounds import collector_paused
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors

T = TypeVar("T")
BUDGET_S = 5.0
"""for one plan at 5000 nodes with 8 cards"""
STEP_BUDGET_S = 0.05
"""for one step of it, in which a scheduler answers nothing else"""
SIZES = (5, 10, 10, 20, 25, 30, 40, 50, 60, 80, 100)
"""per cent of a card that pods take"""
SEED = 22
SLICE = CARD_MEMORY // 8
"""MiB of a memory slice of a card in MIG mode"""


def _profile(name: str, *, compute: int, size: int, starts: Sequence[int]) -> MigProfile:
    places = tuple(MigPlacement(start, size) for start in starts)
    return MigProfile(name, size * SLICE, 100 * compute // 7, size, places)


PROFILES = (
    _profile("1g.10gb", compute=1, size=1, starts=range(7)),
    _profile("2g.20gb", compute=2, size=2, starts=(0, 2, 4)),
    _profile("3g.40gb", compute=3, size=4, starts=(0, 4)),
    _profile("7g.80gb", compute=7, size=8, starts=(0,)),
)
"""of a card with 80 GB in MIG mode"""


@dataclass
class Filled:
    """A cluster, and what may move in it."""

    ledger: Ledger = field(default_factory=lambda: Ledger(build_vendors(None, Switches())))
    book: Book = field(default_factory=Book)
    movable: dict[str, MovablePod] = field(default_factory=dict)
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))

    def add(self, node: str, pod: PodRequest, grant: Grant) -> None:
        uid = pod.uid
        self.ledger.observe_pod(PodFacts(uid, "bench", uid, node, (Span(Role.APP),), {NVIDIA: ((grant,),)}))
        self.book.pods[uid] = PodTraits(uid, "bench", uid, started=10**9 + self.dice.randrange(10**6))
        self.movable[uid] = MovablePod(pod)


def fill(nodes: int, devices: int, *, full: bool = False) -> Filled:
    """Up to three pods on each card; `full`: until less than the smallest pod is left."""
    filled = Filled()
    dice = filled.dice
    for number in range(nodes):
        facts = make_node(number, devices)
        filled.ledger.observe_node(facts)
        for card in facts.devices:
            left = 100 if full else dice.choice((40, 60, 80, 100))
            for place in range(SHARERS if full else dice.randrange(4)):
                sizes = [size for size in SIZES if size <= left]
                if not sizes:
                    break
                size = dice.choice(sizes)
                left -= size
                memory = CARD_MEMORY * size // 100
                pod = make_pod(f"{card.uuid}-{place}", memory=memory, cores=size)
                filled.add(facts.name, pod, Grant(card.uuid, NVIDIA, memory, size, card.index))
    return filled


def fill_with_instances(nodes: int, devices: int, *, full: bool = False) -> Filled:
    """All cards in MIG mode, with up to four instances at any of their places; `full`: with 6 to 11 tries."""
    filled = Filled()
    dice = filled.dice
    for number in range(nodes):
        cards = tuple(
            replace(card, slots=7, model="NVIDIA A100-SXM4-80GB", mode=MIG, mig_profiles=PROFILES)
            for card in make_node(number, devices).devices
        )
        facts = NodeFacts(f"node-{number:05}", cards)
        filled.ledger.observe_node(facts)
        for card in cards:
            taken: list[MigPlacement] = []
            for place in range(dice.randrange(6, 12) if full else dice.randrange(5)):
                profile = dice.choice((PROFILES[0], PROFILES[0], PROFILES[1], PROFILES[2]))
                free = [each for each in profile.placements if not any(map(each.overlaps, taken))]
                if not free:
                    continue
                taken.append(dice.choice(free))
                slot = MigSlot(profile.name, taken[-1])
                pod = make_pod(f"{card.uuid}-{place}", memory=profile.memory, cores=0)
                filled.add(
                    facts.name, pod, Grant(card.uuid, NVIDIA, profile.memory, profile.cores, card.index, mig=slot)
                )
    return filled


def four_copies(
    count: int, constraint: Constraint | None = None, *, memory: int = 0, percent: int = 0, cores: int = 0
) -> Goal:
    """Of a pod that wants so many cards, or instances, of one node."""
    request = Request(NVIDIA, count=count, memory=memory, percent=percent, cores=cores)
    constraints = () if constraint is None else ((NVIDIA, constraint),)
    return Goal(
        PodRequest("new", "bench", "new", (ContainerRequest("main", Role.APP, (request,)),), constraints), count=4
    )


def _run_steps(filled: Filled, devices: int, *, write: Callable[[str], None]) -> bool:
    """Whether a step of what the scheduler does in a round took too long."""
    with collector_paused():
        return _measure_steps(filled, devices, write=write)


def _measure_steps(filled: Filled, devices: int, *, write: Callable[[str], None]) -> bool:
    ledger, seconds = _measure("copy", copy_in_steps(filled.ledger), write)
    one = replace(four_copies(devices, percent=100, cores=100), count=1)
    _, longest = _measure("plan in steps", plan_room(ledger, filled.book, filled.movable, one), write)
    return max(seconds, longest) > STEP_BUDGET_S


def _measure(case: str, steps: Steps[T], write: Callable[[str], None]) -> tuple[T, float]:
    """The result, and the longest step in seconds of processor time."""
    progress(case)
    total = longest = 0.0
    while True:
        began = process_time()
        try:
            next(steps)
        except StopIteration as end:
            total, longest = total + process_time() - began, max(longest, process_time() - began)
            write(json.dumps({"case": case, "seconds": round(total, 2), "longest_step_seconds": round(longest, 4)}))
            found: T = end.value
            return found, longest
        spent = process_time() - began
        total, longest = total + spent, max(longest, spent)


def _run_plans(
    name: str, filled: Filled, goals: Mapping[str, Goal], *, most: int, write: Callable[[str], None]
) -> bool:
    """Whether a plan took too long."""
    over = False
    for case, goal in {"whole cards": None, **goals}.items():
        progress(f"{name}: {case}")
        began = process_time()
        if goal is None:
            plan = plan_whole_cards(filled.ledger, filled.book, filled.movable, max_moves=most)
        else:
            plan = finish(plan_room(filled.ledger, filled.book, filled.movable, goal, max_moves=most))
        seconds = process_time() - began
        figures = {"cluster": name, "case": case, "seconds": round(seconds, 2)}
        write(json.dumps({**figures, "moves": plan.moves, "gained": len(plan.gained), "pods": len(filled.movable)}))
        over = over or seconds > BUDGET_S
    return over


def main(arguments: Sequence[str] | None = None, *, write: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument(
        "--check", action="store_true", help=f"fail above {BUDGET_S:g} s a plan, {STEP_BUDGET_S:g} s a step"
    )
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    nodes, devices = options.nodes, options.devices
    whole = {"four whole nodes": four_copies(devices, percent=100, cores=100)}
    in_mig = Constraint(mode=MIG)
    instances = {
        "four whole nodes": four_copies(devices, in_mig, memory=CARD_MEMORY),
        "half of each card": four_copies(devices, in_mig, memory=CARD_MEMORY // 2),
        "two quarters of each card": four_copies(2 * devices, in_mig, memory=CARD_MEMORY // 4),
    }
    over = False
    for name, make, goals in (
        ("shared", fill, whole),
        ("shared, full", partial(fill, full=True), whole),
        ("MIG", fill_with_instances, instances),
        ("MIG, full", partial(fill_with_instances, full=True), instances),
    ):
        progress(f"{name}: filling the cluster")
        filled = make(nodes, devices)
        if name == "shared":
            over = _run_steps(filled, devices, write=write)
        over = _run_plans(name, filled, goals, most=options.moves, write=write) or over
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
