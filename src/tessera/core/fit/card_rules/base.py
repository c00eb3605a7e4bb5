"""What a card rule is: one check of one card, in all the forms in which the scheduler needs it.

A rule is one object in one file; the table in `tessera.core.fit.card_rules` is the only list of them. Filter,
preemption, gangs, moves and `explain` respect a rule because it is in the table. The plain form (`refuse`) decides; the
form on arrays (`refused`) must say the same of every card, and a property test holds the two equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tessera.core.model.misfits import CardMisfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Constraint, PodRequest, Request

if TYPE_CHECKING:
    from tessera.core.fit.device_rules import Rules
    from tessera.core.model.arrays import CardArrays
    from tessera.core.policies.base import DevicePolicy

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
Columns = Ints | slice


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
    def policy(self) -> DevicePolicy: ...


@dataclass(frozen=True, slots=True)
class Question:
    """One request, with all that decides whether a card takes it."""

    pod: PodRequest
    request: Request
    constraint: Constraint
    rules: Rules
    policy: DevicePolicy


class CardRule(ABC):
    """One check of one card, without state."""

    reason: Reason
    more_reasons: tuple[Reason, ...] = ()
    stage: Stage
    setting: str = ""
    """name of the pod's annotation, without its prefix, whose number the rule reads (`PodRequest.limit`)"""
    needs: str = ""
    """name, in an `Asked`, of what a request must have so that the rule may refuse any card; empty: it always may"""

    def __init__(self) -> None:
        self.needed = attrgetter(self.needs) if self.needs else None

    @abstractmethod
    def refuse(self, rules: Rules, asked: Asked, card: Card) -> CardMisfit | None:
        """Why the card is refused; None if it is not."""

    @abstractmethod
    def refused(self, question: Question, arrays: CardArrays, columns: Columns) -> Bools | Codes:
        """The same of all cards in some columns, if the request has what the rule needs: whether it refuses them; with
        several reasons, which of them, counted from 1."""
