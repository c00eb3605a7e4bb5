"""The shared card checks on many nodes at once.

`judge` gives every card of the chosen columns a code: 0 if the card takes the request, otherwise the first check that
refuses it. The order of the codes is the order of the checks in `card_checks`, which is the plain form of the same
rule; a property test keeps the two equal. Quota and NUMA binding are not judged here, and MIG only by `has_instance`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.core import published_cards
from tessera.core.arrays import Bools, CardArrays, Ints
from tessera.core.device_rules import Rules
from tessera.core.devices import MIG
from tessera.core.mig import bits
from tessera.core.misfits import Misfit, Reason, node_misfit
from tessera.core.policies import device_policy
from tessera.core.requests import WHOLE_CARD_CORES, Constraint, PodRequest, Request

Codes = npt.NDArray[np.uint8]
Columns = Ints | slice

TAKES = 0
ABSENT = 255
"""no card here, or one of another vendor"""

REASONS: tuple[Reason | None, ...] = (
    None,
    Reason.CARD_NOT_HEALTHY,
    Reason.CARD_CORDONED,
    Reason.CARD_TYPE_MISMATCH,
    Reason.CARD_UUID_MISMATCH,
    Reason.CARD_SELECTOR_MISMATCH,
    Reason.CARD_SELECTOR_TOO_COSTLY,
    Reason.CARD_SLOTS_EXHAUSTED,
    Reason.EXCLUSIVE_CONFLICT,
    Reason.CARD_INSUFFICIENT_MEMORY,
    Reason.CARD_INSUFFICIENT_CORES,
    Reason.EXCLUSIVE_CONFLICT,
    Reason.CARD_CORES_EXHAUSTED,
)
"""by code"""

_SICK, _CORDONED, _MODEL, _UUID, _SELECTOR, _COSTLY, _SLOTS, _MUTEX, _MEMORY, _CORES, _EXCLUSIVE, _EXHAUSTED = range(
    1, 13
)
LAST_IDENTITY = _COSTLY
"""codes up to this one are about the card itself, not about its use"""
BEFORE_QUOTA = _MUTEX
"""codes up to this one are checked before quota"""

CACHED_STATES = 256
"""of cards, for one request; when there are more, all are dropped"""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, with all that decides whether a card takes it."""

    request: Request
    constraint: Constraint
    rules: Rules
    unused_cards_only: bool


def question(pod: PodRequest, request: Request, rules: Rules) -> Question:
    policy = device_policy(pod.device_policy)
    return Question(request, pod.constraint_of(request), rules, policy.unused_cards_only)


def judge(arrays: CardArrays, question: Question, columns: Columns) -> Codes:
    """Codes of all cards in `columns`, shape (devices, columns)."""
    rules, kind = question.rules, arrays.kind[:, columns]
    codes = np.zeros(kind.shape, dtype=np.uint8)
    # Later assignments win, so the checks run from the last to the first.
    if not question.request.is_admin:
        _refuse_use(arrays, question, columns, codes)
    if question.constraint.filter is not None:
        said = arrays.filter_codes(question.constraint.filter, columns)
        np.copyto(codes, _SELECTOR, where=said != published_cards.ACCEPTED)
        np.copyto(codes, _COSTLY, where=said == published_cards.TOO_COSTLY)
    _refuse_uuids(arrays, question, columns, codes)
    accepted = _accepted_kinds(arrays, question)[kind]
    np.copyto(codes, _MODEL, where=accepted == _MODEL)
    if rules.honours_cordon:
        np.copyto(codes, _CORDONED, where=arrays.cordoned[:, columns])
    np.copyto(codes, _SICK, where=arrays.sick[:, columns])
    np.copyto(codes, ABSENT, where=accepted == ABSENT)
    return codes


