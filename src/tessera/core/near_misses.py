"""What comes nearest to a refused pod: the smallest change, to its request or to what is free, that would fit.

The measure: a card lacks memory, cores, slots or what else a rule in `card_rules` wants, each as a share of what is
asked of it, and the largest share is the card's *distance*; of equal ones the smaller sum of shares is nearer. So a
full card has distance 1 however large it is,
and a card never comes before another that has more free of everything. A node that must give several cards has the
distance of the last of its nearest cards, or the share of the cards that are missing, whichever is smaller. Equal nodes
are decided by name, equal cards by their place. Cards that cannot be had at all have no distance: they are ill,
cordoned, or of a model, mode or uuid that the pod does not accept (`mismatches` says what there is instead).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.core import quota, screen
from tessera.core.arrays import Bools, CardArrays, Ints
from tessera.core.card_rules import AMOUNT_RULES, amount_checks
from tessera.core.card_rules.amounts import MIB, SLOTS, Shortage
from tessera.core.card_rules.base import Asked, Codes, Question
from tessera.core.fit import fit_pod
from tessera.core.ledger import Ledger
from tessera.core.misfits import CardMisfit, Misfit
from tessera.core.node_info import Card
from tessera.core.policies.base import Floats
from tessera.core.requests import PodRequest

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
