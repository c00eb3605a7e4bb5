"""Whether a pod fits one node, and with which grants: the plain, exact rule.

Three steps, each with its own reason: (1) quotas that no placement on this node could satisfy, (2) every container
alone on the node as it is, (3) all containers together by Kubernetes' effective-request rule, greedily container by
container. `evaluation` judges steps 1 and 2 for many nodes at once and must agree with this module. Claims that want
cards with one value of an attribute are tried with each combination of values (`matching_cards`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice, product
from types import MappingProxyType

from tessera.core import policies
from tessera.core.fit import quota
from tessera.core.fit.device_rules import UNLIMITED, Ask, QuotaRoom, Rules
from tessera.core.model.devices import MIG, Attribute
from tessera.core.model.grants import Grants, Placement, Use, spans_of
from tessera.core.model.misfits import CardMisfit, Misfit, Reason, cards_misfit, node_misfit
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import AttributeMatch, PodRequest, Request, Role

QuotaRooms = Mapping[str, QuotaRoom]
"""what quotas leave the pod's namespace, by vendor; vendors without limits are left out"""


def fit_pod(node: NodeInfo, pod: PodRequest, rules: Mapping[str, Rules], rooms: QuotaRooms) -> Placement | Misfit:
    """The pod's placement on this node, or why there is none. Changes nothing."""
    for vendor in pod.vendors:
        if vendor not in rules:
            return node_misfit(Reason.VENDOR_UNKNOWN, vendor=vendor)
    if node.facts.problem:
        return node_misfit(Reason.NODE_UNAVAILABLE, detail=node.facts.problem)
    misfit = _refuse_by_quota(node, pod, rules, rooms) if rooms else None
    if misfit is not None:
        return misfit
    is_matching = bool(pod.matches) and any(not match.distinct for match in pod.matches)
    granted = (_grant_matching if is_matching else _grant_all)(node, pod, rules, rooms)
    return granted if isinstance(granted, Misfit) else Placement(node.facts.name, _by_vendor(pod, granted))


Granted = dict[tuple[int, str], Grants]
"""by container position and vendor"""
Only = Mapping[int, Set[str]]
"""uuids of the cards that a request may get, by its position; all where it has none"""
ALL_CARDS: Only = MappingProxyType({})


def _grant_all(
    node: NodeInfo, pod: PodRequest, rules: Mapping[str, Rules], rooms: QuotaRooms, only: Only = ALL_CARDS
) -> Granted | Misfit:
    """What every request would get by itself, equal ones fitted once; of several, what they get together."""
    granted: Granted = {}
    seen: dict[tuple[Request, Set[str] | None], Grants] = {}
    for position, request in pod.requests:
        vendor, some = request.vendor, only.get(position)
        grants = seen.get((request, some))
        if grants is None:
            room = rooms.get(vendor, UNLIMITED)
            ask = make_ask(node, pod, request, node.cards, container=position, room=room, only=some)
            answer = fit_request(rules[vendor], ask)
            if isinstance(answer, Misfit):
                return answer
            grants = seen[request, some] = answer
        granted[position, vendor] = grants
    if len(pod.requests) <= 1:
        return granted
    together = _together(node, pod, rules, rooms, only)
    return together if not isinstance(together, Misfit) else _in_other_orders(node, pod, rules, rooms, only, together)


def _in_other_orders(
    node: NodeInfo, pod: PodRequest, rules: Mapping[str, Rules], rooms: QuotaRooms, only: Only, misfit: Misfit
) -> Granted | Misfit:
    """Claims of one pod often want different cards, and one that accepts all must not take the only card of another:
    a claim that found none chooses first, each once."""
    first: list[int] = []
    last = misfit
    while pod.containers[last.container].role is Role.CLAIM and last.container not in first:
        first.insert(0, last.container)
        ranks = {position: rank for rank, position in enumerate(first)}
        order = sorted(pod.requests, key=lambda pair: ranks.get(pair[0], len(ranks)))
        answer = _together(node, pod, rules, rooms, only, order)
        if not isinstance(answer, Misfit):
            return answer
        last = answer
    return misfit


