"""The fewest moves that empty the most cards, on plain numbers: exact, for few cards and pods.

For each set of cards to be emptied, the most cards and the fewest pods first, their pods must find room on the other
cards that are in use. At most `EXTRA` further pods move between those to make room. Each pod moves once. So the first
set that works is the best, unless more than `EXTRA` pods would have to make room. `small_cluster` makes the numbers of
a ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from tessera.core.grants import NO_USE, Use

EXTRA = 3
"""pods that move to make room for those whose card is emptied"""
MOST_WORK = 30_000
"""tries to put one pod on one card, and sets of cards: some tenths of a second"""


class PackingCard(NamedTuple):
    """A card that is in use, and what stays on it."""

    capacity: Use
    fixed: Use = NO_USE


class PackingPod(NamedTuple):
    """A pod that may move."""

    card: int
    """where it is"""
    uses: tuple[Use | None, ...]
    """by card: what it would take of it; None: it does not accept the card"""
    cost: tuple[int, ...] = ()
    """of moving it, the lower the better"""


PackingMoves = list[tuple[int, int]]
"""pods and their new cards, in order"""


def pack(
    cards: Sequence[PackingCard],
    pods: Sequence[PackingPod],
    *,
    most_moves: float,
    only: Collection[int] | None = None,
    most_work: int = MOST_WORK,
) -> PackingMoves:
    """The best moves; none if no card can be emptied, or if there are too many ways to tell. `only`: the cards that are
    to be emptied, if not any."""
    try:
        return _Search(cards, pods, only, most_work).run(most_moves)
    except _OutOfWork:
        return []


class _OutOfWork(Exception):
    """There are too many ways."""


class _Search:
    def __init__(
        self, cards: Sequence[PackingCard], pods: Sequence[PackingPod], only: Collection[int] | None, most_work: int
    ) -> None:
        self._cards = cards
        self._pods = pods
        self._left = most_work
        self._on: list[list[int]] = [[] for _ in cards]
        self._used = [card.fixed for card in cards]
        for number, pod in enumerate(pods):
            self._on[pod.card].append(number)
            self._used[pod.card] = self._used[pod.card].plus(pod.uses[pod.card] or NO_USE)
        wanted = range(len(cards)) if only is None else only
        self._emptiable = [i for i in wanted if cards[i].fixed == NO_USE and self._on[i]]

    def run(self, most_moves: float) -> PackingMoves:
        for size in range(len(self._emptiable), 0, -1):
            sets = sorted((self._leaving(chosen), chosen) for chosen in self._sets(size))
            for moves in range(size, len(self._pods) + 1):
                if moves > most_moves:
                    break
                for (count, _), chosen in sets:
                    if not moves - EXTRA <= count <= moves:
                        continue
                    found = self._empty(frozenset(chosen), moves - count)
                    if found is not None:
                        return found
        return []

    def _sets(self, size: int) -> Iterator[tuple[int, ...]]:
        """Sets of cards whose pods are not more than there is room for."""
        for chosen in combinations(self._emptiable, size):
            self._work()
            rest = [i for i in range(len(self._cards)) if i not in chosen]
            room = sum(self._cards[i].capacity.memory - self._used[i].memory for i in rest)
            if sum(self._used[i].memory for i in chosen) <= room:
                yield chosen

    def _leaving(self, chosen: Sequence[int]) -> tuple[int, list[tuple[int, ...]]]:
        costs = sorted((self._pods[pod].cost for card in chosen for pod in self._on[card]), reverse=True)
        return len(costs), costs

    def _empty(self, chosen: frozenset[int], extra: int) -> PackingMoves | None:
        """Moves that empty these cards, with so many further pods that make room."""
        leaving = [pod for card in sorted(chosen) for pod in self._on[card]]
        others = [number for number, pod in enumerate(self._pods) if pod.card not in chosen]
        for making_room in combinations(others, extra):
            used = list(self._used)
            for pod in making_room:
                own = self._pods[pod]
                used[own.card] = used[own.card].minus(own.uses[own.card] or NO_USE)
            moving = sorted((*leaving, *making_room), key=lambda pod: (-self._size(pod), pod))
            for targets in self._assign(moving, 0, used, chosen, {}):
                ordered = self._order(making_room, targets)
                if ordered is not None:
                    return [(pod, targets[pod]) for pod in (*ordered, *leaving)]
        return None

    def _assign(
        self, pods: Sequence[int], position: int, used: list[Use], closed: frozenset[int], targets: dict[int, int]
    ) -> Iterator[dict[int, int]]:
        """Every way to put these pods on cards that are not closed."""
        if position == len(pods):
            yield dict(targets)
            return
        number = pods[position]
        pod = self._pods[number]
        for card, use in enumerate(pod.uses):
            if use is None or card in closed or card == pod.card or self._used[card] == NO_USE:
                continue
            self._work()
            before = used[card]
            full = before.plus(use)
            if self._exceeds(full, card):
                continue
            used[card], targets[number] = full, card
            yield from self._assign(pods, position + 1, used, closed, targets)
            used[card] = before
            del targets[number]

    def _order(self, pods: Sequence[int], targets: dict[int, int]) -> tuple[int, ...] | None:
        """An order in which these pods can move one after the other, before all that leave."""
        for ordered in permutations(pods):
            used = list(self._used)
            for number in ordered:
                pod, card = self._pods[number], targets[number]
                used[card] = used[card].plus(pod.uses[card] or NO_USE)
                if self._exceeds(used[card], card):
                    break
                used[pod.card] = used[pod.card].minus(pod.uses[pod.card] or NO_USE)
            else:
                return ordered
        return None

    def _exceeds(self, use: Use, card: int) -> bool:
        return any(amount > most for amount, most in zip(use, self._cards[card].capacity, strict=True))

    def _size(self, number: int) -> int:
        pod = self._pods[number]
        return (pod.uses[pod.card] or NO_USE).memory

    def _work(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _OutOfWork
