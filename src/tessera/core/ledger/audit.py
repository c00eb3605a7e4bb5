"""Checks that a ledger is consistent, and reports what is not.

Runs at start, for a metric in production and after every step of the property tests. There are two kinds of finding:
`broken` means a bug in the accounting; `overcommitted` means that the API shows more granted than there is, which a
foreign scheduler or a changed registration can cause, or that it would once nominations are bound and victims gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_

from tessera.core.fit.quota import demand
from tessera.core.ledger.holders import Holder
from tessera.core.ledger.holdings import Holding, PodFacts, holdings
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import USE_COLUMNS
from tessera.core.model.devices import MIG, Device
from tessera.core.model.grants import Use
from tessera.core.model.mig import bits
from tessera.core.model.node_info import Card, NodeInfo, node_score

BROKEN = "broken"
OVERCOMMITTED = "overcommitted"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that is wrong, and where."""

    kind: str
    node: str
    card: str
    text: str


def audit(ledger: Ledger) -> list[AuditFinding]:
    """All findings, sorted by node; empty if the ledger is consistent."""
    return [*audit_nodes(ledger, ledger.node_names()), *_audit_quota(ledger)]


def audit_nodes(ledger: Ledger, names: Iterable[str]) -> list[AuditFinding]:
    """The findings of some nodes: a running service audits a few at a time."""
    views = (ledger.node(name) for name in names)
    return [finding for view in views if view is not None for finding in _audit_node(ledger, view)]


def overcommitments(ledger: Ledger, node: str, uuids: Iterable[str]) -> Iterator[str]:
    """What is too much on some cards of a node, now or once nominations are bound."""
    view = ledger.node(node)
    cards = {card.device.uuid: card for card in view.cards} if view is not None else {}
    pods = [(entry.facts, entry.holdings) for entry in ledger.pods_on(node)]
    claims = [(claim.facts, claim.holdings) for claim in ledger.nominations.on_node(node)]
    states = _states(pods, claims, ledger.nominations.victims_on(node))
    for uuid in uuids:
        card = cards[uuid]
        for state in states:
            yield from _overcommitments(ledger, card.device, state, core_masks=_has_core_masks(ledger, card))


def _audit_node(ledger: Ledger, view: NodeInfo) -> Iterator[AuditFinding]:
    devices = {card.device.uuid: card.device for card in view.cards}
    claims = ledger.nominations.on_node(view.name)
    pods = [(entry.facts, entry.holdings) for entry in ledger.pods_on(view.name)]
    held: dict[str, dict[str, Holding]] = {}
    for facts, charged in (*pods, *((claim.facts, claim.holdings) for claim in claims)):
        fresh = held[facts.uid] = holdings(facts, devices, ledger.rules)
        if fresh != charged:
            yield AuditFinding(BROKEN, view.name, "", f"pod {facts.uid} is charged {charged}, not {fresh}")
    now: State = [(facts, held[facts.uid]) for facts, _ in pods]
    claimed = [(claim.facts, held[claim.facts.uid]) for claim in claims]
    states = _states(now, claimed, ledger.nominations.victims_on(view.name))
    for card in view.cards:
        uuid, core_masks = card.device.uuid, _has_core_masks(ledger, card)
        expected = _expected(now, claims, held, uuid, core_masks=core_masks)
        shown = Use(card.used, card.used_memory, card.used_cores)
        if shown != expected:
            text = f"card shows {tuple(shown)}, its pods hold {tuple(expected)}"
            yield AuditFinding(BROKEN, view.name, uuid, text)
        for state in states:
            for text in _overcommitments(ledger, card.device, state, core_masks=core_masks):
                yield AuditFinding(OVERCOMMITTED, view.name, uuid, text)
    yield from _audit_arrays(ledger, view)


def _whole_cards(ledger: Ledger, pod: PodFacts, devices: Mapping[str, Device]) -> set[str]:
    """Cards of which one container has all the cores; several containers that have them together may share."""
    ended = {position for position, span in enumerate(pod.spans) if span.finished}
    granted = [
        grant
        for containers in pod.grants.values()
        for position, grants in enumerate(containers)
        if position not in ended
        for grant in grants
    ]
    return {
        grant.uuid
        for grant in granted
        if (device := devices.get(grant.uuid)) is not None
        and (rules := ledger.rules.get(device.vendor)) is not None
        and not rules.shares_whole_cards
        and 0 < device.cores <= rules.charge(device, grant).cores
    }


State = Sequence[tuple[PodFacts, Mapping[str, Holding]]]
"""what pods hold now; or later, when nominations are bound and their victims gone"""


def _states(pods: State, claims: State, victims: Set[str]) -> tuple[State, ...]:
    return (pods, [*(each for each in pods if each[0].uid not in victims), *claims]) if claims else (pods,)


