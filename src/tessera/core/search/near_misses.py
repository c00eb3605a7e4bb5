"""What a refused pod lacks: the card that comes nearest, or which cards there are if it accepts none of them.

The measure: a card lacks memory, cores, slots or what else a rule in `card_rules` wants, each as a share of what is
asked of it, and the largest share is the card's *distance*; of equal ones the smaller sum of shares is nearer. So a
full card has distance 1 however large it is, and a card never comes before another that has more free of everything. A
node that must give several cards has the distance of the last of its nearest cards, or the share of the cards that are
missing, whichever is smaller. Equal nodes are decided by name, equal cards by their place. Cards that cannot be had at
all have no distance: they are ill, cordoned, or of a model, mode or uuid that the pod does not accept. Model and mode
are one reason on the wire (`CardTypeMismatch`); people have to know which of the two it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from tessera.core.fit import quota, screen
from tessera.core.fit.card_rules import AMOUNT_RULES, amount_checks
from tessera.core.fit.card_rules.amounts import MIB, SLOTS, Shortage
from tessera.core.fit.card_rules.base import Asked, Codes, Question
from tessera.core.fit.device_rules import Rules
from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import Bools, CardArrays, Ints
from tessera.core.model.devices import Device
from tessera.core.model.misfits import CardMisfit, Misfit
from tessera.core.model.node_info import Card
from tessera.core.model.published_cards import CLUSTER_COST
from tessera.core.model.requests import CardFilter, Constraint, PodRequest, container_title
from tessera.core.policies.base import Floats

UNITS = {rule.reason: rule.unit for rule in AMOUNT_RULES if not rule.alone}
"""reasons whose numbers say how far a card is from fitting"""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The card that comes nearest to what is asked; where several are asked for, the last one that is needed."""

    node: str
    uuid: str
    shortages: tuple[Shortage, ...]
    """at least one"""
    asked: int = 1
    """cards on one node"""
    found: int = 0
    """cards of this node that fit as they are"""
    is_most: bool = False
    """no other card that the pod accepts has more free of what is short"""

    @property
    def text(self) -> str:
        alone = any(short.is_alone for short in self.shortages)
        needs = " and ".join(
            short.wish or f"{short.asked} {short.unit}" for short in self.shortages if self._is_said(short, alone=alone)
        )
        has = " and ".join(short.has for short in self.shortages)
        if self.asked > 1:
            each = f" with {needs} each" if needs else ""
            fit = f"where {self.found} of its cards fit, and" if self.found else "where"
            return (
                f"needs {self.asked} cards{' of its own' if alone else ''} on one node{each}; nearest is {self.node}, "
                f"{fit} the next has {has} free ({self.uuid})"
            )
        first = self.shortages[0]
        if self.is_most and len(self.shortages) == 1:
            if first.free <= 0:
                return f"needs {needs} on one card; no card that it accepts has any free"
            return f"needs {needs}; the most free on one card is {has} on {self.node} ({self.uuid})"
        if alone:
            needs = f"a card of its own{' with ' if needs else ''}{needs}"
        elif any(short.wish in needs for short in self.shortages if short.wish):
            needs = f"a card with {needs}"
        else:
            needs = f"{needs} on one card"
        return f"needs {needs}; nearest is {self.node} ({self.uuid}) with {has} free"

    def _is_said(self, short: Shortage, *, alone: bool) -> bool:
        """A slot goes without saying beside anything else; so does, on an empty card, whatever its size allows."""
        if short.unit == SLOTS:
            return not alone and short is self.shortages[0]
        return not alone or short.asked > short.total or bool(short.wish)


@dataclass(frozen=True, slots=True)
class FewCards:
    """The node that has most of the cards, but not all."""

    node: str
    asked: int
    found: int

    @property
    def text(self) -> str:
        return f"needs {self.asked} cards that fit on one node; the most are {self.found} on {self.node}"


