"""What a policy may decide: how the cards of a node are ordered, how fitting nodes are ranked, and what fitting obeys.

A policy is stateless and everything that depends on it is one of its attributes, so no other module compares names of
policies. `DevicePolicy` is what the text of a pod's device policy comes to, which may name several policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tessera.core.model.devices import Device
from tessera.core.model.mig import PlaceLoss
from tessera.core.model.node_info import Card
from tessera.core.model.requests import PodRequest, Request

if TYPE_CHECKING:
    from tessera.core.model.arrays import CardArrays

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
    """what a policy keeps for the next pod of this shape"""


CardKeys = Callable[[Sequence[Card], Sequence[float]], Sequence[float]]
"""of cards and their scores for the request, a number for each card: smaller is better"""

CardScores = Callable[[PodRequest, Request, Sequence[Card]], Sequence[float]]
"""a policy's own scores of cards for a request, in place of their use"""

PlaceLossOf = Callable[[PodRequest, Device], PlaceLoss | None]
"""a policy's own weighing of places on a card in MIG mode, in place of the usual order"""

NodeRank = Callable[[Ranking], Floats]
"""larger is better; equal values are decided by node name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One name that users may write as node policy, as device policy or as both."""

    name: str
    summary: str
    """one line for users"""
    nodes: NodeRank | None = None
    """None: not a node policy"""
    cards: CardKeys | None = None
    """None: not a device policy"""
    card_scores: CardScores | None = None
    place_loss: PlaceLossOf | None = None
    prefers_idle_nodes: bool = False
    """as a node policy: vendors that score nodes of their own turn their scores round as well"""
    unused_cards_only: bool = False
    """as a device policy: a card that is in use is refused"""
    chooses_by_links: bool = False
    """as a device policy: of the cards that fit, those with the best links are chosen"""
    uses_forecast: bool = False
    """whether requests under this policy carry a demand forecast, and what they ask of the host"""
    orders_in_lists: bool = False
    """whether it orders cards inside a comma list; the others only add their rules of fitting there"""
    is_list: bool = False
    """whether it behaves as a comma list even where it stands alone"""
    numa_first: bool = True
    """with numa-bind: whether NUMA nodes come before the policy's own order"""
    low_numa_first: bool = False
    """with numa-bind: whether the lowest NUMA node is tried first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePolicy:
    """What the text of a pod's device policy comes to."""

    keys: tuple[CardKeys, ...]
    """order of the cards, the most important key first"""
    numa_keys: tuple[CardKeys, ...]
    """the same for pods with numa-bind"""
    card_scores: CardScores | None
    place_loss: PlaceLossOf | None
    unused_cards_only: bool
    chooses_by_links: bool
    uses_forecast: bool

    def order(self, cards: Sequence[Card], scores: Sequence[float], *, numa_bind: bool) -> list[Card]:
        """Cards of one vendor, best first. `cards` are in order of registration; of equal ones the last is first."""
        columns = [key(cards, scores) for key in (self.numa_keys if numa_bind else self.keys)]
        rows = sorted(zip(*columns, range(0, -len(cards), -1), strict=True))
        return [cards[-row[-1]] for row in rows]


def by_score(_cards: Sequence[Card], scores: Sequence[float]) -> Sequence[float]:
    """The lowest score first."""
    return scores