def _grant_matching(node: NodeInfo, pod: PodRequest, rules: Mapping[str, Rules], rooms: QuotaRooms) -> Granted | Misfit:
    """The same with cards that have one value of each attribute that claims match: the first values that fit. A node
    on which the pod would not fit without that says why."""
    for only in matching_cards(node.cards, pod.matches):
        granted = _grant_all(node, pod, rules, rooms, only)
        if not isinstance(granted, Misfit):
            return granted
    free = _grant_all(node, pod, rules, rooms)
    if isinstance(free, Misfit):
        return free
    position = pod.matches[0].positions[0]
    vendor = pod.containers[position].requests[0].vendor
    cards = node.of_vendor(vendor)
    return cards_misfit(
        [CardMisfit(card.device.uuid, Reason.ATTRIBUTES_NOT_FIT) for card in cards],
        total=len(cards),
        vendor=vendor,
        container=position,
    )


def _by_vendor(pod: PodRequest, granted: Granted) -> dict[str, tuple[Grants, ...]]:
    """One entry per container for every vendor, so that positions on the wire are the containers' own."""
    by_vendor: dict[str, tuple[Grants, ...]] = {}
    for vendor in pod.vendors:
        containers: list[Grants] = [()] * len(pod.containers)
        for (position, key), grants in granted.items():
            if key == vendor:
                containers[position] = grants
        by_vendor[vendor] = tuple(containers)
    return by_vendor


def make_ask(
    node: NodeInfo,
    pod: PodRequest,
    request: Request,
    cards: Sequence[Card],
    *,
    container: int,
    earlier: Set[str] = frozenset(),
    room: QuotaRoom = UNLIMITED,
    only: Set[str] | None = None,
) -> Ask:
    """What a vendor is asked, with its cards in the order of the pod's device policy; `only` some of them."""
    own = [card for card in cards if card.device.vendor == request.vendor]
    if only is not None:
        own = [card for card in own if card.device.uuid in only]
    scores = policies.card_scores(pod, request, own)
    ordered = policies.device_policy(pod.device_policy).order(own, scores, numa_bind=pod.numa_bind)
    return Ask(
        request=request,
        pod=pod,
        constraint=pod.constraint_of(request),
        node=node.facts,
        cards=ordered,
        earlier=earlier,
        room=room,
        container=container,
        is_apart=bool(pod.matches) and any(match.distinct and container in match.positions for match in pod.matches),
    )


def fit_request(rules: Rules, ask: Ask) -> Grants | Misfit:
    """One vendor's answer, after the check that the node has enough cards at all."""
    cards = ask.cards
    if rules.least_cards(ask.request) > len(cards) and not any(card.device.mode == MIG for card in cards):
        return node_misfit(Reason.NODE_INSUFFICIENT_DEVICE, vendor=rules.key, container=ask.container, total=len(cards))
    return rules.fit(ask)


def _refuse_by_quota(node: NodeInfo, pod: PodRequest, rules: Mapping[str, Rules], rooms: QuotaRooms) -> Misfit | None:
    short = quota.first_shortage(pod, rooms)
    if short is None:
        return None
    request, position, cards_paid = short
    vendor = request.vendor
    ask = make_ask(node, pod, request, node.cards, container=position, room=rooms[vendor])
    if not ask.cards:
        return node_misfit(Reason.NODE_INSUFFICIENT_DEVICE, vendor=vendor, container=position)
    return quota.refuse_for_quota(rules[vendor], ask, cards_paid)


def _together(
    node: NodeInfo,
    pod: PodRequest,
    rules: Mapping[str, Rules],
    rooms: QuotaRooms,
    only: Only,
    order: Sequence[tuple[int, Request]] | None = None,
) -> Granted | Misfit:
    """All containers: `running` is the node as claims, sidecars and app containers find it; an init container sees it
    without the app containers, since those start later."""
    granted: Granted = {}
    running = {card.device.uuid: card.copy() for card in node.cards}
    cards = tuple(running.values())
    earlier: defaultdict[str, set[str]] = defaultdict(set)
    for position, request in pod.requests if order is None else order:
        vendor = request.vendor
        room = rooms.get(vendor, UNLIMITED)
        left = room if room == UNLIMITED else _room_left(room, pod, granted, vendor)
        some = _apart(pod, position, granted, cards, only.get(position))
        ask = make_ask(node, pod, request, cards, container=position, earlier=earlier[vendor], room=left, only=some)
        answer = fit_request(rules[vendor], ask)
        if isinstance(answer, Misfit):
            return answer
        granted[position, vendor] = answer
        earlier[vendor].update(grant.uuid for grant in answer)
        _charge(running, rules[vendor], answer, lasting_only=pod.containers[position].role is Role.INIT)
        misfit = None if room == UNLIMITED else _refuse_beyond_quota(ask, pod, granted, room)
        if misfit is not None:
            return misfit
    return granted