def near_miss(ledger: Ledger, pod: PodRequest, rows: Ints) -> NearMiss | FewCards | None:
    """What comes nearest on these columns: to the first request that no node takes alone. None if every request alone
    fits somewhere, if a quota is short, or if no change of amounts would help.

    From the arrays, in a few milliseconds for thousands of nodes; only for vendors that these can judge. NUMA and
    the places of MIG instances are not looked at.
    """
    if quota.first_shortage(pod, ledger.rooms(pod.namespace, pod.vendors)) is not None:
        return None
    rows = rows[~ledger.arrays.unavailable[rows]]
    for request in dict.fromkeys(request for _, request in pod.requests):
        rules = ledger.rules.get(request.vendor)
        if rules is None or not rules.arrays_exact or not len(rows):
            return None
        question = screen.question(pod, request, rules)
        codes = screen.judge(ledger.arrays, question, rows)
        if ((codes == screen.TAKES).sum(axis=0) < request.count).all():
            return _nearest(ledger, question, rows, codes)
    return None


def near_miss_by_rule(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> Generator[None, None, NearMiss | None]:
    """The card that lacks least by the plain rule's own numbers, on the nodes where the most containers fit: for
    containers that do not fit together, and for vendors with rules of their own. A step for each node."""
    rooms = ledger.rooms(pod.namespace, pod.vendors)
    lacking: list[tuple[int, float, str, int, NearMiss]] = []
    for name in sorted(names):
        yield
        node = ledger.node(name)
        answer = fit_pod(node, pod, ledger.rules, rooms) if node is not None else None
        if node is None or not isinstance(answer, Misfit):
            continue
        places = {card.device.uuid: place for place, card in enumerate(node.cards)}
        for card in answer.cards:
            short = _numbers(card)
            if short is not None:
                near = NearMiss(name, card.uuid, (short,))
                lacking.append((-answer.container, short.share, name, places[card.uuid], near))
    return min(lacking, key=lambda item: item[:4])[4] if lacking else None


def _numbers(card: CardMisfit) -> Shortage | None:
    if card.reason not in UNITS or not card.asked or card.free is None or not card.total:
        return None
    return Shortage(UNITS[card.reason], card.asked, card.free, card.total)


def _nearest(ledger: Ledger, question: Question, rows: Ints, codes: Codes) -> NearMiss | FewCards | None:
    arrays, count = ledger.arrays, question.request.count
    worst, total = _distances(arrays, question, rows, codes)
    takes: Ints = (codes == screen.TAKES).sum(axis=0)
    few: Floats = np.where(takes > 0, (count - takes) / count, np.inf)
    by_card: Floats = np.full(len(rows), np.inf)
    sums: Floats = np.full(len(rows), np.inf)
    last: Ints = np.zeros(len(rows), dtype=np.int64)
    if count <= len(worst):
        last = np.lexsort((total, worst), axis=0)[count - 1]
        columns = np.arange(len(rows))
        by_card, sums = worst[last, columns], total[last, columns]
    distance = np.minimum(few, by_card)
    column = int(np.lexsort((arrays.order.places[rows], np.where(by_card <= few, sums, few), distance))[0])
    if not np.isfinite(distance[column]):
        return None
    name = arrays.names[rows[column]]
    if few[column] < by_card[column]:
        return FewCards(name, count, int(takes[column]))
    node = ledger.node(name)
    assert node is not None  # it has a column
    card = node.cards[int(last[column])]
    short = shortages(question, card)
    is_most = count == 1 and _has_most(arrays, question, rows, np.isfinite(worst), short)
    return NearMiss(name, card.device.uuid, short, asked=count, found=int(takes[column]), is_most=is_most)


def _has_most(arrays: CardArrays, question: Question, rows: Ints, accepted: Bools, short: Sequence[Shortage]) -> bool:
    """Whether no accepted card has more free of the one thing that this card lacks."""
    if len(short) != 1 or short[0].wish or (short[0].unit == MIB and not question.request.memory):
        return False
    rule = next(rule for rule in AMOUNT_RULES if rule.unit == short[0].unit)
    return int(rule.all_free(question, arrays, rows)[accepted].max()) <= short[0].free


def shortages(asked: Asked, card: Card) -> tuple[Shortage, ...]:
    """What a card of an accepted kind lacks, by the shared rules: the most of each unit, amounts first."""
    found: dict[str, Shortage] = {}
    for rule in AMOUNT_RULES:
        short = rule.shortage(asked, card)
        if short is not None and (short.unit not in found or short.asked > found[short.unit].asked):
            found[short.unit] = short
    return tuple(sorted(found.values(), key=lambda short: bool(short.wish)))


def _distances(arrays: CardArrays, question: Question, rows: Ints, codes: Codes) -> tuple[Floats, Floats]:
    """Of every card the largest share that it lacks (`shortages`) and the sum of all; infinite if it cannot be had."""
    by_unit: dict[str, Floats] = {}
    for rule in amount_checks(question):
        shares = rule.shares(question, arrays, rows)
        by_unit[rule.unit] = np.maximum(shares, by_unit.get(rule.unit, 0.0))
    worst, total = np.max(list(by_unit.values()), axis=0), np.sum(list(by_unit.values()), axis=0)
    cannot = (codes == screen.ABSENT) | ((codes > screen.TAKES) & (codes <= screen.LAST_IDENTITY))
    worst[cannot] = total[cannot] = np.inf
    return worst, total


LISTED = 6
"""models, modes or uuids in one sentence; the rest are counted"""
PUBLISHING = "--dra and --dra-allocator=tessera"
"""flags of agents whose cards are for claims that Tessera places"""
COMPARED = 4096
"""cards whose uuids are compared with a wrong one, some milliseconds"""

Kinds = list[tuple[Device, int]]
"""a sample of every kind of card, and how many there are"""


def unmet_wishes(ledger: Ledger, pod: PodRequest, rows: Ints) -> Iterator[str]:
    """One sentence for every vendor of whose cards the pod accepts none on these columns."""
    for vendor in pod.vendors:
        rules, constraint = ledger.rules.get(vendor), pod.constraint(vendor)
        kinds = _kinds(ledger, vendor, rows)
        if rules is None or not kinds:
            continue
        if not any(rules.accepts_model(device, constraint) for device, _ in kinds):
            yield _no_model_or_mode(rules, constraint, kinds)
        elif constraint.use_uuids:
            there = set(ledger.arrays.places(constraint.use_uuids)[1].tolist()) & set(rows.tolist())
            if not there:
                yield _no_uuid(ledger, vendor, constraint.use_uuids, rows)
    for unmet in unmet_selectors(ledger, pod, rows):
        cards = screen.card_counts(ledger.arrays, unmet.vendor, rows).sum()
        what = "the selectors match none of them" if unmet.published else f"nodes publish them with {PUBLISHING}"
        yield f"{unmet.title}: {unmet.published} of {cards} {unmet.vendor} cards are for claims; {what}"


class UnmetSelectors(NamedTuple):
    """A request of a claim whose selectors match no card."""

    title: str
    vendor: str
    selectors: CardFilter
    published: int
    """cards that are for claims"""


def unmet_selectors(ledger: Ledger, pod: PodRequest, rows: Ints) -> Iterator[UnmetSelectors]:
    """Of the cards on these columns, by the rule with which the scheduler places claims."""
    arrays = ledger.arrays
    for position, request in pod.requests:
        selectors = pod.constraint_of(request).filter
        if selectors is None or arrays.published_cards.cost(selectors) > CLUSTER_COST:
            continue  # Whether they match is not known.
        if arrays.selected(selectors, rows).any():
            continue
        published = int((arrays.published[:, rows] >= 0).sum())
        yield UnmetSelectors(container_title(pod.containers[position].name), request.vendor, selectors, published)


def mismatch_words(ledger: Ledger, pod: PodRequest, rows: Ints) -> str:
    """Whether it is the model or the sharing mode of cards on these columns that the pod does not accept; empty if it
    accepts all of them."""
    models: dict[str, None] = {}
    modes: dict[str, None] = {}
    for vendor in pod.vendors:
        rules, constraint = ledger.rules.get(vendor), pod.constraint(vendor)
        if rules is None:
            continue
        for device, _ in _kinds(ledger, vendor, rows):
            if rules.accepts_model(device, constraint):
                continue
            if rules.accepts_model(device, replace(constraint, mode=None)):
                modes[device.mode] = None
            else:
                models[device.model] = None
    said = [
        f"this {what} ({_listed(list(names))})" for what, names in (("model", models), ("sharing mode", modes)) if names
    ]
    return f"the pod does not accept {', or '.join(said)}" if said else ""


def _kinds(ledger: Ledger, vendor: str, rows: Ints) -> Kinds:
    """Of this vendor's cards on these columns, the most frequent kind first."""
    arrays = ledger.arrays
    numbers = arrays.kind[:, rows]
    counts = np.bincount(numbers[numbers >= 0], minlength=len(arrays.kinds)).tolist()
    found = [(kind.sample, count) for kind, count in zip(arrays.kinds, counts, strict=True) if count]
    ours = [(device, count) for device, count in found if device.vendor == vendor]
    return sorted(ours, key=lambda pair: (-pair[1], pair[0].model, pair[0].mode))


def _no_model_or_mode(rules: Rules, constraint: Constraint, kinds: Kinds) -> str:
    of_model = [(d, n) for d, n in kinds if rules.accepts_model(d, replace(constraint, mode=None))]
    if not of_model:
        wanted = f"with {' or '.join(constraint.use_models)} in its name" if constraint.use_models else ""
        avoided = f"without {' and '.join(constraint.avoid_models)}" if constraint.avoid_models else ""
        wish = " and ".join(filter(None, (wanted, avoided)))
        there = _counted((device.model, number) for device, number in kinds)
        return f"no {rules.key} card is of a model {wish}; there are {there}"
    there = _counted((device.mode, number) for device, number in of_model)
    which = "cards of the models that it accepts" if len(of_model) < len(kinds) else "cards"
    return f"the pod accepts the sharing mode {constraint.mode}, and the {rules.key} {which} are in {there}"


def _no_uuid(ledger: Ledger, vendor: str, wanted: Sequence[str], rows: Ints) -> str:
    """The cards whose uuids begin most like a wanted one come first: a typo or a missing end is the usual mistake."""
    nodes = (ledger.node(ledger.arrays.names[row]) for row in rows.tolist())
    cards = (
        (card.device.uuid, f"{node.name}/{card.device.index}")
        for node in nodes
        if node is not None
        for card in node.of_vendor(vendor)
    )
    compared = list(islice(cards, COMPARED))

    compared.sort(key=lambda card: max(_same_start(card[0], uuid) for uuid in wanted), reverse=True)
    more = "; tessera top -o wide shows all" if len(compared) > LISTED else ""
    there = _listed([f"{uuid} ({place})" for uuid, place in compared])
    elsewhere = ledger.arrays.places(wanted)[1]
    if len(elsewhere):
        where = _listed(sorted({ledger.arrays.names[row] for row in elsewhere.tolist()}))
        return f"the card with the uuid {_listed(wanted)} is on {where}, where kube-scheduler does not let the pod go"
    return f"no {vendor} card has the uuid {_listed(wanted)}; there are {there}{more}"


def _same_start(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    """`8 x L4, 4 x A100`, each name once."""
    counts: dict[str, int] = {}
    for name, number in pairs:
        counts[name] = counts.get(name, 0) + number
    return _listed([f"{number} x {name or 'unnamed'}" for name, number in counts.items()])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names if more <= 0 else (*names[:LISTED], f"{more} more"))
