"""The asks that fragmentation gradient descent looks out for, and how much of a node's idle cards is lost to them.

The most frequent asks that cover 95 % of the trace count, with their popularity; host memory does not make two asks
different. For one of them a node loses all of its idle cards where that pod cannot run, else the free parts too small
for it. Asks for the same parts and number of cards are one group: what they lose differs only by who can run, and that
is looked up by the node's model and free CPU. Reads no cluster state.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from tessera.core.arrays import Ints
from tessera.lab.simulator.strategies.base import Floats
from tessera.lab.simulator.traces import WHOLE, Trace

COVERED = 0.95
"""part of the pods whose asks count"""


class Shape(NamedTuple):
    """An ask as it is counted; of equally frequent ones the larger counts first."""

    cpu: int
    milli: int
    cards: int
    models: tuple[str, ...]


class Rooms(NamedTuple):
    """Columns as the groups see them, (columns, groups) each."""

    enough: Ints
    """cards with room for one part"""
    small: Ints
    """thousandths on cards with less room than that"""


class Typical:
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
        """by model, place of the free CPU in `_cpu`, and group: the popularity of the asks that could run"""
        for shape, count in chosen.items():
            accepted = [number for number, model in enumerate(models) if not shape.models or model in shape.models]
            if shape.cards and accepted:
                level = int(np.searchsorted(self._cpu, shape.cpu)) + 1
                self._runs[accepted, level:, groups.index((shape.milli, shape.cards))] += count / total

    def model(self, name: str) -> int:
        """The number of a node's model."""
        return self._models[name]

    def rooms(self, parts: Ints) -> Rooms:
        """From the free parts of cards, (cards, columns); below 0 where there is none."""
        shape = parts.shape[1], len(self.milli)
        enough, small = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for part in np.maximum(parts, 0):
            if part.any():
                fits = part[:, None] >= self.milli
                enough += fits
                small += np.where(fits, 0, part[:, None])
        return Rooms(enough, small)

    def without(self, rooms: Rooms, parts: Ints, milli: int) -> Rooms:
        """The rooms after so much was taken from one card of each column, with these free parts."""
        before, after = parts[:, None], parts[:, None] - milli
        fitted, fits = before >= self.milli, after >= self.milli
        enough = rooms.enough - fitted + fits
        return Rooms(enough, rooms.small + np.where(fits, 0, after) - np.where(fitted, 0, before))

    def lost(self, rooms: Rooms, idle: Ints, cpu: Ints, models: Ints) -> Floats:
        """By column: thousandths of cards lost, on the average over the asks. Pods without cards lose all idle ones."""
        popularity = self._runs[models, np.searchsorted(self._cpu, cpu, side="right")]
        useful = np.where(rooms.enough >= self.cards, idle[:, None] - rooms.small, 0)
        lost: Floats = idle - np.einsum("ij,ij->i", useful, popularity)
        return lost


def _chosen(trace: Trace) -> Counter[Shape]:
    asks = (pod.ask for pod in trace.pods)
    counts = Counter(Shape(ask.cpu, ask.milli, ask.cards, ask.models) for ask in asks)
    chosen: Counter[Shape] = Counter()
    for shape, number in sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if chosen.total() >= COVERED * len(trace.pods):
            break
        chosen[shape] = number
    return chosen


def whole_taken(rooms: Rooms, cards: int) -> Rooms:
    """The rooms after so many idle cards were taken."""
    return Rooms(rooms.enough - cards, rooms.small)


def marks(fall: Floats, best: int) -> Floats:
    """A fall of what is lost as a whole number up to `best`: coarse, so that nearly equal nodes are equal."""
    # Rounded first: noise of floating point must not push a fall of nothing below the middle.
    rounded = np.round(fall / WHOLE, 9)
    score: Floats = np.floor(best / (1.0 + np.exp(-rounded)))
    return score
