"""Rules about the card itself, whatever is in use of it: health, cordon, model, uuid, and what claims select."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tessera.core.fit.card_rules.base import Asked, Bools, CardRule, Codes, Columns, Question, Stage
from tessera.core.model import published_cards
from tessera.core.model.misfits import CardMisfit, Reason
from tessera.core.model.node_info import Card

if TYPE_CHECKING:
    from tessera.core.fit.device_rules import Rules
    from tessera.core.model.arrays import CardArrays


class Healthy(CardRule):
    reason, stage = Reason.CARD_NOT_HEALTHY, Stage.IDENTITY

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        is_accepted = card.device.healthy and not card.held
        return None if is_accepted else CardMisfit(card.device.uuid, self.reason)

    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools:
        return arrays.sick[:, columns]


class NotCordoned(CardRule):
    reason, stage = Reason.CARD_CORDONED, Stage.IDENTITY

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        is_accepted = not card.cordoned or not rules.honours_cordon
        return None if is_accepted else CardMisfit(card.device.uuid, self.reason)

    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools:
        return arrays.cordoned[:, columns] & question.rules.honours_cordon


class Model(CardRule):
    """Model and sharing mode."""

    reason, stage = Reason.CARD_TYPE_MISMATCH, Stage.IDENTITY

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        is_accepted = rules.accepts_model(card.device, asked.constraint)
        return None if is_accepted else CardMisfit(card.device.uuid, self.reason)

    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools:
        # The last entry answers for places without a card (kind -1).
        by_kind = np.zeros(len(arrays.kinds) + 1, dtype=np.bool_)
        for number, kind in enumerate(arrays.kinds):
            if kind.vendor == question.rules.key:
                by_kind[number] = not question.rules.accepts_model(kind.sample, question.constraint)
        refused: Bools = by_kind[arrays.kind[:, columns]]
        return refused


class Uuid(CardRule):
    reason, stage = Reason.CARD_UUID_MISMATCH, Stage.IDENTITY
    needs = "constraint.names_uuids"

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        is_accepted = rules.accepts_uuid(card.device.uuid, asked.constraint)
        return None if is_accepted else CardMisfit(card.device.uuid, self.reason)

    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools:
        constraint = question.constraint
        refused = np.full(arrays.kind.shape, bool(constraint.use_uuids), dtype=np.bool_)
        refused[arrays.places(constraint.use_uuids)] = False
        refused[arrays.places(constraint.avoid_uuids)] = True
        found: Bools = refused[:, columns]
        return found


class Selectors(CardRule):
    """What a claim selects; a card that publishes several things is accepted for any of them."""

    reason, stage = Reason.CARD_SELECTOR_MISMATCH, Stage.IDENTITY
    more_reasons = (Reason.CARD_SELECTOR_TOO_COSTLY,)
    needs = "constraint.filter"

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        selector = asked.constraint.filter
        if selector is None:
            return None
        answers = [selector.answer(published) for _, published in card.device.published]
        if any(answer.accepts for answer in answers):
            return None
        is_too_costly = any(answer.is_too_costly for answer in answers)
        return CardMisfit(card.device.uuid, Reason.CARD_SELECTOR_TOO_COSTLY if is_too_costly else self.reason)

    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Codes:
        assert question.constraint.filter is not None  # it is needed
        answers = arrays.filter_codes(question.constraint.filter, columns)
        said: Codes = (answers != published_cards.ACCEPTED).astype(np.uint8)
        said[answers == published_cards.TOO_COSTLY] = 2
        return said
