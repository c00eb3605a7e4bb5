"""The scheduler's verdict on a pod, in plain values: why a placement was chosen, or why there is none, node by node.

The functions that decide in the scheduler decide here: `selector.select`, `fit_pod` and `advise`. Of a choice, the
nodes that fit and the cards of one of them are listed in the order of the policies. Every number is one that the policy
orders by, or is shown beside it: how full a node is, and under `fragmentation` how much its loss would grow. A node is
listed only if `fit_pod` finds a placement there: the selector itself stops at the first node where it does.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tessera.core.fit.fit import fit_pod, make_ask
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import CardMisfit, Misfit, Reason, plain_reasons
from tessera.core.model.requests import PodRequest
from tessera.core.policies import POLICIES, card_scores, fragmentation, node_policy
from tessera.core.policies.base import Ranking
from tessera.core.search.advice import RequestChange, advise, refusal_sentence, success_text
from tessera.core.search.near_misses import NearMiss, mismatch_words
from tessera.core.search.selection import Refused, Selected, Selector
from tessera.inspect.request import unmet_selectors
from tessera.inspect.slices import CardHolder, GrantedSlice, card_holders, placement_slices
from tessera.scheduler.engine_view import ClaimUsers, EngineView
from tessera.scheduler.requests.reader import PreparedRequest

MAX_NODES = 5
"""how many nodes are listed"""

DETAILS = 3
"""nodes of a group whose details are shown"""


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


@dataclass(frozen=True, slots=True)
class CardRefusal:
    """Why one card does not fit."""

    node: str
    card: str
    index: int
    model: str
    reason: str
    asked: int | None
    free: int | None
    total: int | None
    holders: tuple[CardHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that refuse for the same reason."""

    reason: str
    """the text that the extender returns to kube-scheduler"""
    nodes: tuple[str, ...]
    detail: str = ""
    """more about some of them"""
    mismatch: str = ""
    """whether it is the model or the sharing mode that does not match"""

    @property
    def words(self) -> str:
        """The reason in plain words; empty if it has none."""
        return plain_reasons(self.reason, mismatch=self.mismatch)


@dataclass(frozen=True, slots=True)
class FitsNowhere:
    """The pod fits on no node: why, and what would help."""

    groups: tuple[NodeGroup, ...]
    near_miss: str
    holders: tuple[CardHolder, ...]
    """of the card that comes nearest"""
    changes: tuple[RequestChange, ...]
    mode: str
    """the mode that the pod would have to ask for"""
    event: str
    """what the scheduler's event says"""
    wishes: tuple[str, ...] = ()
    """what there is instead of the model, mode or uuid that the pod asks for"""
    cards: tuple[CardRefusal, ...] = ()

    @property
    def change(self) -> str:
        """What would make it fit."""
        return self.mode or "; or ".join(change.text for change in self.changes)


def judge(
    view: EngineView,
    prepared: PreparedRequest,
    names: Sequence[str],
    *,
    cards: bool = False,
    advice: bool = True,
    cards_of: str = "",
    work: float = math.inf,
) -> Generator[None, None, Fits | FitsNowhere]:
    """The verdict on these candidates: the first alternative that fits, or what is said of the preferred one. `cards`
    lists every card that does not fit. `cards_of` names the node whose cards are shown with their scores, if that is
    not the chosen node. A step is about as much as `Selector.select_within` does with so much work."""
    selector = view.selector
    request, answer = yield from selector.select_in_steps(prepared.variants, selector.candidates(names), work)
    if isinstance(answer, Selected):
        return (yield from explain_choice(selector.ledger, request, answer, cards_of=cards_of))
    return (yield from judge_refusal(view, request, names, answer, cards=cards, advice=advice, work=work))


def judge_refusal(
    view: EngineView,
    request: PodRequest,
    names: Sequence[str],
    refused: Refused,
    *,
    cards: bool,
    advice: bool = True,
    work: float,
) -> Generator[None, None, FitsNowhere]:
    """Why these candidates refuse a pod."""
    found = (yield from advise(view.ledger, request, names, work=work)) if advice else None
    selector, ledger, users_of = view.selector, view.ledger, view.users_of
    yield
    groups = _groups(selector, request, refused)
    yield
    event = refusal_sentence(ledger, request, selector.candidates(names).rows, refused)
    yield
    near = found.near_miss if found is not None else None
    return FitsNowhere(
        groups,
        near.text if near is not None else "",
        card_holders(ledger, near.node, near.uuid, users_of) if isinstance(near, NearMiss) else (),
        found.changes if found is not None else (),
        found.mode if found is not None else "",
        event,
        (*found.wishes, *unmet_selectors(ledger, request, selector.candidates(names))) if found is not None else (),
        tuple(_cards(ledger, request, names, users_of)) if cards else (),
    )


def _groups(selector: Selector, request: PodRequest, refused: Refused) -> tuple[NodeGroup, ...]:
    """The largest group first. Grouped by text, as kube-scheduler counts reasons. Nodes with fewer cards than asked for
    are ordered by how many they have."""
    ledger = selector.ledger
    nodes: dict[str, list[str]] = {}
    for name, misfit in sorted(refused.misfits.items(), key=lambda item: (-item[1].total, item[0])):
        nodes.setdefault(misfit.text, []).append(name)
    groups = []
    for text, names in nodes.items():
        if text != Reason.NODE_INSUFFICIENT_DEVICE:
            names.sort()
        details = ((name, _detail(ledger, name, refused.misfits[name])) for name in names)
        said = islice((f"{name} {detail}" for name, detail in details if detail), DETAILS)
        mismatch = ""
        if Reason.CARD_TYPE_MISMATCH in text:
            mismatch = mismatch_words(ledger, request, selector.candidates(names).rows)
        groups.append(NodeGroup(text, tuple(names), "; ".join(said), mismatch))
    return tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.reason)))


def _detail(ledger: Ledger, name: str, misfit: Misfit) -> str:
    if misfit.detail:
        return f"({misfit.detail})"
    reasons = {reason for reason, _ in misfit.counts}
    if Reason.NODE_INSUFFICIENT_DEVICE in reasons:
        return f"has {misfit.total or 'none'} of {misfit.vendor}"
    if Reason.CARD_NOT_HEALTHY in reasons:
        view = ledger.node(name)
        return next((card.held for card in view.cards if card.held), "") if view is not None else ""
    return ""


def _cards(ledger: Ledger, request: PodRequest, names: Sequence[str], users_of: ClaimUsers) -> list[CardRefusal]:
    rooms = ledger.rooms(request.namespace, request.vendors)
    found = []
    for name in names:
        view = ledger.node(name)
        answer = fit_pod(view, request, ledger.rules, rooms) if view is not None else None
        if view is None or not isinstance(answer, Misfit):
            continue
        devices = {card.device.uuid: card.device for card in view.cards}
        for refusal in _in_registration_order(answer, list(devices)):
            device = devices[refusal.uuid]
            found.append(
                CardRefusal(
                    name,
                    refusal.uuid,
                    device.index,
                    device.model,
                    refusal.reason.value,
                    refusal.asked,
                    refusal.free,
                    refusal.total,
                    card_holders(ledger, name, refusal.uuid, users_of),
                )
            )
    return found


def _in_registration_order(misfit: Misfit, uuids: Sequence[str]) -> list[CardMisfit]:
    """The cards that do not fit, in the order of registration."""
    return sorted((card for card in misfit.cards if card.uuid in uuids), key=lambda card: uuids.index(card.uuid))