def _has_core_masks(ledger: Ledger, card: Card) -> bool:
    rules = ledger.rules.get(card.device.vendor)
    return rules is not None and rules.core_masks


def _expected(
    now: State, claims: Iterable[Holder], held: Mapping[str, Mapping[str, Holding]], uuid: str, *, core_masks: bool
) -> Use:
    """What the card must show: of each nomination, the larger of what it claims and what its victims hold."""
    left = {facts.uid: holdings[uuid] for facts, holdings in now if uuid in holdings}
    every = [*left.values(), *(held[claim.facts.uid][uuid] for claim in claims if uuid in held[claim.facts.uid])]
    total = Use()
    for claim in claims:
        own = held[claim.facts.uid].get(uuid)
        victims = [left.pop(uid) for uid in sorted(claim.victims) if uid in left]
        total = total.plus(_total(victims).peak(own.use if own is not None else Use()))
    total = total.plus(_total(left.values()))
    return total._replace(cores=_mask(every)) if core_masks else total


def _total(held: Iterable[Holding]) -> Use:
    return reduce(Use.plus, (holding.use for holding in held), Use())


def _mask(held: Iterable[Holding]) -> int:
    return reduce(or_, (holding.use.cores for holding in held), 0)


def _overcommitments(ledger: Ledger, device: Device, state: State, *, core_masks: bool) -> Iterator[str]:
    uuid = device.uuid
    held = [holdings[uuid] for _, holdings in state if uuid in holdings]
    total = _total(held)
    if core_masks:
        total = total._replace(cores=_mask(held))
    for what, used, capacity in (
        ("slots", total.slots, device.slots),
        ("MiB", total.memory, device.memory),
        ("cores", total.cores, device.cores),
    ):
        # A card may register nothing of a dimension (vXPU without slots or cores): it is limited by the others then.
        # The sizes of MIG profiles are rounded, so that a full card may show 101 % in use: its places are the limit.
        if used > capacity > 0 and (device.mode != MIG or what == "slots"):
            yield f"{used} of {capacity} {what} granted"
    if core_masks and sum(holding.use.cores.bit_count() for holding in held) != total.cores.bit_count():
        yield "two pods hold the same core"
    places = [slot.placement for holding in held for slot in holding.mig]
    if any(a.overlaps(b) for a, b in combinations(places, 2)):
        yield "MIG instances overlap"
    # Init containers that ended hold nothing, though their pods still name the card.
    is_shared = sum(holding.use != Use() for holding in held) > 1
    if is_shared and any(uuid in _whole_cards(ledger, pod, {uuid: device}) for pod, _ in state):
        yield "a container that has the whole card shares it"


def _audit_arrays(ledger: Ledger, view: NodeInfo) -> Iterator[AuditFinding]:
    arrays = ledger.arrays
    row = arrays.row(view.name)
    if row < 0:
        yield AuditFinding(BROKEN, view.name, "", "node has no column")
        return
    if arrays.score[row] != node_score(view.cards):
        yield AuditFinding(BROKEN, view.name, "", f"score {arrays.score[row]}, not {node_score(view.cards)}")
    if bool(arrays.unavailable[row]) != bool(view.facts.problem):
        yield AuditFinding(BROKEN, view.name, "", "the arrays disagree about whether the node is available")
    for card in view.cards:
        devices, columns = arrays.places([card.device.uuid])
        for place in devices[columns == row]:
            shown = tuple(int(getattr(arrays, name)[place, row]) for name in USE_COLUMNS)
            if shown != tuple(getattr(card, name) for name in USE_COLUMNS):
                yield AuditFinding(BROKEN, view.name, card.device.uuid, f"arrays show {shown}")
            if bool(arrays.sick[place, row]) != (not card.device.healthy or bool(card.held)):
                yield AuditFinding(BROKEN, view.name, card.device.uuid, "the arrays disagree about the card's health")
            if card.device.mode == MIG and arrays.taken[place, row] != bits(slot.placement for slot in card.mig):
                yield AuditFinding(
                    BROKEN, view.name, card.device.uuid, "the arrays disagree about the card's instances"
                )


def _audit_quota(ledger: Ledger) -> Iterator[AuditFinding]:
    expected: dict[tuple[str, str], Use] = defaultdict(Use)
    for entry in ledger.pods():
        facts = entry.facts
        for vendor, containers in facts.grants.items():
            key = (facts.namespace, vendor)
            expected[key] = expected[key].plus(demand(facts.spans, enumerate(containers)))
    for (namespace, vendor), use in sorted(expected.items()):
        if ledger.quotas.used(namespace, vendor) != use:
            text = f"quota use of {namespace} is {ledger.quotas.used(namespace, vendor)}, its pods count {use}"
            yield AuditFinding(BROKEN, "", "", text)
