"""What is known about one shape of pod on every node, kept up to date with the ledger's log.

A shape is judged once on all nodes; afterwards only the columns that changed are judged again. Where the arrays cannot
decide (MIG nodes, several containers, NUMA binding, vendors with rules of their own) they only rule out, and the plain
rule decides node by node, on demand and cached until the node changes. That, and asking the filters of claims, are the
only costs here that grow with nodes times containers, so they can be limited: `OutOfWork` is raised, and the same
question asked again goes on from there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tessera.core.fit import screen
from tessera.core.fit.card_rules.base import Codes, Question
from tessera.core.fit.fit import QuotaRooms, fit_pod
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import Bools, Ints
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import UNREGISTERED, Misfit
from tessera.core.model.published_cards import CARD_COST, CLUSTER_COST
from tessera.core.model.requests import CardFilter, PodRequest, Request
from tessera.core.policies import device_policy

REBUILD_SHARE = 0.25
"""share of changed columns from which judging everything is cheaper than picking columns"""

LINKS_WORK = 32
"""times as much: to find the best linked ones among the cards of a node takes as long as so many checks of each"""

WORDS_OF_A_CHECK = 64
"""to compare a card with so many words of annotations takes as long as a check of it"""

MISFITS_OF_A_CHECK = 8
"""to say why so many columns do not fit takes as long as one check of the plain rule"""

UNITS_OF_A_CHECK = 130
"""of a filter's work (`FilterAnswer.cost`): as long as a check of one request on one card"""

NO_ROOMS: QuotaRooms = MappingProxyType({})


class OutOfWork(Exception):
    """The plain rule was asked about more nodes than one decision may."""


@dataclass(slots=True)
class ScreenedRequest:
    """One request of the shape, judged on all columns."""

    question: Question
    container: int
    exact: bool
    """False if the vendor has rules of its own: then the codes say nothing"""
    codes: Codes
    counts: Ints
    """cards of the vendor, by column"""
    misfits: screen.ColumnMisfits

    def fits(self, columns: Ints) -> Bools:
        """Columns that take the request alone, as far as the arrays can tell."""
        counts, request = self.counts[columns], self.question.request
        if not self.exact:
            enough: Bools = counts >= self.question.rules.least_cards(request)
            return enough
        takes: Ints = (self.codes[:, columns] == screen.TAKES).sum(axis=0)
        return (takes >= request.count) & (counts >= request.count)


