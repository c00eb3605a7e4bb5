"""What comes nearest to a refused pod: the node with the most cards that fit, or the card that lacks least.

`near_miss` applies the plain rule to every node. `quick_near_miss` gives the same answer from the arrays, for the
common case, in a fraction of a millisecond, so that the scheduler's events can include it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.core import screen
from tessera.core.arrays import CardArrays, Ints
from tessera.core.card_checks import refuse_capacity
from tessera.core.fit import fit_pod
from tessera.core.ledger import Ledger
from tessera.core.misfits import CardMisfit, Misfit, Reason
from tessera.core.policies.base import Floats
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request

UNITS = {
    Reason.CARD_INSUFFICIENT_MEMORY: "MiB",
    Reason.CARD_INSUFFICIENT_CORES: "cores",
}
"""reasons that a smaller request would cure"""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The card that comes nearest to what is asked."""

    node: str
    card: CardMisfit
    unit: str

    @property
    def text(self) -> str:
        return (
            f"needs {self.card.asked} {self.unit} on one card; "
            f"best is {self.node} / {self.card.uuid} with {self.card.free} {self.unit} free of {self.card.total}"
        )


@dataclass(frozen=True, slots=True)
class FewCards:
    """The node that has most of the cards, but not all."""

    node: str
    asked: int
    found: int

    @property
    def text(self) -> str:
        return f"needs {self.asked} cards that fit on one node; best is {self.node} with {self.found}"


def near_miss(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> NearMiss | FewCards | None:
    """If several cards are asked for and some fit: the node with the most of them. Otherwise the card that lacks least.

    Equal ones are decided by the names of nodes and the order of cards.
    """
    rooms = ledger.rooms(pod.namespace, pod.vendors)
    few: list[FewCards] = []
    lacking: list[tuple[float, str, int, NearMiss]] = []
    for name in sorted(names):
        node = ledger.node(name)
        answer = fit_pod(node, pod, ledger.rules, rooms) if node is not None else None
        if node is None or not isinstance(answer, Misfit):
            continue
        found = dict(answer.counts).get(Reason.TOO_FEW_CARDS, 0)
        if found:
            few.append(FewCards(name, _asked(pod, answer).count, found))
        places = {card.device.uuid: place for place, card in enumerate(node.cards)}
        for card in answer.cards:
            if card.reason in UNITS and card.asked is not None and card.free is not None and card.total:
                share = (card.asked - card.free) / card.total
                lacking.append((share, name, places[card.uuid], NearMiss(name, card, UNITS[card.reason])))
    if few:
        return max(few, key=lambda one: one.found)
    return min(lacking, key=lambda item: item[:3])[3] if lacking else None


def _asked(pod: PodRequest, misfit: Misfit) -> Request:
    return next(r for r in pod.containers[misfit.container].requests if r.vendor == misfit.vendor)


def quick_near_miss(ledger: Ledger, pod: PodRequest, rows: Ints) -> NearMiss | FewCards | None:
    """The same over thousands of nodes at once, for the pod's first request and vendors that the arrays can judge."""
    request = next((r for container in pod.containers for r in container.requests), None)
    rules = ledger.rules.get(request.vendor) if request is not None else None
    if request is None or rules is None or not rules.arrays_exact or not len(rows):
        return None
    arrays = ledger.arrays
    rows = rows[~arrays.unavailable[rows]]
    question = screen.question(pod, request, rules)
    # A node without enough cards at all is refused for that, whatever its cards are like.
    rows = rows[screen.card_counts(arrays, request.vendor, rows) >= request.count]
    codes = screen.judge(arrays, question, rows)
    most = (codes == screen.TAKES).sum(axis=0)
    if (most >= request.count).any():
        # Something that the arrays do not know keeps the pod away: NUMA, a quota, another container.
        return None
    if most.any():
        first = int(np.lexsort((arrays.order.places[rows], -most))[0])
        return FewCards(arrays.names[rows[first]], request.count, int(most[first]))
    best: tuple[float, int, int, int, Reason] | None = None
    for code, reason in enumerate(screen.REASONS):
        if reason is None or reason not in UNITS:
            continue
        places, columns = np.nonzero(codes == code)
        if not len(places):
            continue
        shares = _shares(arrays, request, places, rows[columns], reason)
        ranks = arrays.order.places[rows[columns]]
        i = int(np.lexsort((places, ranks, shares))[0])
        if not np.isfinite(shares[i]):
            continue
        found = (float(shares[i]), int(ranks[i]), int(places[i]), int(rows[columns[i]]), reason)
        best = found if best is None or found[:3] < best[:3] else best
    if best is None:
        return None
    node = ledger.node(arrays.names[best[3]])
    assert node is not None  # it has a column
    card = node.cards[best[2]]
    misfit = refuse_capacity(request, card)
    return NearMiss(node.name, misfit, UNITS[misfit.reason]) if misfit is not None and misfit.reason in UNITS else None


def _shares(arrays: CardArrays, request: Request, places: Ints, columns: Ints, reason: Reason) -> Floats:
    """What these cards lack, as a share of the whole; infinite for cards that have nothing of it."""
    at = (places, columns)
    if reason is Reason.CARD_INSUFFICIENT_MEMORY:
        total = arrays.memory[at]
        asked = screen.memory_asked(request, total)
        free = total - arrays.used_memory[at]
    else:
        total = arrays.cores[at]
        asked = np.where(request.cores >= np.minimum(total, WHOLE_CARD_CORES), total, request.cores)
        free = total - arrays.used_cores[at]
    shares: Floats = np.where(total > 0, (asked - free) / np.maximum(total, 1), np.inf)
    return shares
