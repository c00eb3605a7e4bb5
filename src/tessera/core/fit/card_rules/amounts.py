"""Rules about what is free of a card: slots, memory and cores, and cards that are not shared.

A rule of amounts (`AmountRule`) says how much is wanted and how much there is: both forms, the near miss, and how many
pods have to leave follow from that.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tessera.core.fit.card_rules.base import Asked, Bools, CardRule, Columns, Ints, Question, Stage
from tessera.core.model.devices import MIG, WHOLE, Device
from tessera.core.model.grants import Use
from tessera.core.model.misfits import CardMisfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import WHOLE_CARD_CORES, Request

if TYPE_CHECKING:
    from tessera.core.fit.device_rules import Rules
    from tessera.core.model.arrays import CardArrays

Floats = npt.NDArray[np.float64]

MIB, CORES, SLOTS = "MiB", "cores", "slots"
ANYTHING = -(2**62)
"""what must be free of a card about which a rule says nothing: every card has more"""


def memory_wanted(request: Request, device: Device) -> int:
    """MiB that a request takes of a card, of a MIG card at least. A claim gets all of a card that is not shared."""
    if request.accepts is not None:
        if device.mode == MIG and not request.memory:
            return 0
        if device.mode == WHOLE:
            return max(request.memory, device.memory)
    return request.memory_on(device.memory)


def memory_asked(request: Request, total: Ints) -> Ints | int:
    """`Request.memory_on` of many cards."""
    return request.memory if request.memory > 0 else total * request.percent // 100


def takes_all_cores(request: Request, total: Ints) -> Bools:
    """Of many cards: whether the request takes all cores (`Request.cores_on`)."""
    whole: Bools = (total > 0) & (request.cores >= np.minimum(total, WHOLE_CARD_CORES))
    return whole


@dataclass(frozen=True, slots=True)
class Shortage:
    """What one card has too little of."""

    unit: str
    asked: int
    free: int
    total: int
    wish: str = ""
    """what the card must have, if that is no amount of the request"""

    @property
    def share(self) -> float:
        """Of what is asked, the part that is missing."""
        return (self.asked - max(self.free, 0)) / self.asked

    @property
    def is_alone(self) -> bool:
        """Whether the pod must not share the card."""
        return self.unit == SLOTS and self.asked > 1

    @property
    def has(self) -> str:
        return f"{max(self.free, 0)} of {self.total} {self.unit}"


class AmountRule(CardRule):
    """A card must have so much free of something that pods use up."""

    unit: str
    used: str
    """name of what is in use, of a `Card` and of `CardArrays`"""
    whole: str = ""
    """name of what there is in all, of a `Device`, of `CardArrays` and of a `Use`; a rule without one says itself"""
    alone: bool = False
    """whether all pods have to leave, so that the card is free for this one"""

    def __init__(self) -> None:
        super().__init__()
        self._used, self._whole = attrgetter(self.used), attrgetter(self.whole or self.used)

    @abstractmethod
    def wanted(self, asked: Asked, device: Device) -> int:
        """How much must be free, `ANYTHING` if the rule says nothing about the card."""

    @abstractmethod
    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        """The same of many cards."""

    def total(self, asked: Asked, device: Device) -> int:
        total: int = self._whole(device)
        return total

    def totals(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        """The same of many cards."""
        found: Ints = self._whole(arrays)[:, columns]
        return found

    def part(self, use: Use) -> int:
        """What a pod that leaves gives back."""
        part: int = self._whole(use)
        return part

    def free(self, asked: Asked, card: Card) -> int:
        free: int = self._whole(card.device) - self._used(card)
        return free

    def all_free(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints:
        """The same of many cards."""
        free: Ints = self._whole(arrays)[:, columns] - self._used(arrays)[:, columns]
        return free

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        wanted, free = self.wanted(asked, card.device), self.free(asked, card)
        return self.misfit(asked, card, wanted, free) if free < wanted else None

    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools:
        refused: Bools = self.all_free(question, arrays, columns) < self.all_wanted(question, arrays, columns)
        return refused

    def misfit(self, asked: Asked, card: Card, wanted: int, free: int) -> CardMisfit:
        device = card.device
        return CardMisfit(device.uuid, self.reason, asked=wanted, free=free, total=self.total(asked, device))

    def shortage(self, asked: Asked, card: Card) -> Shortage | None:
        """What the card lacks; None if that is nothing."""
        wanted, free = self.wanted(asked, card.device), self.free(asked, card)
        if wanted <= max(free, 0):
            return None
        return Shortage(self.unit, wanted, free, self.total(asked, card.device), self.wish(asked))

    def shares(self, question: Question, arrays: CardArrays, columns: Columns) -> Floats:
        """`Shortage.share` of many cards: 0 where nothing is short, infinite where a card has none of it at all."""
        wanted, free = self.all_wanted(question, arrays, columns), self.all_free(question, arrays, columns)
        shares: Floats = np.where(wanted > free, (wanted - np.maximum(free, 0)) / np.maximum(wanted, 1), 0.0)
        shares[(np.asarray(self.totals(question, arrays, columns)) <= 0) & (wanted > 0)] = np.inf
        return shares

    def wish(self, asked: Asked) -> str:
        """As in `Shortage`."""
        return ""


class Slots(AmountRule):
    reason, stage, unit = Reason.CARD_SLOTS_EXHAUSTED, Stage.SHARING, SLOTS
    used, whole = "used", "slots"

    def wanted(self, asked: Asked, device: Device) -> int:
        return 1

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        return 1

    def wish(self, asked: Asked) -> str:
        return "a free slot"


class Unused(Slots):
    """A policy that shares no card."""

    reason = Reason.EXCLUSIVE_CONFLICT
    needs = "policy.unused_cards_only"
    alone = True

    def wanted(self, asked: Asked, device: Device) -> int:
        return max(device.slots, 1) if asked.policy.unused_cards_only else ANYTHING

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        wanted: Ints = np.maximum(arrays.slots[:, columns], 1)
        return wanted

    def misfit(self, asked: Asked, card: Card, wanted: int, free: int) -> CardMisfit:
        return CardMisfit(card.device.uuid, self.reason, asked=wanted, free=free)


class Memory(AmountRule):
    reason, stage, unit = Reason.CARD_INSUFFICIENT_MEMORY, Stage.CAPACITY, MIB
    used, whole = "used_memory", "memory"

    def wanted(self, asked: Asked, device: Device) -> int:
        return memory_wanted(asked.request, device)

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        return memory_asked(question.request, arrays.memory[:, columns])


class Cores(AmountRule):
    reason, stage, unit = Reason.CARD_INSUFFICIENT_CORES, Stage.CAPACITY, CORES
    used, whole = "used_cores", "cores"

    def wanted(self, asked: Asked, device: Device) -> int:
        return asked.request.cores_on(device.cores)

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        totals = arrays.cores[:, columns]
        return np.where(takes_all_cores(question.request, totals), totals, question.request.cores)


class WholeCard(Slots):
    """A pod that takes all cores of a card shares it with no other, not even with pods without cores."""

    reason, stage = Reason.EXCLUSIVE_CONFLICT, Stage.CAPACITY
    needs = "request.cores"
    alone = True

    def wanted(self, asked: Asked, device: Device) -> int:
        return max(device.slots, 1) if 0 < device.cores <= asked.request.cores_on(device.cores) else ANYTHING

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        whole = takes_all_cores(question.request, arrays.cores[:, columns])
        return np.where(whole, np.maximum(arrays.slots[:, columns], 1), ANYTHING)

    def misfit(self, asked: Asked, card: Card, wanted: int, free: int) -> CardMisfit:
        cores, total = asked.request.cores_on(card.device.cores), card.device.cores
        return CardMisfit(card.device.uuid, self.reason, asked=cores, free=card.free_cores, total=total)


class CoresLeft(Cores):
    """A pod that asks for no cores shares those that are left: there must be some."""

    reason = Reason.CARD_CORES_EXHAUSTED
    needs = "request.shares_cores"

    def wanted(self, asked: Asked, device: Device) -> int:
        return 1 if asked.request.shares_cores and device.cores > 0 else ANYTHING

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        return np.where(arrays.cores[:, columns] > 0, 1, ANYTHING)

    def misfit(self, asked: Asked, card: Card, wanted: int, free: int) -> CardMisfit:
        return CardMisfit(card.device.uuid, self.reason, asked=0, free=0, total=card.device.cores)
