"""What a policy may decide: how cards of a node are ordered, and how fitting nodes are ranked.

A policy is a stateless strategy. Both halves are optional: `mutex` orders cards only; `fragmentation` ranks nodes from
more than their score, which is why `rank` sees the whole `Ranking`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tessera.core.cards import Card
from tessera.core.devices import Device
from tessera.core.mig import PlaceLoss
from tessera.core.requests import PodRequest, Request

if TYPE_CHECKING:
    from tessera.core.arrays import CardArrays

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The nodes to be ranked for one pod, all before placing it."""

    pod: PodRequest
    rows: Rows
    """their rows in `arrays`"""
    scores: Floats
    """their scores: use of slots, cores and memory, plus the vendors' parts"""
    arrays: CardArrays
    memo: dict[str, object] = field(default_factory=dict)
    """whatever a policy wants to find again for the next pod of this shape"""


CardKeys = Callable[[Sequence[Card], Sequence[float]], Sequence[float]]
"""of cards and their scores for the request, a number for each card: smaller is better"""

CardScores = Callable[[PodRequest, Request, Sequence[Card]], Sequence[float]]
"""a policy's own scores of cards for a request, in place of their use"""

PlaceLossOf = Callable[[PodRequest, Device], PlaceLoss | None]
"""a policy's own weighing of places on a card in MIG mode, in place of the usual order"""

NodeRank = Callable[[Ranking], Floats]
"""larger is better; equal values are decided by node name"""


@dataclass(frozen=True, slots=True)
class Policy:
    """One word that users may write as node or device policy."""

    name: str
    cards: CardKeys | None = None
    nodes: NodeRank | None = None
    card_scores: CardScores | None = None
    place_loss: PlaceLossOf | None = None
    sign_of_score: int | None = None
    """where nodes are ranked by their scores alone: 1 = the largest first, -1 = the smallest first"""
    looks_ahead: bool = False
    """whether pods under this policy should carry an outlook, and what they ask of the host"""
    numa_first: bool = True
    """with numa-bind: whether NUMA nodes come before the policy's own order"""
    low_numa_first: bool = False
    """with numa-bind: which NUMA node is tried first"""
