"""The fewest moves that empty so many cards: every order of moves, on plain numbers.

An oracle for defragmentation. It knows cards of some models and pods that take so much of one card; it uses nothing of
the product. Each pod moves at most once, because its successor is another pod; it may move to an idle card.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

Stack = tuple[str, frozenset[int]]
"""a card's model, and the pods on it"""
Stacks = frozenset[Stack]
"""all cards with pods: no pod is on two cards, so no two are equal"""
State = tuple[frozenset[int], Stacks]
"""pods that have moved, and where all are"""


class PackedPod(NamedTuple):
    size: int
    model: str = ""
    """the only model that it accepts; empty: any"""
    is_fixed: bool = False


def fewest_moves(
    pods: list[PackedPod], cards: list[tuple[str, frozenset[int]]], *, capacity: int, idle: dict[str, int]
) -> list[int]:
    """At place g: the fewest moves after which g more cards are empty; as long as the largest gain that is possible."""
    first: Stacks = frozenset(cards)
    start: State = (frozenset(), first)
    seen = {start}
    best = [0]
    queue = deque([start])
    while queue:
        moved, stacks = queue.popleft()
        if len(first) - len(stacks) >= len(best):
            best.append(len(moved))
        for after in _neighbours((moved, stacks), pods, capacity, idle, first):
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return best


def _neighbours(
    state: State, pods: list[PackedPod], capacity: int, idle: dict[str, int], first: Stacks
) -> Iterator[State]:
    moved, stacks = state
    room = {stack: capacity - sum(pods[pod].size for pod in stack[1]) for stack in stacks}
    for source in stacks:
        model, members = source
        for pod in members:
            size, wanted, is_fixed = pods[pod]
            if is_fixed or pod in moved:
                continue
            left = members - {pod}
            rest = stacks - {source} | ({(model, left)} if left else frozenset())
            for target in stacks:
                if target != source and room[target] >= size and wanted in ("", target[0]):
                    yield moved | {pod}, rest - {target} | {(target[0], target[1] | {pod})}
            for other in idle if left else ():
                used = sum(stack[0] == other for stack in stacks) - sum(stack[0] == other for stack in first)
                if wanted in ("", other) and idle[other] > used:
                    yield moved | {pod}, rest | {(other, frozenset({pod}))}
