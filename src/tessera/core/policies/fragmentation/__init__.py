"""fragmentation: put a pod where what is left over is worth most to the pods to come.

A pod goes to the node whose loss grows least (`growth`), and there to the cards whose waste grows least (`waste`), on a
card in MIG mode to the place that keeps the instances to come possible; equal growth is decided by node name. The
growth on a node is cached per shape and computed again only when the node changes. The policy only orders: every node
that fits stays a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tessera.core.arrays import UNKNOWN, CardArrays, Ints
from tessera.core.demand_forecast import PRIOR, DemandForecast
from tessera.core.devices import MIG, Device
from tessera.core.mig import PlaceLoss, bits
from tessera.core.node_info import Card
from tessera.core.policies.base import Floats, Policy, Ranking, Rows, by_score
from tessera.core.policies.fragmentation.array_growth import emptiness_by_column, growth_by_column
from tessera.core.policies.fragmentation.growth import DIGITS, MISSING, NodeGrowth, steps
from tessera.core.policies.fragmentation.waste import mig_waste, waste_rows
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request

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


# -- explaining


@dataclass(frozen=True, slots=True)
class Growth:
    """How much the loss of one node grows with the pod there, in cards; below zero is a gain."""

    total: float
    leftovers: float
    """parts of cards that no pod will come for"""
    unserved: float | None
    """idle cards that the host's CPU and memory cannot serve; None if it is unknown what the host has free"""
    groups: float
    """whole cards and groups of them that are broken"""
    scarce: float
    """cards of a model that other pods cannot do without"""
    emptiness: float
    """room on the node, which would be whole sooner without the pod"""

    @property
    def is_weighed(self) -> bool:
        """False if the policy sees no card that takes the pod, and tries the node last."""
        return self.total < MISSING / 2


def growths(arrays: CardArrays, pod: PodRequest, rows: Rows) -> list[Growth]:
    """By row: why the policy ranks the node as it does.

    Each part is what the growth gains when the forecast learns of it, so the parts add up to the growth that ranks the
    node. Several times slower than ranking, so not for decisions.
    """
    known = arrays.free_cpu[rows] > UNKNOWN
    forecasts = list(_forecasts_part_by_part(pod.forecast or PRIOR))
    totals = [
        -rank(Ranking(replace(pod, forecast=forecast), rows, np.zeros(len(rows)), arrays)) for forecast in forecasts
    ]
    emptiness = [emptiness_by_column(arrays, forecast, rows) for forecast in forecasts]
    sums = [total - empty for total, empty in zip(totals, emptiness, strict=True)]
    parts = [sums[0], *(after - before for before, after in pairwise(sums))]
    return [
        Growth(
            total=_rounded(totals[-1][i]),
            leftovers=_rounded(parts[0][i]),
            unserved=_rounded(parts[1][i]) if known[i] else None,
            groups=_rounded(parts[2][i]),
            scarce=_rounded(parts[3][i]),
            emptiness=_rounded(emptiness[-1][i]),
        )
        for i in range(len(rows))
    ]


def _forecasts_part_by_part(forecast: DemandForecast) -> Iterator[DemandForecast]:
    """From the slices alone to the whole forecast, one part more at a time."""
    step = DemandForecast(slices=forecast.slices, memory_part=forecast.memory_part)
    yield step
    step = replace(step, loads=forecast.loads, host_need=forecast.host_need, turnover=forecast.turnover)
    yield step
    step = replace(step, groups=forecast.groups, whole_need=forecast.whole_need)
    yield step
    yield forecast


def _rounded(value: float) -> float:
    """Adding 0.0 turns the -0.0 of floating point into 0.0."""
    return round(float(value), DIGITS) + 0.0
