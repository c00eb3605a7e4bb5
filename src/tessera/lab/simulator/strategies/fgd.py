"""Fragmentation gradient descent, as published: the baseline to beat.

A pod goes to the node and card where what `typical` calls lost falls most, by a score of whole numbers from 0 to 100;
ties by name, and on a node by the first card. It knows the whole trace beforehand. Scores are remembered by what they
depend on (CPU, cards and their parts) and worked out again where a column changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from tessera.core.arrays import Bools, Ints
from tessera.core.grants import Placement
from tessera.lab.simulator.cluster import Cluster
from tessera.lab.simulator.strategies.base import FULL_MARKS, Floats
from tessera.lab.simulator.strategies.cards import free_parts, place, tightest
from tessera.lab.simulator.strategies.typical import Typical, marks, whole_taken
from tessera.lab.simulator.traces import WHOLE, Ask, Trace


@dataclass(slots=True)
class Seen:
    """Scores of one ask on all columns, and the card that gave each."""

    epoch: int
    position: int
    scores: Floats
    cards: Ints


class FragmentationGradientDescent:
    def __init__(self, cluster: Cluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._typical = Typical(trace)
        models = {node.name: self._typical.model(node.model) for node in cluster.nodes}
        self._models: Ints = np.array([models[name] for name in cluster.arrays.names])
        self._seen: dict[tuple[int, int, int], Seen] = {}

    def arrived(self, ask: Ask) -> None:
        """Knows the trace already."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        return self._up_to_date(ask).scores[rows]

    def cards(self, ask: Ask, row: int) -> Placement:
        if ask.milli == WHOLE:
            return tightest(self._cluster, ask, row)
        best = int(self._up_to_date(ask).cards[row])
        return place(self._cluster, ask, row, lambda card: abs(card.device.index - best))

    def _up_to_date(self, ask: Ask) -> Seen:
        arrays = self._cluster.arrays
        key = ask.cpu, ask.cards, ask.milli
        seen = self._seen.get(key)
        dirty = arrays.changed_since(seen.position) if seen and seen.epoch == arrays.epoch else None
        if seen is None or dirty is None:
            columns = np.arange(len(arrays.names))
            seen = self._seen[key] = Seen(arrays.epoch, arrays.now, *self._score(ask, columns))
        elif dirty:
            columns = np.array(dirty)
            seen.scores[columns], seen.cards[columns] = self._score(ask, columns)
            seen.position = arrays.now
        return seen

    def _score(self, ask: Ask, columns: Ints) -> tuple[Floats, Ints]:
        """The score and the card of the columns with room; the others get a number nobody reads."""
        parts = free_parts(self._cluster, columns)
        room = (parts >= max(ask.milli, 1)).sum(axis=0) >= ask.cards
        room &= self._cluster.arrays.free_cpu[columns] >= ask.cpu
        scores, cards = np.zeros(len(columns)), np.zeros(len(columns), dtype=np.int64)
        if room.any():
            scores[room], cards[room] = self._fall(ask, columns[room], parts[:, room])
        return scores, cards

    def _fall(self, ask: Ask, columns: Ints, parts: Ints) -> tuple[Floats, Ints]:
        typical, models = self._typical, self._models[columns]
        cpu, idle = self._cluster.arrays.free_cpu[columns], np.maximum(parts, 0).sum(axis=0)
        rooms = typical.rooms(parts)
        before = typical.lost(rooms, idle, cpu, models)
        cpu, idle = cpu - ask.cpu, idle - ask.demand
        if ask.milli in (0, WHOLE):
            after = typical.lost(whole_taken(rooms, ask.cards), idle, cpu, models)
            return marks(before - after, FULL_MARKS), np.zeros(len(columns), dtype=np.int64)
        cards, chosen = np.nonzero(_choices(parts, ask.milli))
        taken = typical.without(
            rooms._replace(enough=rooms.enough[chosen], small=rooms.small[chosen]), parts[cards, chosen], ask.milli
        )
        after = typical.lost(taken, idle[chosen], cpu[chosen], models[chosen])
        scores = np.full(parts.shape, -1.0)
        scores[cards, chosen] = marks(before[chosen] - after, FULL_MARKS)
        return scores.max(axis=0), scores.argmax(axis=0)


def _choices(parts: Ints, milli: int) -> Bools:
    """Cards with room; of those of a node with equal parts the first is enough."""
    fits: Bools = parts >= milli
    for card in range(1, len(parts)):
        fits[card] &= ~(parts[:card] == parts[card]).any(axis=0)
    return fits
