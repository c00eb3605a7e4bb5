"""The texts of events about decisions: HAMi's, bounded, because Kubernetes cuts an event at 1024 characters."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.advice import mode_advice
from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import NODE_REASONS, Reason
from tessera.core.near_misses import quick_near_miss
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selected

NAMED_NODES = 16
"""nodes named in one text; the rest are counted"""


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


def refusal_texts(ledger: Ledger, pod: PodRequest, rows: Ints, refused: Refused) -> list[str]:
    """All that is said about a refusal: the reasons, what comes nearest, and the mode that the pod did not ask for."""
    near = quick_near_miss(ledger, pod, rows)
    return [
        *failure_texts(refused),
        *([near.text] if near is not None else []),
        *filter(None, [mode_advice(ledger, pod)]),
    ]


def failure_texts(refused: Refused) -> list[str]:
    """One text for each card reason, then the sum."""
    by_reason: dict[Reason, list[str]] = {}
    for name, misfit in refused.misfits.items():
        for reason, _ in misfit.counts:
            if reason not in NODE_REASONS:
                by_reason.setdefault(reason, []).append(name)
    texts = [
        f"{len(names)} nodes {reason.value}({_listed(sorted(names))})" for reason, names in sorted(by_reason.items())
    ]
    return [*texts, f"no available node, {len(refused.misfits)} nodes do not meet"]
