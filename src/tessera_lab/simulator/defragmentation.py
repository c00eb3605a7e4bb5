"""Moves pods of a simulated cluster: for a pod that does not fit, or to free whole cards.

The planner is the scheduler's own (`core.defragmentation`). A move takes no time here. CPU and host memory count, as
for every placement of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.ledger import facts_of
from tessera.core.model.requests import HostRequest
from tessera.core.search import finish
from tessera.core.search.defragmentation import plan_room, plan_whole_cards
from tessera.core.search.move_planner import DefragmentationPlan, Goal
from tessera.core.search.relocation import MovablePod, Relocation
from tessera.core.search.victims import PodTraits
from tessera_lab.simulator.cluster import SimulatedCluster, make_request
from tessera_lab.simulator.traces import WHOLE, TraceRequest

MAX_MOVES = 8
"""for one pod that does not fit"""
DEPTH = 1
"""of pods that make room for each other"""


class _Book:
    """Pods that are all alike: nothing keeps one from moving."""

    lowest_priority = 0

    def traits(self, uid: str) -> PodTraits:
        return PodTraits(uid, "trace", uid)

    def members(self, group: str) -> tuple[str, ...]:
        return ()

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        yield from ()

    def budgets(self, uid: str) -> tuple[str, ...]:
        return ()

    def disruptions_allowed(self, budget: str) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class FreedCards:
    """Plans for whole cards against what is possible, added up over several moments."""

    plans: int = 0
    cards: int = 0
    """that the plans free"""
    moves: int = 0
    repacked: int = 0
    """cards that are free if all pods with a part of one are placed anew, the largest first, by any number of moves"""
    possible: int = 0
    """cards that no packing whatever could free more of; hosts and models are left out, so it may be out of reach"""

    def plus(self, other: FreedCards) -> FreedCards:
        return FreedCards(
            self.plans + other.plans,
            self.cards + other.cards,
            self.moves + other.moves,
            self.repacked + other.repacked,
            self.possible + other.possible,
        )


NOTHING_FREED = FreedCards()


@dataclass(slots=True)
class Defragmenter:
    """Knows the running pods of one cluster, and moves them."""

    cluster: SimulatedCluster
    may_move: bool = True
    """False: plans are only compared"""
    pods: dict[str, MovablePod] = field(default_factory=dict)
    """by uid; those with cards"""
    moves: int = 0
    _given_up: dict[tuple[object, ...], tuple[int, int, int]] = field(default_factory=dict)
    """cards asked for -> what was taken when no moves helped, and the CPU and memory asked for: the same, or more, is
    tried again when less is taken"""

    def add(self, uid: str, ask: TraceRequest) -> None:
        """A pod was placed. The ledger must show it as bound, since only such pods move."""
        entry = self.cluster.ledger.pod(uid)
        if ask.cards and entry is not None:
            self.cluster.ledger.put_pod(entry.facts, GrantState.BOUND, observed=True)
            request = make_request(ask).called(uid=uid, namespace="trace", name=uid)
            self.pods[uid] = MovablePod(request, host=HostRequest(ask.cpu, ask.memory))

    def remove(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def row_of(self, uid: str) -> int:
        """The column of a pod with cards: it may have moved."""
        entry = self.cluster.ledger.pod(uid)
        assert entry is not None  # it runs
        return self.cluster.arrays.row(entry.facts.node)

    def make_room(self, ask: TraceRequest) -> bool:
        """Move pods so that this one fits; whether that was possible."""
        if not self.may_move:
            return False
        kind = (ask.cards, ask.milli, ask.models)
        known = self._given_up.get(kind)
        state = (self.cluster.taken, ask.cpu, ask.memory)
        if not ask.cards or (known is not None and all(now >= then for now, then in zip(state, known, strict=True))):
            return False
        goal = Goal(make_request(ask), 1, host=HostRequest(ask.cpu, ask.memory))
        plan = finish(plan_room(self.cluster.ledger, _Book(), self.pods, goal, max_moves=MAX_MOVES, depth=DEPTH))
        if not plan.gained:
            self._given_up[kind] = state
            return False
        self._apply(plan)
        return True

    def compare(self) -> FreedCards:
        """A plan for as many whole cards as possible, which is not made, and the most that any could free."""
        plan = plan_whole_cards(self.cluster.ledger, _Book(), self.pods)
        parts = {uid: pod for uid, pod in self.pods.items() if _is_part(pod)}
        used = self._cards(parts)
        possible = len(used) - cards_needed_at_least(parts.values())
        return FreedCards(1, len(plan.gained), plan.moves, self._repack(parts), possible)

    def _repack(self, parts: Mapping[str, MovablePod]) -> int:
        """How many cards fewer these pods use if each is placed anew."""
        before, homeless = len(self._cards(parts)), 0
        with self.cluster.ledger.begin() as transaction:
            relocation = Relocation(transaction)
            for uid, pod in parts.items():
                relocation.remove(uid, pod.host)
            for uid in sorted(parts, key=lambda uid: (-_size(parts[uid]), -parts[uid].host.cpu, uid)):
                pod = parts[uid]
                placement = relocation.find_target(pod.request, None, pod.host)
                homeless += placement is None
                if placement is not None:
                    relocation.put(facts_of(pod.request, placement), pod.host)
            return before - len(self._cards(parts)) - homeless

    def _cards(self, parts: Mapping[str, MovablePod]) -> set[str]:
        """The cards that these pods use."""
        entries = (self.cluster.ledger.pod(uid) for uid in parts)
        return {uuid for entry in entries if entry is not None for uuid in entry.holdings}

    def _apply(self, plan: DefragmentationPlan) -> None:
        for step in plan.steps:
            for move in step:
                self.cluster.move(move.target, self.pods[move.uid].host, move.source.node)
                self.moves += 1


def allocation_bound(asks: Sequence[TraceRequest], placed: int, capacity: int) -> float:
    """Per cent of the cards that any packing, with any moves, can allocate if it places the first `placed` of these
    pods and may place the others.

    A pod of more than half a card leaves a part beside it that only pods up to this size can use. What all of these
    together do not fill is lost. The best bound over all sizes.
    """
    parts = [ask.milli for ask in asks if ask.cards == 1 and ask.milli < WHOLE]
    large = [ask.milli for ask in asks[:placed] if ask.cards == 1 and WHOLE // 2 < ask.milli < WHOLE]
    lost = 0
    for size in {WHOLE - milli for milli in large}:
        beside = sum(WHOLE - milli for milli in large if WHOLE - milli <= size)
        lost = max(lost, beside - sum(milli for milli in parts if milli <= size))
    return 100.0 * (capacity - lost) / capacity


def cards_needed_at_least(pods: Iterable[MovablePod]) -> int:
    """A bound for the cards that pods with a part of one need, whatever moves where: by volume, where a pod of more
    than half a card shares it only with smaller ones (Martello and Toth's bound), without hosts and models."""
    sizes = sorted((request.memory for pod in pods for _, request in pod.request.requests), reverse=True)
    best = math.ceil(sum(sizes) / WHOLE)
    for small in sorted({size for size in sizes if size <= WHOLE // 2}):
        alone = sum(1 for size in sizes if size > WHOLE - small)
        halves = [size for size in sizes if WHOLE // 2 < size <= WHOLE - small]
        rest = sum(size for size in sizes if small <= size <= WHOLE // 2)
        best = max(best, alone + len(halves) + math.ceil(max(rest - (len(halves) * WHOLE - sum(halves)), 0) / WHOLE))
    return max(best, sum(1 for size in sizes if size > WHOLE // 2))


def _is_part(pod: MovablePod) -> bool:
    return any(request.count == 1 and request.memory < WHOLE for _, request in pod.request.requests)


def _size(pod: MovablePod) -> int:
    return sum(request.memory for _, request in pod.request.requests)
