"""The fewest moves that empty so many cards in MIG mode: every order of moves, on plain numbers.

An oracle for defragmentation, as `card_packing`. A card is a row of memory slices, and an instance takes some of them,
at any place of its profile that is free. Each pod moves at most once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Instances = frozenset[tuple[int, int]]
"""of one card: pods, and the slice at which the instance of each begins"""
State = tuple[frozenset[int], tuple[Instances, ...]]
"""pods that have moved, and all cards"""


class PlacedInstance(NamedTuple):
    size: int
    """memory slices"""
    is_fixed: bool = False


def fewest_moves(
    pods: Sequence[PlacedInstance], cards: Sequence[Instances], *, starts: Mapping[int, Sequence[int]]
) -> list[int]:
    """At place g: the fewest moves after which g more cards are empty; as long as the largest gain that is possible.

    `starts`: by size, where an instance may begin."""
    start: State = (frozenset(), _ordered(cards))
    seen, queue, best = {start}, deque([start]), [0]
    empty = sum(not card for card in cards)
    while queue:
        state = queue.popleft()
        if sum(not card for card in state[1]) - empty >= len(best):
            best.append(len(state[0]))
        for after in _neighbours(state, pods, starts):
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return best


def _neighbours(state: State, pods: Sequence[PlacedInstance], starts: Mapping[int, Sequence[int]]) -> Iterator[State]:
    moved, cards = state
    for source, card in enumerate(cards):
        for pod, begin in card:
            if pod in moved or pods[pod].is_fixed:
                continue
            for target, other in enumerate(cards):
                for place in _free(other, pods, pods[pod].size, starts):
                    after = list(cards)
                    after[target] = other | {(pod, place)}
                    after[source] = after[source] - {(pod, begin)}
                    yield moved | {pod}, _ordered(after)


def _free(
    card: Instances, pods: Sequence[PlacedInstance], size: int, starts: Mapping[int, Sequence[int]]
) -> Iterator[int]:
    taken = {begin + offset for pod, begin in card for offset in range(pods[pod].size)}
    return (begin for begin in starts[size] if taken.isdisjoint(range(begin, begin + size)))


def _ordered(cards: Sequence[Instances]) -> tuple[Instances, ...]:
    """Cards are alike, so their order says nothing."""
    return tuple(sorted(cards, key=sorted))
