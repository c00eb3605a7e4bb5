"""The growth of the loss on some nodes, taken apart: for people who ask why `fragmentation` chose a node.

The parts of a node add up to the growth that ranks it, whatever way the policy works that out: each part is what the
policy's own rank loses when the outlook does not know of it. Slower than ranking, so never on the way to a decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tessera.core.arrays import UNKNOWN, CardArrays
from tessera.core.demand_forecast import PRIOR, DemandForecast
from tessera.core.policies.base import Floats, Ranking, Rows
from tessera.core.policies.fragmentation import rank
from tessera.core.policies.fragmentation_loss import DIGITS, MISSING
from tessera.core.requests import PodRequest


@dataclass(frozen=True, slots=True)
class Growth:
    """How much the loss of one node grows with the pod there, in cards; below zero is a gain."""

    total: float
    leftovers: float
    """parts of cards that no pod will come for"""
    unserved: float | None
    """idle cards that the host's CPU and memory cannot serve; None where nobody knows what the host has free"""
    groups: float
    """whole groups of cards that are broken"""
    scarce: float
    """cards of a model that other pods cannot do without"""

    @property
    def is_weighed(self) -> bool:
        """False where the policy sees no card that takes the pod, and tries the node last."""
        return self.total < MISSING / 2


def growths(arrays: CardArrays, pod: PodRequest, rows: Rows) -> list[Growth]:
    """By row, in their order."""
    known = arrays.free_cpu[rows] > UNKNOWN
    steps = [_growth(arrays, replace(pod, outlook=outlook), rows) for outlook in _steps(pod.outlook or PRIOR)]
    parts = [steps[0], *(after - before for before, after in pairwise(steps))]
    return [
        Growth(
            total=_number(steps[-1][i]),
            leftovers=_number(parts[0][i]),
            unserved=_number(parts[1][i]) if known[i] else None,
            groups=_number(parts[2][i]),
            scarce=_number(parts[3][i]),
        )
        for i in range(len(rows))
    ]


def _steps(outlook: DemandForecast) -> Iterator[DemandForecast]:
    """From the slices alone to all that is known, one part more at a time."""
    step = DemandForecast(slices=outlook.slices, memory_part=outlook.memory_part)
    yield step
    step = replace(step, loads=outlook.loads)
    yield step
    step = replace(step, groups=outlook.groups)
    yield step
    yield outlook


def _growth(arrays: CardArrays, pod: PodRequest, rows: Rows) -> Floats:
    return -rank(Ranking(pod, rows, np.zeros(len(rows)), arrays))


def _number(value: float) -> float:
    """Adding nothing turns the -0.0 of floating point into 0.0."""
    return round(float(value), DIGITS) + 0.0
