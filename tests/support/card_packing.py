"""The fewest moves that empty so many cards: every order of moves, on plain numbers.

An oracle for defragmentation. It knows cards of some models and pods that take so much of one card; it uses nothing of
the product. Pods may move several times, and to idle cards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

Stack = tuple[str, frozenset[int]]
"""a card's model, and the pods on it"""
State = frozenset[Stack]
"""all cards with pods: no pod is on two cards, so no two are equal"""


class PackedPod(NamedTuple):
    size: int
    model: str = ""
    """the only model that it accepts; empty: any"""
    is_fixed: bool = False


def fewest_moves(
    pods: list[PackedPod], cards: list[tuple[str, frozenset[int]]], *, capacity: int, idle: dict[str, int]
) -> list[int]:
    """At place g: the fewest moves after which g more cards are empty; as long as the largest gain that is possible."""
    start: State = frozenset(cards)
    depths = {start: 0}
    best = [0]
    queue = deque([start])
    while queue:
        state = queue.popleft()
        gain = len(start) - len(state)
        if gain >= len(best):
            best.append(depths[state])
        for after in _neighbours(state, pods, capacity, idle, start):
            if after not in depths:
                depths[after] = depths[state] + 1
                queue.append(after)
    return best


def _neighbours(
    state: State, pods: list[PackedPod], capacity: int, idle: dict[str, int], start: State
) -> Iterator[State]:
    room = {stack: capacity - sum(pods[pod].size for pod in stack[1]) for stack in state}
    for source in state:
        model, members = source
        for pod in members:
            size, wanted, is_fixed = pods[pod]
            if is_fixed:
                continue
            left = members - {pod}
            rest = state - {source} | ({(model, left)} if left else frozenset())
            for target in state:
                if target != source and room[target] >= size and wanted in ("", target[0]):
                    yield rest - {target} | {(target[0], target[1] | {pod})}
            for other in idle if left else ():
                used = sum(1 for stack in state if stack[0] == other) - sum(1 for stack in start if stack[0] == other)
                if wanted in ("", other) and idle[other] > used:
                    yield rest | {(other, frozenset({pod}))}