class Evaluation:
    """One shape of pod on one ledger."""

    def __init__(self, ledger: Ledger, pod: PodRequest) -> None:
        self._ledger = ledger
        self._pod = pod
        self._epoch = -1
        self._seen = 0
        self._requests: list[ScreenedRequest] = []
        self.unknown_vendor: str | None = None
        self.has_vendor_scores = False
        for vendor in reversed(pod.vendors):
            rules = ledger.rules.get(vendor)
            if rules is None:
                self.unknown_vendor = vendor
            elif rules.scores_nodes:
                self.has_vendor_scores = True
        self.possible: Bools = np.zeros(0, dtype=np.bool_)
        """by column: not ruled out by the arrays"""
        self.requests = len(pod.requests)
        self._has_one_request = self.requests == 1
        """then the plain rule costs no more than judging its column"""
        self._stale: set[int] = set()
        """columns whose codes are outdated, because the plain rule judged them instead"""
        self._placements: dict[int, Placement | Misfit] = {}
        self._quota_placements: dict[int, Placement | Misfit] = {}
        """the same with `_rooms`"""
        self._rooms: QuotaRooms = {}
        self._work_per_card = work_per_card(pod)
        self._filter_work = 0
        """the same for filters that the plain rule may have to ask again"""
        self._filters = _filters(pod)
        self.too_costly: int | None = None
        """position of a container whose filter takes too much work, together with those before: on all cards, or one"""
        self.work_left: float = math.inf
        """checks of one request on one card that the plain rule may still make; no limit while catching up"""
        self._misfits: dict[int, Misfit] = {}
        self.version = 0
        """grows when a misfit that was already given changes: with the same version a refusal is the same"""
        self._arrays_are_exact = False

    @property
    def is_exact(self) -> bool:
        """Whether the arrays alone decide, except on odd nodes. After `catch_up`."""
        pod = self._pod
        return self._arrays_are_exact and self._has_one_request and not pod.numa_bind and not pod.matches

    def ask_filters(self, work: float) -> float:
        """Ask the filters of the requests about all cards that they were not asked about yet; how many checks of the
        plain rule that is worth. Raises OutOfWork after `work`: the next call goes on from there."""
        cards = self._ledger.arrays.published_cards
        self.too_costly, self._filter_work = None, 0
        spent, total, dearest = 0.0, 0, 0
        for position, accepts in self._filters:
            spent += cards.ask(accepts, (work - spent) * UNITS_OF_A_CHECK) / UNITS_OF_A_CHECK
            if not cards.is_asked(accepts):
                raise OutOfWork
            total += cards.cost(accepts)
            dearest += cards.dearest(accepts)
            if total > CLUSTER_COST or (dearest > CARD_COST and len(self._filters) > 1):
                self.too_costly = position
                break
            if accepts.reads_own:
                self._filter_work += cards.dearest(accepts) // UNITS_OF_A_CHECK
        return spent

    def catch_up(self) -> int:
        """Judge the columns that changed since the last time; how many. Comes before everything else."""
        if self.unknown_vendor is not None:
            return 0
        arrays = self._ledger.arrays
        dirty = arrays.changed_since(self._seen) if self._epoch == arrays.epoch else None
        if dirty is None or len(dirty) > REBUILD_SHARE * len(arrays.names):
            self._judge_all()
            judged = len(arrays.names)
        else:
            if dirty:
                self._judge_columns(dirty)
            judged = len(dirty)
        self._seen, self._epoch = arrays.now, arrays.epoch
        return judged

    def placement(self, row: int, rooms: QuotaRooms = NO_ROOMS) -> Placement | Misfit:
        """The plain rule's answer for a column."""
        if rooms and rooms != self._rooms:
            self._rooms = rooms
            self._quota_placements.clear()
        placements = self._quota_placements if rooms else self._placements
        answer = placements.get(row)
        if answer is None:
            if self.work_left <= 0:
                raise OutOfWork
            ledger, answer = self._ledger, UNREGISTERED
            node = ledger.node(ledger.arrays.names[row])
            if node is not None:
                self.work_left -= (self._work_per_card + self._filter_work) * len(node.cards)
                answer = fit_pod(node, self._pod, ledger.rules, rooms)
            placements[row] = answer
        return answer

    def vendor_score(self, row: int, rooms: QuotaRooms) -> float:
        """The vendors' part of a node's score; 0 where the pod does not fit."""
        answer = self.placement(row, rooms)
        if isinstance(answer, Misfit):
            return 0.0
        node = self._ledger.node(answer.node)
        assert node is not None  # it was just placed on
        rules = self._ledger.rules
        return sum(rules[v].node_score(node, self._pod, grants) for v, grants in answer.grants.items())

    def misfits(self, rows: Ints) -> list[Misfit]:
        """Why the pod does not fit these columns; it must fit none of them."""
        wanted = rows.tolist()
        verdicts = self._misfits
        missing = [row for row in wanted if row not in verdicts]
        if missing:
            verdicts.update(zip(missing, self._find_misfits(missing), strict=True))
            self.work_left -= len(missing) / MISFITS_OF_A_CHECK
        return [verdicts[row] for row in wanted]

    def quota_misfits(self, rows: Ints, rooms: QuotaRooms, short: tuple[Request, int, int]) -> list[Misfit]:
        """Why a quota that is `short` (`quota.first_shortage`) forbids these columns."""
        request, container, cards_paid = short
        self._refresh_stale()
        screened = next(one for one in self._requests if one.question.request == request)
        arrays = self._ledger.arrays
        plain = arrays.odd[rows] | arrays.unavailable[rows] | (not screened.exact)
        texts = screen.ColumnMisfits(screened.question, container)
        misfits = texts.misfits(screened.codes[:, rows], screened.counts[rows], cards_paid=cards_paid)
        for i in np.flatnonzero(plain):
            answer = self.placement(int(rows[i]), rooms)
            assert isinstance(answer, Misfit)  # the quota is short everywhere
            misfits[int(i)] = answer
        return misfits

    # -- inside

    def _judge_all(self) -> None:
        arrays, pod = self._ledger.arrays, self._pod
        columns = slice(0, len(arrays.names))
        self._requests, self._arrays_are_exact = [], True
        for request, container in _distinct(pod).items():
            rules = self._ledger.rules[request.vendor]
            question = screen.question(pod, request, rules)
            codes = screen.judge(arrays, question, columns)
            counts, misfits = screen.judged_counts(codes), screen.ColumnMisfits(question, container)
            self._requests.append(ScreenedRequest(question, container, rules.arrays_exact, codes, counts, misfits))
            self._arrays_are_exact &= rules.arrays_exact
        self.possible = np.zeros(len(arrays.names), dtype=np.bool_)
        self._stale.clear()
        self._placements.clear()
        self._quota_placements.clear()
        self._misfits.clear()
        self.version += 1
        self._combine(np.arange(len(arrays.names), dtype=np.int64))

    def _judge_columns(self, dirty: list[int]) -> None:
        before: dict[int, Misfit] = {}
        for row in dirty:
            self._placements.pop(row, None)
            self._quota_placements.pop(row, None)
            if row in self._misfits:
                before[row] = self._misfits.pop(row)
        if len(dirty) == 1 and self._has_one_request:
            # The node of the last placement, most likely the next choice too: then this answer is needed anyway.
            self._stale.update(dirty)
            self.possible[dirty[0]] = isinstance(self.placement(dirty[0]), Placement)
        else:
            columns = np.array(dirty, dtype=np.int64)
            self._stale.difference_update(dirty)
            self._refresh_codes(columns)
            self._combine(columns)
        self._compare(before)

    def _refresh_stale(self) -> None:
        """Comes before codes are read."""
        if self._stale:
            self._refresh_codes(np.array(sorted(self._stale), dtype=np.int64))
            self._stale.clear()

    def _refresh_codes(self, columns: Ints) -> None:
        arrays = self._ledger.arrays
        for request in self._requests:
            request.codes[:, columns] = codes = screen.judge(arrays, request.question, columns)
            request.counts[columns] = screen.judged_counts(codes)

    def _compare(self, before: dict[int, Misfit]) -> None:
        """Note whether changed columns have another misfit than before; where that costs the plain rule, they may."""
        odd = self._ledger.arrays.odd
        for row, old in before.items():
            is_cheap = self.is_exact and not odd[row] and not self.possible[row]
            if not is_cheap or self.misfits(np.array([row], dtype=np.int64))[0] != old:
                self.version += 1

    def _combine(self, columns: Ints) -> None:
        arrays = self._ledger.arrays
        possible = np.ones(len(columns), dtype=np.bool_)
        for request in self._requests:
            possible &= request.fits(columns)
        possible |= arrays.odd[columns]
        possible &= arrays.present[columns] & ~arrays.unavailable[columns]
        self.possible[columns] = possible

    def _find_misfits(self, rows: list[int]) -> list[Misfit]:
        """What the plain rule says, taken from the arrays wherever these are exact."""
        self._refresh_stale()
        arrays = self._ledger.arrays
        columns = np.array(rows, dtype=np.int64)
        found: dict[int, Misfit] = {}
        plain = self.possible[columns] | arrays.odd[columns] | arrays.unavailable[columns] | ~arrays.present[columns]
        left = np.flatnonzero(~plain)
        for request in self._requests:
            fits = request.fits(columns[left])
            failing, left = left[~fits], left[fits]
            codes, counts = request.codes[:, columns[failing]], request.counts[columns[failing]]
            found.update(zip(failing.tolist(), request.misfits.misfits(codes, counts), strict=True))
            if not request.exact or self._pod.numa_bind:
                # The vendor's own rule, or NUMA, may refuse before the requests that follow: only the plain rule knows.
                break
        for i in (*np.flatnonzero(plain).tolist(), *left.tolist()):
            answer = self.placement(rows[i])
            assert isinstance(answer, Misfit)  # callers ask only where the pod does not fit
            found[i] = answer
        return [found[i] for i in range(len(rows))]


def _filters(pod: PodRequest) -> tuple[tuple[int, CardFilter], ...]:
    """Each different one once, with the first container that has it."""
    found: dict[CardFilter, int] = {}
    for position, request in pod.requests:
        accepts = pod.constraint_of(request).filter
        if accepts is not None:
            found.setdefault(accepts, position)
    return tuple(zip(found.values(), found, strict=True))


def work_per_card(pod: PodRequest) -> int:
    """Checks of one request on one card that the plain rule makes for the pod, on each card of a node."""
    by_links = device_policy(pod.device_policy).chooses_by_links
    words = 0
    for _, constraint in pod.constraints:
        words += constraint.words
    return len(pod.requests) * ((LINKS_WORK if by_links else 1) + words // WORDS_OF_A_CHECK)


def _distinct(pod: PodRequest) -> dict[Request, int]:
    """Each different request once, with the first container that makes it."""
    found: dict[Request, int] = {}
    for position, request in pod.requests:
        found.setdefault(request, position)
    return found
