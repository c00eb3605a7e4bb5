"""The shared card checks on many nodes at once.

`judge` gives every card of the chosen columns a code: 0 if the card takes the request, otherwise the first check that
refuses it. The codes are those of the rules in `card_rules`, in their order; `card_checks` asks the same rules in their
plain form. Quota and NUMA binding are not judged here, and MIG only by `has_instance`.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from tessera.core.fit.card_rules import CARD_RULES, checks_for
from tessera.core.fit.card_rules.base import Codes, Columns, Question, Stage
from tessera.core.fit.device_rules import Rules
from tessera.core.model.arrays import Bools, CardArrays, Ints
from tessera.core.model.devices import MIG
from tessera.core.model.mig import bits
from tessera.core.model.misfits import Misfit, Reason, node_misfit
from tessera.core.model.requests import PodRequest, Request
from tessera.core.policies import device_policy

TAKES = 0
ABSENT = 255
"""no card here, or one of another vendor"""

REASONS: tuple[Reason | None, ...] = (
    None,
    *(reason for rule in CARD_RULES for reason in (rule.reason, *rule.more_reasons)),
)
"""by code"""
CODES = dict(
    zip(CARD_RULES, accumulate((1 + len(rule.more_reasons) for rule in CARD_RULES[:-1]), initial=1), strict=True)
)
"""the first code of each rule"""


def _last_code(*stages: Stage) -> int:
    return sum(1 + len(rule.more_reasons) for rule in CARD_RULES if rule.stage in stages)


LAST_IDENTITY = _last_code(Stage.IDENTITY)
"""codes up to this one are about the card itself, not about its use"""
BEFORE_QUOTA = _last_code(Stage.IDENTITY, Stage.SHARING)
"""codes up to this one are checked before quota"""


def question(pod: PodRequest, request: Request, rules: Rules) -> Question:
    return Question(pod, request, pod.constraint_of(request), rules, device_policy(pod.device_policy))


def judge(arrays: CardArrays, question: Question, columns: Columns) -> Codes:
    """Codes of all cards in `columns`, shape (devices, columns)."""
    codes = np.zeros(arrays.kind[:, columns].shape, dtype=np.uint8)
    checks = checks_for(question)
    # Later assignments win, so the checks run from the last to the first.
    for rule in reversed((*checks.identity, *checks.sharing, *checks.capacity)):
        refused, code = rule.refused(question, arrays, columns), CODES[rule]
        if not rule.more_reasons:
            np.copyto(codes, code, where=refused.astype(np.bool_, copy=False))
        else:
            np.copyto(codes, refused + np.uint8(code - 1), where=refused > 0)
    np.copyto(codes, ABSENT, where=~_of_vendor(arrays, question.rules.key)[arrays.kind[:, columns]])
    return codes


def _of_vendor(arrays: CardArrays, vendor: str) -> Bools:
    """By kind: whether it is one of the vendor's. The last entry answers for places without a card (kind -1)."""
    return np.array([*[kind.vendor == vendor for kind in arrays.kinds], False], dtype=np.bool_)


def has_instance(arrays: CardArrays, request: Request, columns: Columns) -> Bools:
    """Cards that are not in MIG mode, or have a free place for an instance that is large enough (`mig.choose`)."""
    kinds, taken = arrays.kind[:, columns], arrays.taken[:, columns]
    found = np.ones(kinds.shape, dtype=np.bool_)
    for number, kind in enumerate(arrays.kinds):
        if kind.sample.mode == MIG:
            memory = request.memory_on(kind.sample.memory)
            profiles = (each for each in kind.sample.mig_profiles if each.memory >= memory)
            free = np.zeros(kinds.shape, dtype=np.bool_)
            for place in {bits([place]) for profile in profiles for place in profile.placements}:
                free |= taken & place == 0
            found &= free | (kinds != number)
    return found


def card_counts(arrays: CardArrays, vendor: str, columns: Columns) -> Ints:
    """How many cards of a vendor each column has."""
    counts: Ints = _of_vendor(arrays, vendor)[arrays.kind[:, columns]].sum(axis=0)
    return counts


def judged_counts(codes: Codes) -> Ints:
    """The same from the codes of all cards of the columns."""
    counts: Ints = (codes != ABSENT).sum(axis=0)
    return counts


class ColumnMisfits:
    """Misfits from columns of codes. Equal columns share one object, so that answers about many nodes stay small."""

    def __init__(self, question: Question, container: int) -> None:
        self._question = question
        self._container = container
        self._known: dict[tuple[bytes, int], Misfit] = {}

    def misfits(self, codes: Codes, counts: Ints, *, cards_paid: int | None = None) -> list[Misfit]:
        """One misfit per column. `cards_paid`: a quota is short and pays for only so many cards."""
        ordered = np.sort(codes, axis=0)
        columns = np.ascontiguousarray(ordered.T)
        width = columns.shape[1]
        data = columns.tobytes()
        result = []
        for i in range(len(columns)):
            key = (data[i * width : (i + 1) * width], -1 if cards_paid is None else cards_paid)
            misfit = self._known.get(key)
            if misfit is None:
                misfit = self._known[key] = self._misfit(key[0], int(counts[i]), cards_paid)
            result.append(misfit)
        return result

    def _misfit(self, column: bytes, total: int, cards_paid: int | None) -> Misfit:
        request, vendor = self._question.request, self._question.rules.key
        least = self._question.rules.least_cards(request)
        if total == 0 or (cards_paid is None and total < least):
            return node_misfit(Reason.NODE_INSUFFICIENT_DEVICE, vendor=vendor, container=self._container, total=total)
        numbers: dict[Reason, int] = {}
        takes = 0
        for code in column:
            if code == ABSENT:
                continue
            if cards_paid == 0 and not TAKES < code <= BEFORE_QUOTA:
                numbers[Reason.QUOTA_NOT_FIT] = numbers.get(Reason.QUOTA_NOT_FIT, 0) + 1
            elif code == TAKES:
                takes += 1
            else:
                reason = REASONS[code]
                assert reason is not None  # only TAKES has none
                numbers[reason] = numbers.get(reason, 0) + 1
        taken = takes if cards_paid is None else min(takes, cards_paid)
        if taken:
            numbers[Reason.TOO_FEW_CARDS] = taken
        if takes > taken:
            numbers[Reason.QUOTA_NOT_FIT] = numbers.get(Reason.QUOTA_NOT_FIT, 0) + takes - taken
        return Misfit(tuple(sorted(numbers.items())), total=total, vendor=vendor, container=self._container)
