"""The texts of events about decisions, bounded, because Kubernetes cuts an event at 1024 characters.

A refusal is one sentence for people, or HAMi's coded texts for programs that parse those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tessera.core.advice import mode_advice
from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import MEANINGS, NODE_REASONS, Reason
from tessera.core.mismatches import mismatch_words, unmet_wishes
from tessera.core.near_misses import near_miss
from tessera.core.quota import excess_text
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selected

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
