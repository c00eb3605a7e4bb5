"""Which pods to move so that others fit: whole cards, or copies of one pod.

To move a pod means to evict it, so the same pods are left alone as in preemption: protected ones, those whose budget
allows nothing, and gangs of which one may not move. Priorities do not forbid a move; they decide between equal numbers.
The ledger is as before afterwards. Where whole cards are the goal, cards that no pod uses count as free already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import MIG, Device, MigSlot
from tessera.core.model.grants import Grant
from tessera.core.model.requests import WHOLE_CARD_CORES, Constraint, ContainerRequest, PodRequest, Request
from tessera.core.search import Steps, finish
from tessera.core.search.move_planner import DEPTH, DefragmentationPlan, Goal, Planner
from tessera.core.search.relocation import MovablePod
from tessera.core.search.victims import PodBook

NODES_AT_ONCE = 64
"""copied between two pauses: about 5 ms"""


def copy_in_steps(ledger: Ledger) -> Steps[Ledger]:
    """A ledger with the same quotas, nominations and nodes, to try changes on between other work. What changes
    meanwhile may be in it or not: compare what is found there with the original."""
    copied = ledger.copy_without_nodes()
    for number, name in enumerate(ledger.node_names(), 1):
        copied.copy_node(name, ledger)
        if number % NODES_AT_ONCE == 0:
            yield
    return copied


def plan_whole_cards(
    ledger: Ledger,
    book: PodBook,
    pods: Mapping[str, MovablePod],
    *,
    max_moves: float = math.inf,
    depth: int = DEPTH,
) -> DefragmentationPlan:
    """As many cards as possible without any pod, by few moves. No pod moves to a card that no pod uses."""
    with ledger.begin() as transaction:
        planner = Planner(transaction, book, pods, max_moves=max_moves)
        take_idle_cards(planner)
        goals = [Goal(request) for request in whole_card_requests(ledger)]
        for deepest in (0, depth):
            for goal in goals:
                finish(planner.run(goal, deepest))
    return finish(planner.finish())


def plan_room(
    ledger: Ledger,
    book: PodBook,
    pods: Mapping[str, MovablePod],
    goal: Goal,
    *,
    max_moves: float = math.inf,
    depth: int = DEPTH,
    highest_priority: float = math.inf,
) -> Steps[DefragmentationPlan]:
    """Room for the goal's copies, as many as possible. Those that fit already need no move. `highest_priority`: of pods
    that may move. Between other work, on a ledger that nothing else reads or changes meanwhile (`copy_in_steps`)."""
    with ledger.begin() as transaction:
        planner = Planner(transaction, book, pods, max_moves=max_moves, highest_priority=highest_priority)
        yield
        yield from planner.place_fitting(goal)
        yield
        yield from planner.run(goal, depth)
    return (yield from planner.finish())


def whole_card_requests(ledger: Ledger) -> list[PodRequest]:
    """One for each vendor, and one for each kind of card in MIG mode, whose largest instance is less than all of it."""
    found: dict[str, PodRequest] = {}
    for kind in ledger.arrays.kinds:
        vendor, sample = kind.vendor, kind.sample
        largest = max((each.memory for each in sample.mig_profiles), default=0) if sample.mode == MIG else 0
        name, constraint = f"whole {vendor} card", None
        asked = Request(vendor, count=1, percent=100, cores=WHOLE_CARD_CORES)
        if sample.mode == MIG:
            name = f"{name}, {sample.model} with {largest} MiB"
            asked = replace(asked, percent=0, memory=largest)
            constraint = Constraint(mode=MIG, use_models=(sample.model.lower(),))
        if vendor in ledger.rules and asked.memory_on(1):
            constraints = () if constraint is None else ((vendor, constraint),)
            found[name] = PodRequest("", "", name, (ContainerRequest("main", requests=(asked,)),), constraints)
    return [found[name] for name in sorted(found)]


def _largest_instance(device: Device) -> MigSlot | None:
    """Of a card in MIG mode: with it no other fits on the card."""
    slots = [MigSlot(profile.name, place) for profile in device.mig_profiles for place in profile.placements]
    return max(slots, key=lambda slot: slot.placement.size, default=None) if device.mode == MIG else None


def take_idle_cards(planner: Planner) -> None:
    """Put a pod on each card that no pod uses and that would take one: no other pod moves there."""
    views = [view for name in planner.ledger.node_names() if (view := planner.ledger.node(name)) is not None]
    for view in views:
        for card in () if view.facts.problem else view.cards:
            device = card.device
            if not card.used and not card.cordoned and not card.held and device.healthy:
                whole = Grant(
                    device.uuid,
                    device.vendor,
                    device.memory,
                    device.cores,
                    device.index,
                    slots=device.slots,
                    mig=_largest_instance(device),
                )
                uid = f"idle/{view.name}/{device.uuid}"
                planner.relocation.put(PodFacts(uid, "", uid, view.name, grants={device.vendor: ((whole,),)}))
                planner.fitting += 1
