"""What a card rule is: one check of one card, in all the forms in which the scheduler needs it.

A rule is one object in one file; the table in `tessera.core.card_rules` is the only list of them. Filter, preemption,
gangs, moves and `explain` respect a rule because it is in the table. The plain form (`refuse`) decides; the form on
arrays (`refused`) must say the same of every card, and a property test holds the two equal. A rule of amounts
(`AmountRule`) says how much is wanted and how much there is: both forms, the near miss, and how many pods have to leave
follow from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tessera.core.devices import Device
from tessera.core.grants import Use
from tessera.core.misfits import CardMisfit, Reason
from tessera.core.node_info import Card
from tessera.core.requests import Constraint, PodRequest, Request

if TYPE_CHECKING:
    from tessera.core.arrays import CardArrays
    from tessera.core.device_rules import Rules

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Columns = Ints | slice

MIB, CORES, SLOTS = "MiB", "cores", "slots"
ANYTHING = -(2**62)
"""what must be free of a card about which a rule says nothing"""


class Stage(IntEnum):
    """When a rule is asked; quotas come between sharing and capacity."""

    IDENTITY = 0
    """about the card itself, whatever is in use of it"""
    SHARING = 1
    CAPACITY = 2


class Asked(Protocol):
    """What a rule may know of the request: `Ask` for one node, `Question` for many."""

    @property
    def pod(self) -> PodRequest: ...
    @property
    def request(self) -> Request: ...
    @property
    def constraint(self) -> Constraint: ...
    @property
    def unused_cards_only(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Question:
    """One request, with all that decides whether a card takes it."""

    pod: PodRequest
    request: Request
    constraint: Constraint
    rules: Rules
    unused_cards_only: bool


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


class CardRule(ABC):
    """One check of one card, without state."""

    reason: Reason
    more_reasons: tuple[Reason, ...] = ()
    stage: Stage
    setting: str = ""
    """name of the pod's annotation, without its prefix, whose number the rule reads (`PodRequest.limit`)"""

    def applies(self, asked: Asked) -> bool:
        """Whether the rule may refuse any card at all."""
        return True

    @abstractmethod
    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        """Why the card is refused; None if it is not."""

    @abstractmethod
    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools | Codes:
        """The same of all cards in some columns, if the rule applies: whether it refuses them; with several reasons,
        which of them, counted from 1."""


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
        used: int = self._used(card)
        return self.total(asked, card.device) - used

    def all_free(self, question: Question, arrays: CardArrays, columns: Columns) -> Ints:
        """The same of many cards."""
        free: Ints = self.totals(question, arrays, columns) - self._used(arrays)[:, columns]
        return free

    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        wanted = self.wanted(asked, card.device)
        if wanted == ANYTHING:
            return None
        free = self.free(asked, card)
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
