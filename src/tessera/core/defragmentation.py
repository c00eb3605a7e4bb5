"""Which pods to move so that others fit: whole cards, or copies of one pod.

To move a pod means to evict it, so the same pods are left alone as in preemption: protected ones, those whose budget
allows nothing, and gangs of which one may not move. Priorities do not forbid a move; they decide between equal numbers.
The ledger is as before afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.core.ledger import Ledger
from tessera.core.move_planner import DEPTH, DefragmentationPlan, Goal, Planner
from tessera.core.relocation import MovablePod
from tessera.core.steps import Steps, finish
from tessera.core.victims import PodBook
from tessera.core.whole_cards import take_idle_cards, whole_card_requests


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
