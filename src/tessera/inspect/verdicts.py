"""The scheduler's verdict on a pod, in plain values: a placement (see `choice`), or why not, node by node.

The functions that decide in the scheduler decide here: `selector.select`, `fit_pod` and `advise`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice

from tessera.core.advice import RequestChange, advise
from tessera.core.event_text import refusal_sentence
from tessera.core.fit import fit_pod
from tessera.core.ledger import Ledger
from tessera.core.misfits import CardMisfit, Misfit, Reason, plain_reasons
from tessera.core.mismatches import mismatch_words
from tessera.core.near_misses import NearMiss
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selected, Selector
from tessera.inspect.choice import Fits, explain_choice
from tessera.inspect.pod_claims import unmet_selectors
from tessera.inspect.slices import CardHolder, card_holders
from tessera.scheduler.engine_view import ClaimUsers, EngineView
from tessera.scheduler.pod_requests import PreparedRequest

DETAILS = 3
"""nodes of a group whose details are shown"""


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
