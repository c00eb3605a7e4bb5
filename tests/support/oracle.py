"""The plain rule of selection: `fit_pod` on each node in turn. `select_and_check` compares both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit, Reason, node_misfit
from tessera.core.model.node_info import node_score
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates, Refused, Selected, Selector


def decide_plainly(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> tuple[Placement | None, dict[str, Misfit]]:
    """What selection must return, by the plain rule on each node in turn."""
    rooms = ledger.rooms(pod.namespace, pod.vendors)
    misfits: dict[str, Misfit] = {}
    fits: list[tuple[float, str, Placement]] = []
    for name in names:
        node = ledger.node(name)
        answer = fit_pod(node, pod, ledger.rules, rooms) if node else node_misfit(Reason.NODE_UNREGISTERED)
        if isinstance(answer, Misfit) or node is None:
            assert isinstance(answer, Misfit)
            misfits[name] = answer
            continue
        parts = sum(ledger.rules[v].node_score(node, pod, grants) for v, grants in answer.grants.items())
        score = node_score(node.cards) + parts
        fits.append((-score if pod.node_policy == "spread" else score, name, answer._replace(score=score)))
    best = min(fits, key=lambda fit: (-fit[0], fit[1]), default=None)
    return best[2] if best else None, misfits


def shown(misfit: Misfit) -> tuple[Any, ...]:
    """The visible parts of a misfit."""
    return misfit.text, misfit.counts, misfit.container, misfit.total, misfit.vendor


def indexes(placement: Placement) -> list[int]:
    """Grants compare without the index, which some vendors hand to the runtime."""
    return [grant.index for held in placement.grants.values() for grants in held for grant in grants]


def select_and_check(selector: Selector, pod: PodRequest, candidates: Candidates) -> Selected | Refused:
    """The result of selection, which must equal that of the plain rule in everything that a caller can see."""
    answer = selector.select(pod, candidates)
    check_decision(answer, selector.ledger, pod, candidates.names)
    return answer


def check_decision(answer: Selected | Refused, ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> None:
    """Compares a result with the plain rule, which gets what the product gets: the ledger, the pod and the names."""
    placement, misfits = decide_plainly(ledger, pod, names)
    if isinstance(answer, Selected):
        assert placement is not None
        assert answer.placement == placement
        assert indexes(answer.placement) == indexes(placement)
        assert answer.fits[-1] == (placement.node, placement.score)
    else:
        assert placement is None
        assert {name: shown(m) for name, m in answer.misfits.items()} == {n: shown(m) for n, m in misfits.items()}
