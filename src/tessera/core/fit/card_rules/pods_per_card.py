"""At most so many pods on a card (`tessera.io/max-pods-per-card`): a pod accepts only cards that then hold no more pods
than it says, itself included. Pods that come later do not ask it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.core.fit.card_rules.amounts import ANYTHING, AmountRule
from tessera.core.fit.card_rules.base import Asked, Columns, Ints, Question, Stage
from tessera.core.model.devices import Device
from tessera.core.model.grants import Use
from tessera.core.model.misfits import Reason
from tessera.core.model.node_info import Card

if TYPE_CHECKING:
    from tessera.core.model.arrays import CardArrays


class PodsPerCard(AmountRule):
    reason, stage, unit = Reason.CARD_TOO_MANY_PODS, Stage.SHARING, "places for pods"
    setting = "max-pods-per-card"
    needs = "pod.limits"
    used = "pods"

    def wanted(self, asked: Asked, device: Device) -> int:
        return ANYTHING if asked.pod.limit(self.setting) is None else 1

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        return ANYTHING if question.pod.limit(self.setting) is None else 1

    def total(self, asked: Asked, device: Device) -> int:
        return asked.pod.limit(self.setting) or 0

    def totals(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        return question.pod.limit(self.setting) or 0

    def free(self, asked: Asked, card: Card) -> int:
        return self.total(asked, card.device) - card.pods

    def all_free(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints:
        free: Ints = self.totals(question, arrays, columns) - arrays.pods[:, columns]
        return free

    def part(self, use: Use) -> int:
        return 1

    def wish(self, asked: Asked) -> str:
        limit = asked.pod.limit(self.setting)
        return f"at most {limit} pod{'' if limit == 1 else 's'}"
