"""Why a placement was chosen: the nodes that fit and the cards of one of them, in the order of the policies.

Every number is one that the policy orders by, or is shown beside it: how full a node is, and under `fragmentation` how
much its loss would grow. A node is listed only if `fit_pod` finds a placement there: the selector itself stops at the
first node where it does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tessera.core.event_text import success_text
from tessera.core.fit import fit_pod, make_ask
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.policies import POLICIES, card_scores, fragmentation, node_policy
from tessera.core.policies.base import Ranking
from tessera.core.requests import PodRequest
from tessera.core.selection import Selected
from tessera.inspect.slices import GrantedSlice, placement_slices

MAX_NODES = 5
"""how many nodes are listed"""


@dataclass(frozen=True, slots=True)
class ScoredNode:
    node: str
    score: float
    """how much of the node is in use before the pod comes"""
    place: int
    """1 = the best"""
    growth: float | None = None
    """of its loss with the pod, in cards; None under other node policies, which use the score"""


@dataclass(frozen=True, slots=True)
class ScoredCard:
    """A card and what the card policy orders by: usually how much of it would be in use with the pod."""

    card: str
    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Fits:
    node: str
    slices: tuple[GrantedSlice, ...]
    best: tuple[ScoredNode, ...]
    """nodes that fit, best first; the pod's current node comes last if it is not one of the best"""
    fitting: int
    """how many nodes fit"""
    cards: tuple[ScoredCard, ...]
    """of `cards_of`, in the order in which the policy tries them for the first request"""
    cards_of: str
    """the chosen node, or the pod's current one"""
    cards_by_growth: bool
    """whether the cards' scores are how much of each would be lost to leftovers, in cards"""
    event: tuple[str, ...]


def explain_choice(
    ledger: Ledger, request: PodRequest, answer: Selected, *, cards_of: str = ""
) -> Generator[None, None, Fits]:
    """`cards_of` names the node whose cards are shown, if that is not the chosen node. A step is one node."""
    shown = cards_of or answer.placement.node
    fitting = yield from _fitting(ledger, request, answer)
    ranked = [ScoredNode(name, round(score, 4), place) for place, (name, score) in enumerate(fitting, 1)]
    listed = [one for one in ranked if one.place <= MAX_NODES or one.node == shown]
    return Fits(
        answer.placement.node,
        placement_slices(ledger, answer.placement, [container.name for container in request.containers]),
        tuple(_with_growth(ledger, request, listed)),
        len(ranked),
        _card_order(ledger, request, shown),
        shown,
        POLICIES.get(request.device_policy) is fragmentation.POLICY,
        (success_text(answer),),
    )


def _fitting(ledger: Ledger, request: PodRequest, answer: Selected) -> Generator[None, None, list[tuple[str, float]]]:
    """Best first. Not every node that the selector has not ruled out fits: MIG, several containers, NUMA, quotas."""
    rooms = ledger.rooms(request.namespace, request.vendors)
    found = []
    for name, score in reversed(answer.fits):
        view = ledger.node(name)
        if view is not None and isinstance(fit_pod(view, request, ledger.rules, rooms), Placement):
            found.append((name, score))
        yield
    return [(name, score) for name, score in found if ledger.node(name) is not None]


def _with_growth(ledger: Ledger, request: PodRequest, nodes: Sequence[ScoredNode]) -> list[ScoredNode]:
    if node_policy(request.node_policy) is not fragmentation.POLICY:
        return list(nodes)
    rows = np.array([ledger.arrays.row(one.node) for one in nodes], dtype=np.intp)
    ranked = fragmentation.rank(Ranking(request, rows, np.zeros(len(rows)), ledger.arrays))
    # Adding 0.0 turns the -0.0 of floating point into 0.0.
    return [replace(one, growth=0.0 - rank) for one, rank in zip(nodes, ranked.tolist(), strict=True)]


def _card_order(ledger: Ledger, pod: PodRequest, node: str) -> tuple[ScoredCard, ...]:
    view = ledger.node(node)
    first = next((r for container in pod.containers for r in container.requests), None)
    if view is None or first is None:
        return ()
    ask = make_ask(view, pod, first, view.cards, container=0)
    return tuple(
        ScoredCard(card.device.uuid, card.device.index, round(score, 4))
        for card, score in zip(ask.cards, card_scores(pod, first, ask.cards), strict=True)
    )
