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
                planner.run(goal, deepest)
    return planner.finish()


def plan_room(
    ledger: Ledger,
    book: PodBook,
    pods: Mapping[str, MovablePod],
    goal: Goal,
    *,
    max_moves: float = math.inf,
    depth: int = DEPTH,
) -> DefragmentationPlan:
    """Room for the goal's copies, as many as possible. Those that fit already need no move."""
    with ledger.begin() as transaction:
        planner = Planner(transaction, book, pods, max_moves=max_moves)
        planner.place_fitting(goal)
        planner.run(goal, depth)
    return planner.finish()
