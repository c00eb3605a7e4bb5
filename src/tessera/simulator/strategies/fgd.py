"""Fragmentation gradient descent, as published: the baseline to beat.

The most frequent asks that cover 95 % of the trace, with their popularity. A node's fragmentation for one of them is
all of its idle cards where that pod cannot run there, else the sum of the free parts too small for it. A pod goes to
the node and card where the weighted sum falls most, by a score of whole numbers from 0 to 100; ties by name. It knows
the whole trace beforehand. Scores are remembered by ask and worked out again where a column changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import numpy as np

from tessera.core.arrays import Bools, Ints
from tessera.core.grants import Placement
from tessera.simulator.cluster import Cluster, model_word
from tessera.simulator.strategies.base import Floats
from tessera.simulator.strategies.cards import free_parts, place, tightest
from tessera.simulator.traces import WHOLE, Ask, Trace

COVERED = 0.95
"""part of the pods whose asks count"""


@dataclass(slots=True)
class Seen:
    """Scores of one ask on all columns, and the card that gave each."""

    epoch: int
    position: int
    scores: Floats
    cards: Ints


class Typical:
    """The asks that count, as arrays (asks, 1, 1)."""

    def __init__(self, cluster: Cluster, trace: Trace) -> None:
        counts = Counter(pod.ask for pod in trace.pods)
        chosen: list[tuple[Ask, int]] = []
        for ask, number in counts.most_common():
            if sum(n for _, n in chosen) >= COVERED * len(trace.pods):
                break
            chosen.append((ask, number))
        asks = [ask for ask, _ in chosen if ask.cards]
        total = sum(number for _, number in chosen)
        self.weights: Floats = np.array([number / total for ask, number in chosen if ask.cards])
        self.idle_weight = sum(number for ask, number in chosen if not ask.cards) / total
        self.cpu, self.memory, self.cards, self.milli = (
            np.array([getattr(ask, name) for ask in asks])[:, None] for name in ("cpu", "memory", "cards", "milli")
        )
        self.refused: Bools = np.array([[_refuses(ask, name) for name in _models(cluster)] for ask in asks])


def _models(cluster: Cluster) -> list[str]:
    hosts = {node.name: model_word(node.model) for node in cluster.nodes}
    return [hosts[name] for name in cluster.arrays.names]


def _refuses(ask: Ask, model: str) -> bool:
    return bool(ask.models) and model not in {model_word(name) for name in ask.models}


class FragmentationGradientDescent:
    def __init__(self, cluster: Cluster, trace: Trace, dice: Random) -> None:
        self._cluster = cluster
        self._typical = Typical(cluster, trace)
        self._seen: dict[Ask, Seen] = {}

    def arrived(self, ask: Ask) -> None:
        """Knows the trace already."""

    def preference(self, ask: Ask, rows: Ints) -> Floats:
        return self._up_to_date(ask).scores[rows]

    def cards(self, ask: Ask, row: int) -> Placement:
        if ask.cards > 1:
            return tightest(self._cluster, ask, row)
        best = int(self._up_to_date(ask).cards[row])
        return place(self._cluster, ask, row, lambda card: abs(card.device.index - best))

    def _up_to_date(self, ask: Ask) -> Seen:
        arrays = self._cluster.arrays
        seen = self._seen.get(ask)
        dirty = arrays.changed_since(seen.position) if seen and seen.epoch == arrays.epoch else None
        if seen is None or dirty is None:
            columns = np.arange(len(arrays.names))
            seen = self._seen[ask] = Seen(arrays.epoch, arrays.now, *self._score(ask, columns))
        elif dirty:
            columns = np.array(dirty)
            seen.scores[columns], seen.cards[columns] = self._score(ask, columns)
            seen.position = arrays.now
        return seen

    def _score(self, ask: Ask, columns: Ints) -> tuple[Floats, Ints]:
        """The fall and the card of the columns with room; the others get a number nobody reads."""
        arrays = self._cluster.arrays
        room = (free_parts(self._cluster, columns) >= max(ask.milli, 1)).sum(axis=0) >= ask.cards
        room &= (arrays.free_cpu[columns] >= ask.cpu) & (arrays.free_memory[columns] >= ask.memory)
        scores, cards = np.zeros(len(columns)), np.zeros(len(columns), dtype=np.int64)
        if room.any():
            scores[room], cards[room] = self._fall(ask, columns[room])
        return scores, cards

    def _fall(self, ask: Ask, columns: Ints) -> tuple[Floats, Ints]:
        """The fall as a whole number, and the card."""
        arrays = self._cluster.arrays
        parts = free_parts(self._cluster, columns)
        cpu, memory = arrays.free_cpu[columns], arrays.free_memory[columns]
        before = self._fragmentation(parts, cpu, memory, columns)
        cpu, memory = cpu - ask.cpu, memory - ask.memory
        if ask.cards == 1:
            after = np.full(parts.shape, np.inf)
            for place_ in range(len(parts)):
                # One card of each free part is enough, and cards without room are no choice.
                fits = (parts[place_] >= ask.milli) & ~(parts[:place_] == parts[place_]).any(axis=0)
                chosen = np.flatnonzero(fits)
                changed = parts[:, chosen].copy()
                changed[place_] -= ask.milli
                after[place_, chosen] = self._fragmentation(changed, cpu[chosen], memory[chosen], columns[chosen])
            cards, least = after.argmin(axis=0), after.min(axis=0)
        else:
            cards = np.zeros(len(columns), dtype=np.int64)
            whole = np.cumsum(parts == WHOLE, axis=0)
            taken = (parts == WHOLE) & (whole <= ask.cards)
            least = self._fragmentation(np.where(taken, 0, parts), cpu, memory, columns)
        fall = np.where(np.isfinite(least), before - least, 0.0)
        return np.floor(100.0 / (1.0 + np.exp(-fall / WHOLE))), cards

    def _fragmentation(self, parts: Ints, cpu: Ints, memory: Ints, columns: Ints) -> Floats:
        typical = self._typical
        free = np.maximum(parts, 0)
        idle = free.sum(axis=0)
        small = np.zeros((len(typical.weights), len(columns)), dtype=np.int64)
        enough = np.zeros_like(small)
        for part in free:
            fits = part >= typical.milli
            enough += fits
            small += np.where(fits, 0, part)
        runs = (typical.cpu <= cpu) & (typical.memory <= memory) & (enough >= typical.cards)
        runs &= ~typical.refused[:, columns]
        lost: Floats = typical.weights @ np.where(runs, small, idle) + typical.idle_weight * idle
        return lost
