"""What would help a pod that fits nowhere: the card that comes nearest, and the smallest changes that would fit.

Changes are found by asking the ordinary selection about altered pods, so an advised change is one that was seen to
fit. Meant for `explain` and events, not for the hot path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.core import screen
from tessera.core.arrays import CardArrays, Ints
from tessera.core.fitting import fit_pod
from tessera.core.generic import refuse_capacity
from tessera.core.ledger import Ledger
from tessera.core.misfits import CardMisfit, Misfit, Reason
from tessera.core.policies.base import Floats
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.selection import Candidates, Selected, Selector

UNITS = {
    Reason.CARD_INSUFFICIENT_MEMORY: "MiB",
    Reason.CARD_INSUFFICIENT_CORES: "cores",
}
"""reasons that a smaller request, or a little more room, would cure"""


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
class Change:
    """One alteration of one container's request that makes the pod fit."""

    container: str
    field: str
    """`memory`, `percent`, `cores` or `count`"""
    asked: int
    fits: int
    """the largest value that fits"""
    node: str

    @property
    def text(self) -> str:
        what = {"memory": "MiB of memory", "percent": "% of memory", "cores": "cores", "count": "cards"}[self.field]
        return f"container {self.container}: {self.fits} instead of {self.asked} {what} would fit on {self.node}"


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is known about how a refused pod could be helped."""

    near_miss: NearMiss | None
    changes: tuple[Change, ...]


def advise(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> Advice:
    """Advice for a pod that does not fit any of these nodes."""
    return Advice(near_miss(ledger, pod, names), smallest_changes(ledger, pod, names))


def near_miss(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> NearMiss | None:
    """The least relative shortfall of memory or cores; equal ones by node and card."""
    rooms = ledger.rooms(pod.namespace, pod.vendors)
    found: list[tuple[float, str, str, NearMiss]] = []
    for name in names:
        node = ledger.node(name)
        answer = fit_pod(node, pod, ledger.rules, rooms) if node is not None else None
        for card in answer.cards if isinstance(answer, Misfit) else ():
            if card.reason in UNITS and card.asked is not None and card.free is not None and card.total:
                share = (card.asked - card.free) / card.total
                found.append((share, name, card.uuid, NearMiss(name, card, UNITS[card.reason])))
    return min(found, key=lambda item: item[:3])[3] if found else None


def quick_near_miss(ledger: Ledger, pod: PodRequest, rows: Ints) -> NearMiss | None:
    """The same over thousands of nodes at once, for the pod's first request and vendors that the arrays can judge."""
    request = next((r for container in pod.containers for r in container.requests), None)
    rules = ledger.rules.get(request.vendor) if request is not None else None
    if request is None or rules is None or not rules.arrays_exact or not len(rows):
        return None
    arrays = ledger.arrays
    rows = rows[~arrays.unavailable[rows]]
    mutex = "mutex" in {word.strip() for word in pod.device_policy.split(",")}
    question = screen.Question(request, pod.constraint(request.vendor), rules, mutex)
    best: tuple[float, int, int, int, Reason] | None = None
    codes = screen.judge(arrays, question, rows)
    for code, reason in enumerate(screen.REASONS):
        if reason is None or reason not in UNITS:
            continue
        places, columns = np.nonzero(codes == code)
        if not len(places):
            continue
        shares = _shares(arrays, request, places, rows[columns], reason)
        ranks = arrays.ranks[rows[columns]]
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
        asked = np.array([request.memory_on(int(t)) for t in np.unique(total)])[
            np.searchsorted(np.unique(total), total)
        ]
        free = total - arrays.used_memory[at]
    else:
        total = arrays.cores[at]
        asked = np.where(request.cores >= np.minimum(total, WHOLE_CARD_CORES), total, request.cores)
        free = total - arrays.used_cores[at]
    shares: Floats = np.where(total > 0, (asked - free) / np.maximum(total, 1), np.inf)
    return shares


def smallest_changes(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> tuple[Change, ...]:
    """For every request: the largest memory, cores or count with which the pod would fit, each changed alone."""
    selector = Selector(ledger)
    candidates = selector.candidates(names)
    changes = []
    for position, container in enumerate(pod.containers):
        for request in container.requests:
            for field, least in (("memory", 1), ("percent", 1), ("cores", 0), ("count", 1)):
                change = _largest_that_fits(selector, candidates, pod, position, request, field, least)
                if change is not None:
                    changes.append(change)
    return tuple(changes)


def _largest_that_fits(
    selector: Selector,
    candidates: Candidates,
    pod: PodRequest,
    position: int,
    request: Request,
    field: str,
    least: int,
) -> Change | None:
    """Halving between `least` and what is asked: asking for less never fits worse."""
    asked: int = getattr(request, field)

    def attempt(value: int) -> str | None:
        altered = _altered(pod, position, request, _with(request, field, value))
        answer = selector.select(altered, candidates)
        return answer.placement.node if isinstance(answer, Selected) else None

    if asked <= least:
        return None
    best, node = least, attempt(least)
    if node is None:
        return None
    low, high = least, asked
    while high - low > 1:
        middle = (low + high) // 2
        found = attempt(middle)
        if found is None:
            high = middle
        else:
            low, best, node = middle, middle, found
    return Change(pod.containers[position].name, field, asked, best, node)


def _with(request: Request, field: str, value: int) -> Request:
    change: dict[str, Any] = {field: value}
    return replace(request, **change)


def _altered(pod: PodRequest, position: int, old: Request, new: Request) -> PodRequest:
    containers = list(pod.containers)
    requests = tuple(new if request == old else request for request in containers[position].requests)
    containers[position] = replace(containers[position], requests=requests)
    return replace(pod, containers=tuple(containers))
