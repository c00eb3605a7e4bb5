"""fragmentation: put a pod where what is left over is worth most to the pods to come.

A pod goes to the node whose loss (`fragmentation_loss`) grows least, and there to the cards whose waste
(`fragmentation_waste`, `fragmentation_mig`) grows least, on a card in MIG mode to the place that keeps the instances to
come possible; equal growth is decided by node name. The growth on a node is remembered by shape and worked out again
only when the node changes. Only an order: every node that fits stays a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.arrays import CardArrays, Ints
from tessera.core.cards import Card
from tessera.core.demand_forecast import PRIOR
from tessera.core.devices import MIG, Device
from tessera.core.mig import PlaceLoss, bits
from tessera.core.policies.base import Floats, Policy, Ranking
from tessera.core.policies.fragmentation_loss import DIGITS, MISSING, growth
from tessera.core.policies.fragmentation_mig import mig_waste
from tessera.core.policies.fragmentation_node import NodeGrowth, steps
from tessera.core.policies.fragmentation_waste import waste_rows
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request


def rank(ranking: Ranking) -> Floats:
    """Larger is better: the growth of the loss, below zero."""
    known = ranking.memo.get(NAME)
    if not isinstance(known, Remembered):
        known = ranking.memo[NAME] = Remembered(ranking.pod)
    preference: Floats = known.preference(ranking.arrays)[ranking.rows]
    return preference


def card_scores(pod: PodRequest, request: Request, cards: Sequence[Card]) -> list[float]:
    """By card: how much its waste grows with the request on it."""
    outlook = pod.outlook or PRIOR
    rows = waste_rows(outlook)
    known: dict[tuple[int, int, int, int], float] = {}
    scores = []
    for card in cards:
        device = card.device
        if device.mode == MIG and (mig := mig_waste(outlook, device)) is not None:
            instance = mig.take(bits(slot.placement for slot in card.mig), request.memory_on(device.memory))
            scores.append(MISSING if instance is None else round(instance.wasted, DIGITS))
            continue
        # Most cards of a node are in the same state as another one of it.
        state = device.memory, device.cores, card.used_memory, card.used_cores
        grown = known.get(state)
        if grown is None:
            grown = known[state] = round(_growth(rows, request, *state), DIGITS)
        scores.append(grown)
    return scores


def _growth(
    rows: list[list[float]], request: Request, memory: int, cores: int, used_memory: int, used_cores: int
) -> float:
    taken_memory, taken_cores = request.memory_on(memory), request.cores
    if request.cores >= min(WHOLE_CARD_CORES, cores):
        taken_cores = cores
    left_memory, left_cores = memory - used_memory, cores - used_cores
    before = rows[steps(left_memory, memory)][steps(left_cores, cores)]
    after = rows[steps(left_memory - taken_memory, memory)][steps(left_cores - taken_cores, cores)]
    return after - before


def place_loss(pod: PodRequest, device: Device) -> PlaceLoss | None:
    """For the places of an instance: the waste of the card with it."""
    mig = mig_waste(pod.outlook or PRIOR, device)
    return None if mig is None else lambda places: round(mig.of(bits(places)), DIGITS)


NAME = "fragmentation"
POLICY = Policy(
    NAME,
    cards=lambda _cards, scores: scores,
    nodes=rank,
    card_scores=card_scores,
    place_loss=place_loss,
    looks_ahead=True,
)

FEW = 12
"""columns up to which plain numbers are quicker than arrays"""


class Remembered:
    """One shape's preference of every column, kept up to date with the arrays' log."""

    def __init__(self, pod: PodRequest) -> None:
        self.pod = pod
        self._one = NodeGrowth(pod)
        self._epoch = -1
        self._seen = 0
        self._preference: Floats = np.zeros(0)

    def preference(self, arrays: CardArrays) -> Floats:
        """By column: the growth of the loss, below zero."""
        dirty = arrays.changed_since(self._seen) if self._epoch == arrays.epoch else None
        if dirty is None:
            self._preference = np.zeros(len(arrays.names))
            self._weigh(arrays, np.arange(len(arrays.names), dtype=np.int64))
        elif len(dirty) > FEW:
            self._weigh(arrays, np.array(dirty, dtype=np.int64))
        else:
            for column in dirty:
                self._preference[column] = -self._one.on(arrays, column)
        self._seen, self._epoch = arrays.now, arrays.epoch
        return self._preference

    def _weigh(self, arrays: CardArrays, columns: Ints) -> None:
        self._preference[columns] = -growth(arrays, self.pod, columns)
        # Nodes with cards in MIG mode are odd; the arrays do not know how to weigh them.
        odd = columns[arrays.odd[columns]]
        if len(odd):
            self._preference[odd] = -self._one.on_many(arrays, odd)
