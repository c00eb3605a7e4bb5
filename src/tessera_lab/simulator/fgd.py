"""Fragmentation gradient descent (FGD), as published: the baseline to beat.

A pod goes to the node and card where the lost capacity shrinks most, by a score of whole numbers from 0 to 100; ties go
to the first name, and on a node to the first card. FGD knows the trace in advance: the most frequent requests that
cover 95 % of it count as typical (host memory aside). For one of them a node loses all of its idle cards if that pod
cannot run there, else the free parts that are too small for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from tessera.core.model.arrays import Bools, Ints
from tessera.core.model.grants import Placement
from tessera_lab.simulator.cluster import Floats, SimulatedCluster
from tessera_lab.simulator.strategies import (
    MAX_SCORE,
    free_card_parts,
    place_on_cards,
    place_on_tightest_cards,
)
from tessera_lab.simulator.traces import WHOLE, Trace, TraceRequest

COVERED = 0.95
"""share of the pods whose requests count"""


class TypicalRequest(NamedTuple):
    """A request as it is counted; of equally frequent ones the larger counts first."""

    cpu: int
    milli: int
    cards: int
    models: tuple[str, ...]


class GroupRooms(NamedTuple):
    """Free cards as each group of equal requests sees them; both have shape (columns, groups)."""

    enough: Ints
    """cards that one part fits on"""
    small: Ints
    """thousandths on cards that it does not fit on"""


class TypicalPods:
    def __init__(self, trace: Trace) -> None:
        chosen = _chosen(trace)
        total = sum(chosen.values())
        groups = sorted({(shape.milli, shape.cards) for shape in chosen if shape.cards})
        self.milli: Ints = np.array([milli for milli, _ in groups], dtype=np.int64)
        self.cards: Ints = np.array([cards for _, cards in groups], dtype=np.int64)
        models = sorted({node.model for node in trace.nodes})
        self._models = {model: number for number, model in enumerate(models)}
        self._cpu: Ints = np.array(sorted({shape.cpu for shape in chosen}), dtype=np.int64)
        self._runs: Floats = np.zeros((len(models), len(self._cpu) + 1, len(groups)))
        """by model, position of the free CPU in `_cpu`, and group: the popularity of the requests that could run"""
        for shape, count in chosen.items():
            accepted = [number for number, model in enumerate(models) if not shape.models or model in shape.models]
            if shape.cards and accepted:
                level = int(np.searchsorted(self._cpu, shape.cpu)) + 1
                self._runs[accepted, level:, groups.index((shape.milli, shape.cards))] += count / total

    def model(self, name: str) -> int:
        """The index of a node's model."""
        return self._models[name]

    def rooms(self, parts: Ints) -> GroupRooms:
        """From the free parts of cards, shape (cards, columns); below 0 if there is no card."""
        shape = parts.shape[1], len(self.milli)
        enough, small = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for part in np.maximum(parts, 0):
            if part.any():
                fits = part[:, None] >= self.milli
                enough += fits
                small += np.where(fits, 0, part[:, None])
        return GroupRooms(enough, small)

    def without(self, rooms: GroupRooms, parts: Ints, milli: int) -> GroupRooms:
        """The rooms after `milli` was taken from one card of each column; `parts` are those cards' free parts."""
        before, after = parts[:, None], parts[:, None] - milli
        fitted, fits = before >= self.milli, after >= self.milli
        enough = rooms.enough - fitted + fits
        return GroupRooms(enough, rooms.small + np.where(fits, 0, after) - np.where(fitted, 0, before))

    def lost(self, rooms: GroupRooms, idle: Ints, cpu: Ints, models: Ints) -> Floats:
        """By column: thousandths of cards lost, averaged over the requests. Pods without cards lose all idle cards."""
        popularity = self._runs[models, np.searchsorted(self._cpu, cpu, side="right")]
        useful = np.where(rooms.enough >= self.cards, idle[:, None] - rooms.small, 0)
        lost: Floats = idle - np.einsum("ij,ij->i", useful, popularity)
        return lost


def _chosen(trace: Trace) -> Counter[TypicalRequest]:
    asks = (pod.ask for pod in trace.pods)
    counts = Counter(TypicalRequest(ask.cpu, ask.milli, ask.cards, ask.models) for ask in asks)
    chosen: Counter[TypicalRequest] = Counter()
    for shape, number in sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if chosen.total() >= COVERED * len(trace.pods):
            break
        chosen[shape] = number
    return chosen


