"""fragmentation: put a pod where what is left over is worth most to the pods to come.

A pod goes to the node whose loss grows least (`growth`), and there to the cards whose waste grows least (`waste`), on a
card in MIG mode to the place that keeps the instances to come possible; equal growth is decided by node name. The
growth on a node is cached per shape and computed again only when the node changes. The policy only orders: every node
that fits stays a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.model.arrays import CardArrays, Ints
from tessera.core.model.demand_forecast import PRIOR
from tessera.core.model.devices import MIG, Device
from tessera.core.model.mig import PlaceLoss, bits
from tessera.core.model.node_info import Card
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.policies.base import Floats, Policy, Ranking, by_score
from tessera.core.policies.fragmentation.array_growth import growth_by_column
from tessera.core.policies.fragmentation.growth import DIGITS, MISSING, NodeGrowth, steps
from tessera.core.policies.fragmentation.waste import mig_waste, waste_rows

NAME = "fragmentation"

FEW = 12
"""columns up to which the plain form is quicker than arrays"""


def rank(ranking: Ranking) -> Floats:
    """Larger is better: the growth of the loss, below zero."""
    cached = ranking.memo.get(NAME)
    if not isinstance(cached, CachedPreference):
        cached = ranking.memo[NAME] = CachedPreference(ranking.pod)
    preference: Floats = cached.preference(ranking.arrays)[ranking.rows]
    return preference


class CachedPreference:
    """One shape's preference of every column, kept up to date with the arrays' log."""

    def __init__(self, pod: PodRequest) -> None:
        self.pod = pod
        self._node_growth = NodeGrowth(pod)
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
                self._preference[column] = -self._node_growth.on(arrays, column)
        self._seen, self._epoch = arrays.now, arrays.epoch
        return self._preference

    def _weigh(self, arrays: CardArrays, columns: Ints) -> None:
        self._preference[columns] = -growth_by_column(arrays, self.pod, columns)
        # Nodes with cards in MIG mode are odd; arrays cannot weigh them.
        odd = columns[arrays.odd[columns]]
        if len(odd):
            self._preference[odd] = -self._node_growth.on_many(arrays, odd)


def card_scores(pod: PodRequest, request: Request, cards: Sequence[Card]) -> list[float]:
    """By card: how much its waste grows with the request on it."""
    forecast = pod.forecast or PRIOR
    rows = waste_rows(forecast)
    known: dict[tuple[int, int, int, int], float] = {}
    scores = []
    for card in cards:
        device = card.device
        if device.mode == MIG and (mig := mig_waste(forecast, device)) is not None:
            instance = mig.take(bits(slot.placement for slot in card.mig), request.memory_on(device.memory))
            scores.append(MISSING if instance is None else round(instance.wasted, DIGITS))
            continue
        # Most cards of a node are in the same state as another one of it.
        state = device.memory, device.cores, card.used_memory, card.used_cores
        grown = known.get(state)
        if grown is None:
            grown = known[state] = round(_growth_of_waste(rows, request, *state), DIGITS)
        scores.append(grown)
    return scores


def _growth_of_waste(
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
    mig = mig_waste(pod.forecast or PRIOR, device)
    return None if mig is None else lambda places: round(mig.waste(bits(places)), DIGITS)


POLICY = Policy(
    name=NAME,
    summary="put a pod where what is left over is worth most to the pods to come",
    nodes=rank,
    cards=by_score,
    card_scores=card_scores,
    place_loss=place_loss,
    uses_forecast=True,
)
