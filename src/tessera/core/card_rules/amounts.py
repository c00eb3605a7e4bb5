"""Rules about what is free of a card: slots, memory and cores, and cards that are not shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tessera.core.card_rules.base import (
    ANYTHING,
    CORES,
    MIB,
    SLOTS,
    AmountRule,
    Asked,
    Bools,
    Columns,
    Ints,
    Question,
    Stage,
)
from tessera.core.devices import MIG, WHOLE, Device
from tessera.core.misfits import CardMisfit, Reason
from tessera.core.node_info import Card
from tessera.core.requests import WHOLE_CARD_CORES, Request

if TYPE_CHECKING:
    from tessera.core.arrays import CardArrays


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
    alone = True

    def applies(self, asked: Asked) -> bool:
        return asked.unused_cards_only

    def wanted(self, asked: Asked, device: Device) -> int:
        return max(device.slots, 1) if asked.unused_cards_only else ANYTHING

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
    alone = True

    def applies(self, asked: Asked) -> bool:
        return asked.request.cores > 0

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

    def applies(self, asked: Asked) -> bool:
        return asked.request.cores == 0

    def wanted(self, asked: Asked, device: Device) -> int:
        return 1 if asked.request.cores == 0 < device.cores else ANYTHING

    def all_wanted(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints | int:
        return np.where(arrays.cores[:, columns] > 0, 1, ANYTHING)

    def misfit(self, asked: Asked, card: Card, wanted: int, free: int) -> CardMisfit:
        return CardMisfit(card.device.uuid, self.reason, asked=0, free=0, total=card.device.cores)