def _refuse_use(arrays: CardArrays, question: Question, columns: Columns, codes: Codes) -> None:
    """The checks that look at what is in use."""
    request = question.request
    used, used_cores = arrays.used[:, columns], arrays.used_cores[:, columns]
    total_memory, total_cores = arrays.memory[:, columns], arrays.cores[:, columns]
    memory = memory_asked(request, total_memory)
    whole, cores = cores_asked(request, total_cores)
    if request.cores == 0:
        np.copyto(codes, _EXHAUSTED, where=(total_cores > 0) & (used_cores >= total_cores))
    np.copyto(codes, _EXCLUSIVE, where=(used > 0) & whole)
    np.copyto(codes, _CORES, where=total_cores - used_cores < cores)
    np.copyto(codes, _MEMORY, where=total_memory - arrays.used_memory[:, columns] < memory)
    if question.unused_cards_only:
        np.copyto(codes, _MUTEX, where=used > 0)
    np.copyto(codes, _SLOTS, where=arrays.slots[:, columns] <= used)


def cores_asked(request: Request, total: Ints) -> tuple[Bools, Ints]:
    """Of many cards: whether the request takes all cores, and how many it takes (`card_checks.cores_on`)."""
    whole: Bools = (total > 0) & (request.cores >= np.minimum(total, WHOLE_CARD_CORES))
    return whole, np.where(whole, total, request.cores)


def memory_asked(request: Request, total: Ints) -> Ints | int:
    """`Request.memory_on` of many cards."""
    return request.memory if request.memory > 0 else total * request.percent // 100


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


def _accepted_kinds(arrays: CardArrays, question: Question) -> npt.NDArray[np.uint8]:
    """By kind: 0, refused model, or another vendor. The last entry answers for places without a card (kind -1)."""
    table = np.full(len(arrays.kinds) + 1, ABSENT, dtype=np.uint8)
    for number, kind in enumerate(arrays.kinds):
        if kind.vendor == question.rules.key:
            accepted = question.rules.accepts_model(kind.sample, question.constraint)
            table[number] = TAKES if accepted else _MODEL
    return table


def _refuse_uuids(arrays: CardArrays, question: Question, columns: Columns, codes: Codes) -> None:
    constraint = question.constraint
    if not constraint.use_uuids and not constraint.avoid_uuids:
        return
    refused = np.zeros(arrays.kind.shape, dtype=np.bool_)
    if constraint.use_uuids:
        refused[:] = True
        refused[arrays.places(constraint.use_uuids)] = False
    refused[arrays.places(constraint.avoid_uuids)] = True
    np.copyto(codes, _UUID, where=refused[:, columns])


def card_counts(arrays: CardArrays, vendor: str, columns: Columns) -> Ints:
    """How many cards of a vendor each column has."""
    table = np.zeros(len(arrays.kinds) + 1, dtype=np.int64)
    for number, kind in enumerate(arrays.kinds):
        table[number] = kind.vendor == vendor
    counts: Ints = table[arrays.kind[:, columns]].sum(axis=0)
    return counts


def fits(codes: Codes, counts: Ints, request: Request) -> Bools:
    """Columns whose cards take the request alone."""
    enough: Bools = (codes == TAKES).sum(axis=0) >= request.count
    return enough & (counts >= request.count)


class CodeCache:
    """The codes of cards by their state, for one request.

    Judging one column costs as many array operations as judging thousands, and most cards that change get into a state
    in which others have been before. Codes that depend on a card's uuid are not cached.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._codes: dict[tuple[int, ...], int] = {}
        constraint = question.constraint
        reads_own = constraint.filter is not None and constraint.filter.reads_own
        self._depends_on_uuid = bool(constraint.use_uuids or constraint.avoid_uuids) or reads_own

    def codes(self, arrays: CardArrays, column: int) -> list[int]:
        """The codes of the cards of one column."""
        if self._depends_on_uuid:
            return self._judge(arrays, column)
        # Everything that `judge` reads about a card.
        numbers = (
            arrays.kind, arrays.slots, arrays.used, arrays.memory, arrays.used_memory, arrays.cores, arrays.used_cores,
            arrays.sick, arrays.cordoned, arrays.published,
        )  # fmt: skip
        states = list(zip(*(array[:, column].tolist() for array in numbers), strict=True))
        try:
            return [self._codes[state] for state in states]
        except KeyError:
            codes = self._judge(arrays, column)
        if len(self._codes) + len(states) > CACHED_STATES:
            self._codes.clear()
        self._codes.update(zip(states, codes, strict=True))
        return codes

    def _judge(self, arrays: CardArrays, column: int) -> list[int]:
        codes: list[int] = judge(arrays, self._question, np.array([column], dtype=np.int64))[:, 0].tolist()
        return codes


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