def whole_taken(rooms: GroupRooms, cards: int) -> GroupRooms:
    """The rooms after `cards` idle cards were taken."""
    return GroupRooms(rooms.enough - cards, rooms.small)


def loss_score(fall: Floats, best: int) -> Floats:
    """How much the loss shrinks, as a whole number up to `best`: coarse, so that nearly equal nodes are equal."""
    # Rounded first, so that floating-point noise does not push an unchanged loss below the middle.
    rounded = np.round(fall / WHOLE, 9)
    score: Floats = np.floor(best / (1.0 + np.exp(-rounded)))
    return score


@dataclass(slots=True)
class CachedScores:
    """Scores of one request on all columns, and the card behind each."""

    epoch: int
    position: int
    scores: Floats
    cards: Ints


class FragmentationGradientDescent:
    def __init__(self, cluster: SimulatedCluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._typical = TypicalPods(trace)
        models = {node.name: self._typical.model(node.model) for node in cluster.nodes}
        self._models: Ints = np.array([models[name] for name in cluster.arrays.names])
        self._seen: dict[tuple[int, int, int], CachedScores] = {}

    def arrived(self, ask: TraceRequest) -> None:
        """Nothing to learn: the trace is known."""

    def preference(self, ask: TraceRequest, rows: Ints) -> Floats:
        return self._up_to_date(ask).scores[rows]

    def cards(self, ask: TraceRequest, row: int) -> Placement:
        if ask.milli == WHOLE:
            return place_on_tightest_cards(self._cluster, ask, row)
        best = int(self._up_to_date(ask).cards[row])
        return place_on_cards(self._cluster, ask, row, lambda card: abs(card.device.index - best))

    def _up_to_date(self, ask: TraceRequest) -> CachedScores:
        arrays = self._cluster.arrays
        key = ask.cpu, ask.cards, ask.milli
        seen = self._seen.get(key)
        dirty = arrays.changed_since(seen.position) if seen and seen.epoch == arrays.epoch else None
        if seen is None or dirty is None:
            columns = np.arange(len(arrays.names))
            seen = self._seen[key] = CachedScores(arrays.epoch, arrays.now, *self._score(ask, columns))
        elif dirty:
            columns = np.array(dirty)
            seen.scores[columns], seen.cards[columns] = self._score(ask, columns)
            seen.position = arrays.now
        return seen

    def _score(self, ask: TraceRequest, columns: Ints) -> tuple[Floats, Ints]:
        """Score and card of the columns where the request fits; the others get zeros that are never read."""
        parts = free_card_parts(self._cluster, columns)
        room = (parts >= max(ask.milli, 1)).sum(axis=0) >= ask.cards
        room &= self._cluster.arrays.free_cpu[columns] >= ask.cpu
        scores, cards = np.zeros(len(columns)), np.zeros(len(columns), dtype=np.int64)
        if room.any():
            scores[room], cards[room] = self._fall(ask, columns[room], parts[:, room])
        return scores, cards

    def _fall(self, ask: TraceRequest, columns: Ints, parts: Ints) -> tuple[Floats, Ints]:
        typical, models = self._typical, self._models[columns]
        cpu, idle = self._cluster.arrays.free_cpu[columns], np.maximum(parts, 0).sum(axis=0)
        rooms = typical.rooms(parts)
        before = typical.lost(rooms, idle, cpu, models)
        cpu, idle = cpu - ask.cpu, idle - ask.demand
        if ask.milli in (0, WHOLE):
            after = typical.lost(whole_taken(rooms, ask.cards), idle, cpu, models)
            return loss_score(before - after, MAX_SCORE), np.zeros(len(columns), dtype=np.int64)
        cards, chosen = np.nonzero(_choices(parts, ask.milli))
        taken = typical.without(
            rooms._replace(enough=rooms.enough[chosen], small=rooms.small[chosen]), parts[cards, chosen], ask.milli
        )
        after = typical.lost(taken, idle[chosen], cpu[chosen], models[chosen])
        scores = np.full(parts.shape, -1.0)
        scores[cards, chosen] = loss_score(before[chosen] - after, MAX_SCORE)
        return scores.max(axis=0), scores.argmax(axis=0)


def _choices(parts: Ints, milli: int) -> Bools:
    """Cards that fit; of a node's cards with equal parts only the first."""
    fits: Bools = parts >= milli
    for card in range(1, len(parts)):
        fits[card] &= ~(parts[:card] == parts[card]).any(axis=0)
    return fits
