"""The fewest moves that empty the most cards, on plain numbers: exact, for few cards and pods.

For each set of cards to be emptied, the most cards and the fewest pods first, their pods must find room on the other
cards that are in use. Further pods move between those to make room. A card that is idle may be used if one more card is
emptied for it. Each pod moves once. So the first set that works is the best. Where there are too many ways for that, no
idle card is used and at most `FEW_EXTRA` pods make room. `small_cluster` makes the numbers of a ledger.

On a card in MIG mode a pod takes memory slices, at a place that is free. So there the order of moves counts.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

from tessera.core.grants import NO_USE, Use

FEW_EXTRA = 3
"""pods that move to make room for those whose card is emptied, if not all ways can be tried"""
MAX_WORK = 30_000
"""tries to put one pod on one card, and sets of cards: some tenths of a second"""


class PackingUse(NamedTuple):
    """What is taken of a card."""

    use: Use = NO_USE
    slices: int = 0
    """of a card in MIG mode, one bit each"""

    def plus(self, other: PackingUse) -> PackingUse:
        return PackingUse(self.use.plus(other.use), self.slices | other.slices)

    def minus(self, other: PackingUse) -> PackingUse:
        return PackingUse(self.use.minus(other.use), self.slices & ~other.slices)


class PackingCard(NamedTuple):
    """A card, and what stays on it."""

    capacity: Use
    fixed: PackingUse = PackingUse()


class PackingPod(NamedTuple):
    """A pod that may move."""

    card: int
    """where it is"""
    own: PackingUse
    """what it takes there"""
    ways: tuple[tuple[PackingUse, ...], ...]
    """by card: what it may take of it, in the order in which it would; none if it does not accept the card"""
    cost: tuple[int, ...] = ()
    """of moving it, the lower the better"""


class Packing(NamedTuple):
    """What was found, and what it took."""

    moves: list[PackingMove]
    work: int
    """as `MAX_WORK` counts"""


class PackingMove(NamedTuple):
    """A pod, its new card, and which of its ways it takes there."""

    pod: int
    card: int
    way: int


def pack(
    cards: Sequence[PackingCard],
    pods: Sequence[PackingPod],
    *,
    max_moves: float,
    only: Collection[int] | None = None,
    max_work: int = MAX_WORK,
) -> Packing:
    """The best moves; none if no card can be emptied, or if there are too many ways to tell. `only`: the cards that are
    to be emptied, if not any."""
    work = 0
    for extra, with_idle in ((len(pods), True), (FEW_EXTRA, False)):
        search = _Search(cards, pods, only, max_work, with_idle=with_idle)
        try:
            moves = search.run(max_moves, extra)
        except _OutOfWork:
            work += max_work
            continue
        return Packing(moves, work + max_work - search.left)
    return Packing([], work)


class _OutOfWork(Exception):
    """There are too many ways."""


class _Search:
    def __init__(
        self,
        cards: Sequence[PackingCard],
        pods: Sequence[PackingPod],
        only: Collection[int] | None,
        max_work: int,
        *,
        with_idle: bool,
    ) -> None:
        self._cards = cards
        self._pods = pods
        self.left = max_work
        self._on: list[list[int]] = [[] for _ in cards]
        self._used = [card.fixed for card in cards]
        for number, pod in enumerate(pods):
            self._on[pod.card].append(number)
            self._used[pod.card] = self._used[pod.card].plus(pod.own)
        wanted = range(len(cards)) if only is None else only
        self._emptiable = [i for i in wanted if cards[i].fixed == PackingUse() and self._on[i]]
        self._in_use = frozenset(i for i, used in enumerate(self._used) if used != PackingUse())
        self._idle = [i for i in range(len(cards)) if i not in self._in_use] if with_idle else []

    def run(self, max_moves: float, max_extra: int) -> list[PackingMove]:
        for gain in range(len(self._emptiable), 0, -1):
            sets = sorted((self._leaving(emptied), len(idle), emptied, idle) for idle, emptied in self._sets(gain))
            for moves in range(gain, len(self._pods) + 1):
                if moves > max_moves:
                    break
                for (count, _), _, emptied, idle in sets:
                    if not moves - max_extra <= count <= moves:
                        continue
                    found = self._empty(frozenset(emptied), self._in_use.difference(emptied).union(idle), moves - count)
                    if found is not None:
                        return found
        return []

    def _sets(self, gain: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Idle cards to be used, and cards to be emptied whose pods are not more than there is room for."""
        for idle in self._idle_sets(len(self._emptiable) - gain):
            for emptied in combinations(self._emptiable, gain + len(idle)):
                self._work()
                rest = [*self._in_use.difference(emptied), *idle]
                room = sum(self._cards[i].capacity.memory - self._used[i].use.memory for i in rest)
                if sum(self._used[i].use.memory for i in emptied) <= room:
                    yield idle, emptied

    def _idle_sets(self, most: int) -> Iterator[tuple[int, ...]]:
        """Up to so many idle cards; cards that are alike for all pods stand for each other."""
        kinds: dict[Hashable, list[int]] = {}
        for i in self._idle:
            kinds.setdefault((self._cards[i].capacity, tuple(pod.ways[i] for pod in self._pods)), []).append(i)
        ways = [[tuple(alike[:size]) for size in range(min(most, len(alike)) + 1)] for alike in kinds.values()]
        for chosen in product(*ways):
            self._work()
            found = tuple(i for of_kind in chosen for i in of_kind)
            if len(found) <= most:
                yield found

    def _leaving(self, chosen: Sequence[int]) -> tuple[int, list[tuple[int, ...]]]:
        costs = sorted((self._pods[pod].cost for card in chosen for pod in self._on[card]), reverse=True)
        return len(costs), costs

    def _empty(self, emptied: frozenset[int], targets: frozenset[int], extra: int) -> list[PackingMove] | None:
        """Moves that empty these cards, with so many further pods that make room. All go to the targets."""
        leaving = [pod for card in sorted(emptied) for pod in self._on[card]]
        others = [number for number, pod in enumerate(self._pods) if pod.card not in emptied]
        for making_room in combinations(others, extra):
            used = list(self._used)
            for pod in making_room:
                own = self._pods[pod]
                used[own.card] = used[own.card].minus(own.own)
            moving = sorted((*leaving, *making_room), key=lambda pod: (-self._pods[pod].own.use.memory, pod))
            for found in self._assign(moving, 0, [each.use for each in used], targets, {}):
                ordered = self._order((*making_room, *leaving), found, tuple(self._used), set())
                if ordered is not None:
                    return ordered
        return None

    def _assign(
        self, pods: Sequence[int], position: int, used: list[Use], targets: frozenset[int], found: dict[int, int]
    ) -> Iterator[dict[int, int]]:
        """Every way to put these pods on the targets, as far as amounts decide."""
        if position == len(pods):
            yield dict(found)
            return
        number = pods[position]
        pod = self._pods[number]
        for card, ways in enumerate(pod.ways):
            if not ways or card not in targets or (card == pod.card and not pod.own.slices):
                continue
            self._work()
            before = used[card]
            full = before.plus(ways[0].use)
            if self._exceeds(full, card):
                continue
            used[card], found[number] = full, card
            yield from self._assign(pods, position + 1, used, targets, found)
            used[card] = before
            del found[number]

    def _order(
        self,
        pods: tuple[int, ...],
        targets: dict[int, int],
        used: tuple[PackingUse, ...],
        failed: set[tuple[tuple[int, ...], tuple[PackingUse, ...]]],
    ) -> list[PackingMove] | None:
        """An order in which these pods can move one after the other."""
        if not pods:
            return []
        if (pods, used) in failed:
            return None
        for number in pods:
            self._work()
            pod, card = self._pods[number], targets[number]
            for way in self._free_ways(pod, card, used[card]):
                after = list(used)
                after[card] = after[card].plus(pod.ways[card][way])
                after[pod.card] = after[pod.card].minus(pod.own)
                rest = self._order(tuple(each for each in pods if each != number), targets, tuple(after), failed)
                if rest is not None:
                    return [PackingMove(number, card, way), *rest]
        failed.add((pods, used))
        return None

    def _free_ways(self, pod: PackingPod, card: int, used: PackingUse) -> Iterator[int]:
        """In the order in which the pod would take them."""
        for number, way in enumerate(pod.ways[card]):
            if not way.slices & used.slices and not self._exceeds(used.use.plus(way.use), card):
                self._work()
                yield number

    def _exceeds(self, use: Use, card: int) -> bool:
        return any(amount > most for amount, most in zip(use, self._cards[card].capacity, strict=True))

    def _work(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _OutOfWork
