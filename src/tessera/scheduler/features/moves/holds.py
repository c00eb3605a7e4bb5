"""Places that are held because pods are moved.

    (absent) ──▶ held in the ledger ──▶ taken by the next pod of the workload, or by the pod that waits for it
                        └─────────────▶ released: the move has ended, its time is over, or the term is

The ledger's book of holds (`core.ledger.holders`) is the only record: a reservation for a successor; or a nomination
over the pods that are moved away, for the pod that waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tessera.core.ledger.audit import overcommitments
from tessera.core.ledger.holders import GrantState, move_hold_uid
from tessera.core.ledger.holdings import PodFacts, holdings
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Role
from tessera.core.search.relocation import cards_of
from tessera.wire.moves import HeldCard, MovePlace

ELSEWHERE = "the cards are not free any more"
CONTESTED = "pods are evicted there for another pod"


class PlaceHeld(NamedTuple):
    """One place to be held."""

    facts: PodFacts
    taker: Hashable
    """the uid of a pod, or a workload"""
    leaving: frozenset[str] = frozenset()
    """uids of pods that are moved away first: they have the place, or a part of what its gang needs"""


def held_facts(uid: str, facts: PodFacts) -> PodFacts:
    """What is held because of this pod. In no namespace: the pod that moves counts against its quotas until it is gone,
    and then its successor does."""
    return facts._replace(uid=move_hold_uid(uid), namespace="", name=f"{facts.name} (moves here)")


def asked_facts(uid: str, name: str, place: MovePlace) -> PodFacts:
    """The same, of a request."""
    by_vendor: dict[str, list[Grant]] = {}
    for card in place.held:
        by_vendor.setdefault(card.vendor, []).extend(_grants(card))
    grants = {vendor: (tuple(grants),) for vendor, grants in by_vendor.items()}
    return held_facts(uid, PodFacts(uid, "", name, place.node, (Span(Role.APP),), grants))


def _grants(card: HeldCard) -> Iterator[Grant]:
    """One, or one for each instance: the first of them has the amounts of all."""
    whole = Grant(card.uuid, card.vendor, card.memory, card.cores, slots=card.slots)
    slots = [MigSlot(each.profile, MigPlacement(each.start, each.size)) for each in card.mig]
    yield replace(whole, mig=slots[0]) if slots else whole
    yield from (Grant(card.uuid, card.vendor, 0, 0, slots=0, mig=slot) for slot in slots[1:])


def hold_all(ledger: Ledger, places: Sequence[PlaceHeld], *, deadline: float) -> str:
    """Hold all of these places; empty, or why one of them cannot be held: then none is."""
    for number, place in enumerate(places):
        ledger.release(place.facts.uid)
        problem = obstacle(ledger, place.facts, place.leaving)
        if problem:
            release_all(ledger, places[:number])
            return f"no place is held on {place.facts.node}: {problem}"
        ledger.hold(place.facts, taker=place.taker, deadline=deadline, victims=place.leaving)
    return ""


def release_all(ledger: Ledger, places: Iterable[PlaceHeld]) -> None:
    """Those that were not taken."""
    for place in places:
        ledger.release(place.facts.uid)


def obstacle(ledger: Ledger, facts: PodFacts, leaving: frozenset[str]) -> str:
    """Why this place cannot be held as the ledger is, once these pods have left; empty if it can."""
    if leaving and not ledger.nominations.victims_on(facts.node) <= leaving:
        return CONTESTED
    cards = cards_of(facts)
    with ledger.begin() as trial:
        for uid in leaving:
            trial.remove(uid)
        closed = _closed_card(ledger, facts, cards)
        if closed is not None:
            return f"card {closed} takes no such pods"
        trial.put(facts, GrantState.RESERVED)
        return ELSEWHERE if any(overcommitments(ledger, facts.node, cards)) else ""


def _closed_card(ledger: Ledger, facts: PodFacts, uuids: Iterable[str]) -> str | None:
    view = ledger.node(facts.node)
    cards = {} if view is None or view.facts.problem else {card.device.uuid: card for card in view.cards}
    parts = holdings(facts, ledger.devices(facts.node), ledger.rules)
    for uuid in uuids:
        card = cards.get(uuid)
        if card is None or card.cordoned or card.held or not card.device.healthy or parts[uuid].held:
            return uuid
    return None
