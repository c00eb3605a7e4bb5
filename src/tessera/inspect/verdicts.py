"""The scheduler's verdict on a pod, in plain values: a placement (`choosing`), or why not, node by node.

Asks `selector.select` for the choice, `fit_pod` for the cards and `advice` for what would help: the functions
that decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.advice import RequestChange, advise
from tessera.core.event_text import failure_texts
from tessera.core.fit import fit_pod
from tessera.core.ledger import Ledger
from tessera.core.misfits import CardMisfit, Misfit, Reason
from tessera.core.near_misses import NearMiss, quick_near_miss
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selected, Selector
from tessera.inspect.choice import Fits, chosen
from tessera.inspect.slices import Holder, holders_of

DETAILS = 3
"""nodes of a group about which more is said"""


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Why one card does not serve."""

    node: str
    card: str
    index: int
    model: str
    reason: str
    asked: int | None
    free: int | None
    total: int | None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that refuse for the same reason."""

    reason: str
    """the text that kube-scheduler is told"""
    nodes: tuple[str, ...]
    detail: str = ""
    """more about some of them"""


@dataclass(frozen=True, slots=True)
class FitsNowhere:
    """The pod has no place: why, and what would help."""

    groups: tuple[Group, ...]
    near_miss: str
    holders: tuple[Holder, ...]
    """of the nearest card"""
    changes: tuple[RequestChange, ...]
    event: tuple[str, ...]
    """what the scheduler's event says"""
    cards: tuple[CardVerdict, ...] = ()


def judge(
    selector: Selector,
    request: PodRequest,
    names: Sequence[str],
    *,
    cards: bool = False,
    advice: bool = True,
    cards_of: str = "",
) -> Fits | FitsNowhere:
    """The verdict on these candidates. With `cards`, every refused card is listed; `cards_of` names the node whose
    cards are shown with their scores, where that is not the chosen one."""
    answer = selector.select(request, list(names))
    if isinstance(answer, Selected):
        return chosen(selector.ledger, request, answer, cards_of=cards_of)
    return _fits_nowhere(selector, request, names, answer, cards=cards, advice=advice)


def _fits_nowhere(
    selector: Selector, request: PodRequest, names: Sequence[str], refused: Refused, *, cards: bool, advice: bool
) -> FitsNowhere:
    ledger = selector.ledger
    found = advise(ledger, request, names) if advice else None
    near = found.near_miss if found is not None else None
    return FitsNowhere(
        _groups(ledger, refused),
        near.text if near is not None else "",
        holders_of(ledger, near.node, near.card.uuid) if isinstance(near, NearMiss) else (),
        found.changes if found is not None else (),
        _event(selector, request, names, refused),
        tuple(_cards(ledger, request, names)) if cards else (),
    )


def _event(selector: Selector, request: PodRequest, names: Sequence[str], refused: Refused) -> tuple[str, ...]:
    """As the scheduler's filter tells it: there is less time there, so that its near miss may be missing."""
    near = quick_near_miss(selector.ledger, request, selector.candidates(list(names)).rows)
    return (*failure_texts(refused), *([near.text] if near is not None else []))


def _groups(ledger: Ledger, refused: Refused) -> tuple[Group, ...]:
    """The largest first; grouped by the text, as kube-scheduler counts them."""
    nodes: dict[str, list[str]] = {}
    for name, misfit in sorted(refused.misfits.items()):
        nodes.setdefault(misfit.text, []).append(name)
    groups = []
    for text, names in nodes.items():
        details = [(name, _detail(ledger, name, refused.misfits[name])) for name in names]
        said = [f"{name} {detail}" for name, detail in details if detail][:DETAILS]
        groups.append(Group(text, tuple(names), "; ".join(said)))
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


def _cards(ledger: Ledger, request: PodRequest, names: Sequence[str]) -> list[CardVerdict]:
    rooms = ledger.rooms(request.namespace, request.vendors)
    found = []
    for name in names:
        view = ledger.node(name)
        answer = fit_pod(view, request, ledger.rules, rooms) if view is not None else None
        if view is None or not isinstance(answer, Misfit):
            continue
        devices = {card.device.uuid: card.device for card in view.cards}
        for refusal in _whole(answer, list(devices)):
            device = devices[refusal.uuid]
            found.append(
                CardVerdict(
                    name,
                    refusal.uuid,
                    device.index,
                    device.model,
                    refusal.reason.value,
                    refusal.asked,
                    refusal.free,
                    refusal.total,
                    holders_of(ledger, name, refusal.uuid),
                )
            )
    return found


def _whole(misfit: Misfit, uuids: Sequence[str]) -> list[CardMisfit]:
    """The refused cards in the order of registration."""
    return sorted((card for card in misfit.cards if card.uuid in uuids), key=lambda card: uuids.index(card.uuid))
