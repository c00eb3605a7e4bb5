"""What people are told about a decision: the texts of events, and what would help a pod that fits nowhere.

Changes are found by selecting nodes for altered pods, so an advised change is one that was seen to fit. Texts of events
are bounded, because Kubernetes cuts an event at 1024 characters. A refusal is one sentence for people, or HAMi's coded
texts for programs that parse those. Nothing here decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tessera.core.fit.quota import excess_text
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import Ints
from tessera.core.model.devices import MIG
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import MEANINGS, NODE_REASONS, Reason
from tessera.core.model.requests import PodRequest, Request, container_title
from tessera.core.search import Steps
from tessera.core.search.near_misses import (
    FewCards,
    NearMiss,
    mismatch_words,
    near_miss,
    near_miss_by_rule,
    unmet_wishes,
)
from tessera.core.search.selection import Candidates, Refused, Selected, Selector


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


NAMED_NODES = 16
"""nodes named in one text; the rest are counted"""
NAMED_REASONS = 4
"""groups of nodes in a sentence, the largest ones"""
MISMATCHES = frozenset({Reason.CARD_TYPE_MISMATCH, Reason.CARD_UUID_MISMATCH, Reason.CARD_SELECTOR_MISMATCH})


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_NODES
    return ",".join(names) if more <= 0 else ",".join((*names[:NAMED_NODES], f"... {more} more"))


def success_text(selected: Selected) -> str:
    """Which node was chosen, and the best of those that fit, the best one last.

    Nodes that only the plain rule could decide about and that were not tried (MIG) count neither as fit nor as not fit.
    """
    decided = selected.decided
    found = int(decided.sum())
    undecided = len(decided) - found
    shown = [f"{name}:{score:.2f}" for name, score in selected.best_decided(NAMED_NODES)]
    if found > NAMED_NODES:
        shown.insert(0, f"{found - NAMED_NODES} more ...")
    refused = len(selected.candidates.resolve()) - found - undecided
    text = f"find fit node({selected.placement.node}), {refused} nodes not fit, {found} nodes fit({','.join(shown)})"
    return f"{text}, {undecided} nodes not looked at" if undecided else text


def brief_success_text(placement: Placement) -> str:
    """The chosen node alone: costs nothing, for times of many decisions."""
    return f"find fit node({placement.node}), score {placement.score:.2f}"


def refusal_sentence(ledger: Ledger, pod: PodRequest, rows: Ints, refused: Refused) -> str:
    """Why the pod fits nowhere, in one sentence: what is lacking, with numbers where there are any, then the reasons
    by nodes. `rows`: the columns of the candidates."""
    held = next((misfit.detail for misfit, _ in refused.verdicts if misfit.counts[0][0] is Reason.HELD_FOR_GANG), "")
    near = near_miss(ledger, pod, rows)
    mode = mode_advice(ledger, pod)
    wishes = [mode] if mode else list(unmet_wishes(ledger, pod, rows))
    known = all(vendor in ledger.rules for vendor in pod.vendors)
    return "; ".join(
        [
            *filter(None, [held, excess_text(pod, pod.namespace, ledger.rules, ledger.quotas) if known else ""]),
            *([near.text] if near is not None else []),
            *wishes,
            *_reasons(ledger, pod, rows, refused, is_wish_unmet=bool(wishes)),
        ]
    )


def _reasons(ledger: Ledger, pod: PodRequest, rows: Ints, refused: Refused, *, is_wish_unmet: bool) -> list[str]:
    """How many nodes refuse for which reasons, the most first."""
    groups: Counter[tuple[Reason, ...]] = Counter()
    for misfit, count in refused.verdicts:
        groups[tuple(reason for reason, _ in misfit.counts)] += count
    total = sum(groups.values())
    meanings = {**MEANINGS, Reason.CARD_TYPE_MISMATCH: mismatch_words(ledger, pod, rows)}
    said = [
        f"{count} of {total} nodes: {' and '.join(filter(None, (meanings[reason] for reason in reasons)))}"
        for reasons, count in sorted(groups.items(), key=lambda group: (-group[1], group[0]))
        if not (is_wish_unmet and MISMATCHES.issuperset(reasons))
    ]
    more = len(said) - NAMED_REASONS
    return said if more <= 0 else [*said[:NAMED_REASONS], f"{more} more reasons"]


def failure_texts(refused: Refused) -> list[str]:
    """HAMi's: one text for each card reason, then the sum."""
    by_reason: dict[Reason, list[str]] = {}
    for name, misfit in refused.misfits.items():
        for reason, _ in misfit.counts:
            if reason not in NODE_REASONS:
                by_reason.setdefault(reason, []).append(name)
    texts = [
        f"{len(names)} nodes {reason.value}({_listed(sorted(names))})" for reason, names in sorted(by_reason.items())
    ]
    return [*texts, f"no available node, {len(refused.misfits)} nodes do not meet"]