def _apart(
    pod: PodRequest, position: int, granted: Granted, cards: Sequence[Card], only: Set[str] | None
) -> Set[str] | None:
    """The cards that a request may get beside those of earlier requests that must have different cards."""
    others = {place for each in pod.matches if each.distinct and position in each.positions for place in each.positions}
    taken = {grant.uuid for (place, _), grants in granted.items() if place in others for grant in grants}
    if not taken:
        return only
    return {card.device.uuid for card in cards if only is None or card.device.uuid in only} - taken


def _room_left(room: QuotaRoom, pod: PodRequest, granted: Granted, vendor: str) -> QuotaRoom:
    """The quota beside the containers that run at the same time; init containers run after one another."""
    beside = {
        (position, key): tuple(g for g in grants if g.mig is not None or pod.containers[position].role is not Role.INIT)
        for (position, key), grants in granted.items()
    }
    held = _demand(pod, beside, vendor)
    return room.less(held.memory, held.cores)


def _refuse_beyond_quota(ask: Ask, pod: PodRequest, granted: Granted, room: QuotaRoom) -> Misfit | None:
    """A MIG instance of a later container lasts from the start, so it comes on top of what an init container uses."""
    held = _demand(pod, granted, ask.request.vendor)
    if room.allows(held.memory, held.cores):
        return None
    return cards_misfit(
        [CardMisfit(c.device.uuid, Reason.QUOTA_NOT_FIT, asked=held.memory, free=room.memory) for c in ask.cards],
        total=len(ask.cards),
        vendor=ask.request.vendor,
        container=ask.container,
    )


def _demand(pod: PodRequest, granted: Granted, vendor: str) -> Use:
    own = [(position, grants) for (position, key), grants in granted.items() if key == vendor]
    return quota.demand(spans_of(pod.roles), own)


def _charge(running: Mapping[str, Card], rules: Rules, grants: Grants, *, lasting_only: bool) -> None:
    for grant in grants:
        if lasting_only and grant.mig is None:
            continue
        card = running[grant.uuid]
        card.take(rules.charge(card.device, grant), grant.mig)


MAX_COMBINATIONS = 256
"""of values that are tried on one node: 16 cards that all differ, under two constraints"""


def matching_cards(cards: Sequence[Card], matches: Sequence[AttributeMatch]) -> Iterator[Mapping[int, Set[str]]]:
    """For each combination of values, the uuids that each request may get, by its position. Values come in the order
    of the cards that have them; cards without the attribute are left out."""
    same = [match for match in matches if not match.distinct]
    groups = [list(_by_value(cards, match.attribute).values()) for match in same]
    for chosen in islice(product(*groups), MAX_COMBINATIONS):
        only: dict[int, frozenset[str]] = {}
        for match, uuids in zip(same, chosen, strict=True):
            for position in match.positions:
                only[position] = only.get(position, uuids) & uuids
        yield only


def _by_value(cards: Sequence[Card], attribute: str) -> dict[Attribute, frozenset[str]]:
    found: dict[Attribute, set[str]] = {}
    for card in cards:
        value = _value(card, attribute)
        if value is not None:
            found.setdefault(value, set()).add(card.device.uuid)
    return {value: frozenset(uuids) for value, uuids in found.items()}


def _value(card: Card, attribute: str) -> Attribute | None:
    """None if the card has no value, or its MIG profiles have different ones."""
    values = {published.attribute(attribute) for _, published in card.device.published}
    return values.pop() if len(values) == 1 else None
