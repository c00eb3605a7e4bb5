"""What would help a pod that fits nowhere: what comes nearest, and the smallest changes that would fit.

Changes are found by selecting nodes for altered pods, so an advised change is one that was seen to fit. For `explain`
and events, not for decisions.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from tessera.core.devices import MIG
from tessera.core.ledger import Ledger
from tessera.core.mismatches import unmet_wishes
from tessera.core.near_misses import FewCards, NearMiss, near_miss, near_miss_by_rule
from tessera.core.requests import PodRequest, Request, container_title
from tessera.core.selection import Candidates, Selected, Selector

T = TypeVar("T")
Steps = Generator[None, None, T]
"""pauses at each yield; its return value is the result"""


@dataclass(frozen=True, slots=True)
class RequestChange:
    """One change of one container's request that makes the pod fit."""

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
        return f"{container_title(self.container)}: {self.fits} instead of {self.asked} {what} would fit on {self.node}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What comes nearest to a refused pod, and what would make it fit."""

    near_miss: NearMiss | FewCards | None
    changes: tuple[RequestChange, ...]
    mode: str
    """see `mode_advice`"""
    wishes: tuple[str, ...] = ()
    """see `unmet_wishes`; empty where `mode` says it all"""


def advise(ledger: Ledger, pod: PodRequest, names: Sequence[str], *, work: float = math.inf) -> Steps[Advice]:
    """Advice for a pod that does not fit any of these nodes; a step is about as much as `Selector.select_within` does
    with so much work. If the ledger changes meanwhile, the parts may not belong together."""
    rows = Selector(ledger).candidates(names).rows
    mode = mode_advice(ledger, pod)
    yield
    near = near_miss(ledger, pod, rows)
    yield
    near = near or (yield from near_miss_by_rule(ledger, pod, names))
    changes = yield from smallest_changes(ledger, pod, names, work=work)
    wishes = () if mode else tuple(unmet_wishes(ledger, pod, Selector(ledger).candidates(names).rows))
    return Advice(near, changes, mode, wishes)


def mode_advice(ledger: Ledger, pod: PodRequest) -> str:
    """What a pod lacks where a vendor has no card in any mode but MIG; empty if it lacks nothing. Cheap enough for
    admission. Cards of nodes that are too wide for the arrays do not count."""
    arrays = ledger.arrays
    for vendor in pod.vendors:
        rules = ledger.rules.get(vendor)
        if rules is None or not rules.mode_annotation or pod.constraint(vendor).names_mode(MIG):
            continue
        if all(request.accepts is not None for _, request in pod.requests if request.vendor == vendor):
            continue  # Claims get instances without an annotation.
        if vendor in arrays.mig_vendors:
            kinds = zip(arrays.kinds, arrays.kind_counts(), strict=True)
            if {kind.sample.mode for kind, count in kinds if kind.vendor == vendor and count} == {MIG}:
                return (
                    f"every {vendor} card is in MIG mode, and a pod gets a MIG instance only with the annotation "
                    f"{rules.mode_annotation}: {MIG}"
                )
    return ""


def capacity(ledger: Ledger, vendor: str) -> tuple[int, int]:
    """MiB and cores of all cards of a vendor. Cheap enough for admission; cards of nodes that are too wide for the
    arrays do not count."""
    memory, cores = ledger.arrays.capacity(vendor)
    rules = ledger.rules.get(vendor)
    if rules is not None and rules.core_masks:
        return sum(memory), sum(mask.bit_count() for mask in cores)
    return sum(memory), sum(cores)


def smallest_changes(
    ledger: Ledger, pod: PodRequest, names: Sequence[str], *, work: float = math.inf
) -> Steps[tuple[RequestChange, ...]]:
    """For every request: the largest memory, cores or count with which the pod would fit, each changed alone."""
    selector = Selector(ledger)
    candidates = selector.candidates(names)
    changes = []
    for position, container in enumerate(pod.containers):
        for request in container.requests:
            for field, least in (("memory", 1), ("percent", 1), ("cores", 0), ("count", 1)):
                if field == "percent" and request.accepts is not None:
                    continue  # A claim asks for bytes, or for all of them.
                alternatives = _Alternatives(selector, candidates, pod, position, request, field, work)
                change = yield from alternatives.largest_that_fits(least)
                if change is not None:
                    changes.append(change)
    return tuple(changes)


class _Alternatives(NamedTuple):
    """A pod with other values of one field of one request."""

    selector: Selector
    candidates: Candidates
    pod: PodRequest
    position: int
    request: Request
    field: str
    work: float

    def largest_that_fits(self, least: int) -> Steps[RequestChange | None]:
        """Binary search between `least` and what is asked: asking for less never fits worse."""
        asked: int = getattr(self.request, self.field)
        if asked <= least:
            return None
        best, node = least, (yield from self._node_for(least))
        if not node:
            return None
        low, high = least, asked
        while high - low > 1:
            middle = (low + high) // 2
            found = yield from self._node_for(middle)
            if not found:
                high = middle
            else:
                low, best, node = middle, middle, found
        return RequestChange(self.pod.containers[self.position].name, self.field, asked, best, node)

    def _node_for(self, value: int) -> Steps[str]:
        """Where the pod fits with this value; empty if it fits nowhere."""
        altered = _altered(self.pod, self.position, self.request, _with(self.request, self.field, value))
        _, answer = yield from self.selector.select_in_steps((altered,), self.candidates, self.work)
        yield
        return answer.placement.node if isinstance(answer, Selected) else ""


def _with(request: Request, field: str, value: int) -> Request:
    change: dict[str, Any] = {field: value}
    return replace(request, **change)


def _altered(pod: PodRequest, position: int, old: Request, new: Request) -> PodRequest:
    containers = list(pod.containers)
    requests = tuple(new if request == old else request for request in containers[position].requests)
    containers[position] = replace(containers[position], requests=requests)
    return replace(pod, containers=tuple(containers))
