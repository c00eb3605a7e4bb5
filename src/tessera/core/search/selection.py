"""Chooses a node among candidates: the best one that fits, or the reason for every one.

A decision is a function of the ledger, the request and the set of candidates. What is cached (per shape of pod) is
brought up to date with the ledger's log before it is read, so a cache can make an answer faster but never different.
The nodes that may fit are ranked, and tried from the best on with the plain rule (`fit.fit_pod`); equal nodes are
decided by name. Mostly one of the best is a candidate, so a list of candidates is searched for a few of them before all
of its names are looked up.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from tessera.core import policies
from tessera.core.fit import quota
from tessera.core.fit.fit import QuotaRooms
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import Bools, Ints, NameOrder
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import UNREGISTERED, Misfit, Reason, node_misfit
from tessera.core.model.requests import PodRequest, container_title
from tessera.core.policies.base import Floats, Ranking
from tessera.core.search.evaluation import Evaluation, OutOfWork

SHAPES = 256
"""shapes of pods that are cached, or fewer where they have several requests: a request costs one byte per card"""
COLUMNS_OF_A_CHECK = 50
"""to judge and rank so many columns for one request takes as long as one check of the plain rule"""
LEAST_OF_WORK = 1 / 4
"""of the work of a call that is left for the plain rule, however much was judged"""
PROBES = 8
"""nodes for which a list of candidates is searched; looking up all its names costs about as much as twelve searches"""

MAX_REASONS = 32
"""different texts that a refusal is summed up with"""
OTHER_REASONS = "other reasons"


class CandidateNames(Protocol):
    """The names of the nodes to choose from, which can be searched before they are looked up."""

    def __contains__(self, name: str, /) -> bool: ...

    def resolve(self) -> Candidates:
        """All of them, looked up in the arrays as they are now."""
        ...


@dataclass(frozen=True, eq=False)
class Candidates:
    """A set of nodes to choose from, looked up in the arrays. Valid for one epoch of the arrays."""

    order: NameOrder
    named: Bools
    """by place in `order`"""
    unregistered: tuple[str, ...]

    @cached_property
    def rows(self) -> Ints:
        """Columns of the registered nodes, in the order of their names."""
        rows: Ints = self.order.rows[self.named]
        return rows

    @cached_property
    def registered(self) -> tuple[str, ...]:
        """Names of the registered nodes, sorted; they belong to `rows`."""
        return tuple(map(self.order.names.__getitem__, np.flatnonzero(self.named).tolist()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self.registered + self.unregistered

    @cached_property
    def fingerprint(self) -> Hashable:
        """Equal for equal sets of nodes of one epoch."""
        return self.order.epoch, hash((self.named.tobytes(), self.unregistered))

    def __contains__(self, name: str, /) -> bool:
        return name in self.names

    def __len__(self) -> int:
        return len(self.names)

    def resolve(self) -> Candidates:
        return self


class Ranked(NamedTuple):
    """The nodes that are not ruled out, candidates or not, in the order of their names."""

    order: NameOrder
    places: Ints
    """in `order`"""
    scores: Floats
    preference: Floats
    """what the node policy made of the scores: larger is better"""
    decided: Bools
    """whether the pod fits for sure; False if only the plain rule could tell"""


@dataclass(frozen=True, eq=False)
class Selected:
    """A placement and the nodes it was chosen from, as they were at that moment."""

    placement: Placement
    candidates: CandidateNames
    ranked: Ranked
    failed: tuple[int, ...]
    """positions in `ranked` of nodes that turned out not to fit"""
    absent: tuple[int, ...] = ()
    """positions in `ranked` of better nodes that the list of candidates was searched for, and does not name"""

    @cached_property
    def compared(self) -> Ints:
        """Positions in `ranked` of the candidates that were not ruled out."""
        ranked, candidates = self.ranked, self.candidates.resolve()
        if candidates.order is ranked.order:
            is_named = candidates.named[ranked.places]
        else:  # Nodes have come or gone since.
            names = frozenset(candidates.names)
            is_named = np.array([ranked.order.names[place] in names for place in ranked.places], dtype=np.bool_)
        is_named[list(self.failed)] = False
        return np.flatnonzero(is_named)

    @property
    def decided(self) -> Bools:
        """By compared node: whether the pod fits for sure, because the arrays or the plain rule said so."""
        decided: Bools = self.ranked.decided[self.compared]
        return decided

    @property
    def fits(self) -> list[tuple[str, float]]:
        """Candidates that were not ruled out with their scores, the chosen one last."""
        return self._best(self.compared, len(self.compared))

    def best_decided(self, count: int) -> list[tuple[str, float]]:
        """The best `count` candidates that fit for sure with their scores, the chosen one last."""
        return self._best(self.compared[self.decided], count)

    def _best(self, among: Ints, count: int) -> list[tuple[str, float]]:
        ranked = self.ranked
        best = among[np.argsort(-ranked.preference[among], kind="stable")][:count]
        return [(ranked.order.names[ranked.places[i]], float(ranked.scores[i])) for i in reversed(best.tolist())]


@dataclass(frozen=True, eq=False)
class Refused:
    """No node fits: why, for every candidate. Equal reasons share one object."""

    misfits: Mapping[str, Misfit]

    @cached_property
    def verdicts(self) -> tuple[tuple[Misfit, int], ...]:
        """Each different object once, and for how many candidates it stands."""
        misfits = self.misfits.values()
        by_id = dict(zip(map(id, misfits), misfits, strict=True))
        return tuple([(by_id[key], count) for key, count in Counter(map(id, misfits)).items()])

    @cached_property
    def reason_counts(self) -> tuple[tuple[str, int], ...]:
        """The texts of the misfits and how many candidates each was given for, the most frequent first.

        `MAX_REASONS` of them; the candidates of the others are counted together, as `OTHER_REASONS`.
        """
        counts: dict[str, int] = {}
        for misfit, count in self.verdicts:
            text = misfit.text
            counts[text] = counts.get(text, 0) + count
        found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if len(found) > MAX_REASONS:
            found[MAX_REASONS:] = [(OTHER_REASONS, sum(count for _, count in found[MAX_REASONS:]))]
        return tuple(found)


class Unfinished:
    """The decision takes more work than was allowed. Asking again goes on from there."""


@dataclass(slots=True)
class ShapeCache:
    """What is known about one shape of pod."""

    evaluation: Evaluation
    refusal: tuple[Candidates, int, Refused] | None = None
    """the last refusal, with the candidates and the version of the evaluation that it belongs to"""
    ranking: dict[str, object] = field(default_factory=dict)
    """what the node policy keeps for the next pod of this shape"""


class Selector:
    """Chooses on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._shapes: OrderedDict[Hashable, ShapeCache] = OrderedDict()
        self._cached_requests = 0
        self.asked = 0.0
        """of the work of the last decision, what filters took; also if it is not finished"""
        self.spent = 0.0
        """all of its work, if it is finished"""

    def forget(self) -> None:
        """Drop everything that is cached, because the vendors' rules changed."""
        self._shapes.clear()
        self._cached_requests = 0

    def candidates(self, names: Sequence[str]) -> Candidates:
        """The set of these nodes; neither order nor repetition matters."""
        arrays = self.ledger.arrays
        order = arrays.order
        rows = arrays.rows(names)
        is_known = rows >= 0
        unregistered: tuple[str, ...] = ()
        if not is_known.all():
            unregistered = tuple(dict.fromkeys(names[i] for i in np.flatnonzero(~is_known).tolist()))
            rows = rows[is_known]
        named = np.zeros(len(order.names), dtype=np.bool_)
        named[order.places[rows]] = True
        return Candidates(order, named, unregistered)

    def select(self, pod: PodRequest, candidates: CandidateNames | Sequence[str]) -> Selected | Refused:
        """The best placement, or a misfit for every candidate. Changes nothing but the cache."""
        return self._select(pod, candidates, math.inf)

    def select_in_steps(
        self, alternatives: Sequence[PodRequest], candidates: CandidateNames, work: float = math.inf
    ) -> Generator[None, None, tuple[PodRequest, Selected | Refused]]:
        """The first alternative of a request that fits; if none does, the preferred one with its refusal. Pauses after
        so much work, and answers for the ledger as it is in the end."""
        refusal: tuple[PodRequest, Refused] | None = None
        left = work
        for pod in alternatives:
            answer: Selected | Refused | None = None
            while answer is None:
                try:
                    answer = self._select(pod, candidates, left) if left > 0 else None
                except OutOfWork:
                    answer = None
                if answer is None:
                    yield
                    left = work
            if isinstance(answer, Selected):
                return pod, answer
            left -= self.spent
            refusal = refusal or (pod, answer)
        assert refusal is not None  # there is at least one alternative
        return refusal

    def select_within(
        self, pod: PodRequest, candidates: CandidateNames | Sequence[str], work: float
    ) -> Selected | Refused | Unfinished:
        """The same, but `Unfinished` after `work` checks of one request on one card by the plain rule, or as much work
        of filters."""
        try:
            return self._select(pod, candidates, work)
        except OutOfWork:
            return Unfinished()

    def ask_filters(self, pod: PodRequest, work: float) -> bool:
        """Ask the filters of a pod about the cards that they were not asked about yet: whether that is done. Then the
        decision takes no time for them."""
        try:
            self._cache_of(pod).evaluation.ask_filters(work)
        except OutOfWork:
            return False
        return True

    def _select(self, pod: PodRequest, candidates: CandidateNames | Sequence[str], work: float) -> Selected | Refused:
        ledger = self.ledger
        if isinstance(candidates, Sequence):
            candidates = self.candidates(candidates)
        elif isinstance(candidates, Candidates) and candidates.order is not ledger.arrays.order:
            candidates = self.candidates(candidates.names)
        cache = self._cache_of(pod)
        evaluation = cache.evaluation
        self.asked = self.spent = work
        self.asked = self.spent = evaluation.ask_filters(work)
        if (position := evaluation.too_costly) is not None:
            resolved = candidates.resolve()
            return _refused(resolved, [_too_costly(pod, position)] * len(resolved.rows))
        evaluation.work_left = math.inf
        judged = evaluation.catch_up()
        # Judging and ranking many columns takes its time as well, but must not leave nothing for the plain rule.
        self.spent += judged * evaluation.requests / COLUMNS_OF_A_CHECK
        evaluation.work_left = before = max(work - self.spent, work * LEAST_OF_WORK)
        if evaluation.unknown_vendor is not None:
            unknown = node_misfit(Reason.VENDOR_UNKNOWN, vendor=evaluation.unknown_vendor)
            resolved = candidates.resolve()
            return _refused(resolved, [unknown] * len(resolved.rows))
        rooms = ledger.rooms(pod.namespace, pod.vendors)
        if rooms:
            short = quota.first_shortage(pod, rooms)
            if short is not None:
                resolved = candidates.resolve()
                return _refused(resolved, evaluation.quota_misfits(resolved.rows, rooms, short))
            rooms = quota.rooms_that_may_refuse(pod, rooms, ledger.arrays, ledger.rules)
        found = self._choose(pod, candidates, cache, rooms) or self._refuse(candidates.resolve(), cache, rooms)
        self.spent += before - evaluation.work_left if before < math.inf else 0.0
        return found

    # -- choosing

    def _choose(
        self, pod: PodRequest, candidates: CandidateNames, cache: ShapeCache, rooms: QuotaRooms
    ) -> Selected | None:
        evaluation = cache.evaluation
        ranked = self._rank(pod, candidates, cache, rooms)
        failed: list[int] = []
        absent: list[int] = []
        for i in _candidates_best_first(ranked, candidates, absent):
            row = int(ranked.order.rows[ranked.places[i]])
            answer = evaluation.placement(row, rooms)
            if isinstance(answer, Misfit):
                failed.append(i)
                continue
            ranked.decided[i] = True
            placement = answer._replace(score=float(ranked.scores[i]))
            return Selected(placement, candidates, ranked, tuple(failed), tuple(absent))
        return None

    def _rank(self, pod: PodRequest, candidates: CandidateNames, cache: ShapeCache, rooms: QuotaRooms) -> Ranked:
        arrays, evaluation = self.ledger.arrays, cache.evaluation
        order = arrays.order
        is_ranked = evaluation.possible[order.rows]
        if evaluation.has_vendor_scores:
            # These cost a placement for each node, so only candidates get them.
            is_ranked &= candidates.resolve().named
        places = np.flatnonzero(is_ranked)
        rows = order.rows[places]
        scores: Floats = arrays.score[rows]  # the use of these nodes, with what the vendors add to it
        if evaluation.has_vendor_scores:
            added = [evaluation.vendor_score(row, rooms) for row in rows.tolist()]
            scores = scores + np.array(added, dtype=np.float64)
        preference = policies.rank_nodes(Ranking(pod, rows, scores, arrays, cache.ranking))
        is_exact = evaluation.is_exact and not rooms
        decided = ~arrays.odd[rows] if is_exact else np.zeros(len(rows), dtype=np.bool_)
        return Ranked(order, places, scores, preference, decided)

    # -- refusing

    def _refuse(self, candidates: Candidates, cache: ShapeCache, rooms: QuotaRooms) -> Refused:
        evaluation = cache.evaluation
        if rooms:
            rows = candidates.rows.tolist()
            return _refused(candidates, [_misfit(evaluation.placement(row, rooms)) for row in rows])
        known = cache.refusal
        if known is not None and known[0] is candidates and known[1] == evaluation.version:
            return known[2]
        refused = _refused(candidates, evaluation.misfits(candidates.rows))
        cache.refusal = (candidates, evaluation.version, refused)
        return refused

    # -- caching

    def _cache_of(self, pod: PodRequest) -> ShapeCache:
        shape = pod.shape
        cache = self._shapes.get(shape)
        if cache is None:
            cache = self._shapes[shape] = ShapeCache(Evaluation(self.ledger, pod))
            self._cached_requests += cache.evaluation.requests
            while self._cached_requests > SHAPES and len(self._shapes) > 1:
                _, oldest = self._shapes.popitem(last=False)
                self._cached_requests -= oldest.evaluation.requests
        else:
            self._shapes.move_to_end(shape)
        return cache


def _candidates_best_first(ranked: Ranked, candidates: CandidateNames, absent: list[int]) -> Iterator[int]:
    """Positions in `ranked` of the candidates, the best first. Adds to `absent` what a search did not find."""
    names, places = ranked.order.names, ranked.places
    probed: list[int] = []
    if not isinstance(candidates, Candidates):
        for i in islice(best_first(ranked.preference), PROBES):
            probed.append(i)
            if names[places[i]] in candidates:
                yield i
            else:
                absent.append(i)
        if len(probed) == len(places):
            return
    is_named = candidates.resolve().named[places]
    is_named[probed] = False
    named = np.flatnonzero(is_named)
    for i in best_first(ranked.preference[named]):
        yield int(named[i])


def best_first(preference: Floats) -> Iterator[int]:
    """Positions from the largest preference on, of equal ones the first. All are finite.

    Sorting is put off until the best ones turn out not to fit.
    """
    left = preference.copy()
    first = min(PROBES, len(left))
    for _ in range(first):
        best = int(left.argmax())
        yield best
        left[best] = -np.inf
    if first < len(preference):
        yield from np.argsort(-preference, kind="stable").tolist()[first:]


def _refused(candidates: Candidates, misfits: Sequence[Misfit]) -> Refused:
    by_name = dict(zip(candidates.registered, misfits, strict=True))
    return Refused(by_name | dict.fromkeys(candidates.unregistered, UNREGISTERED))


def _too_costly(pod: PodRequest, position: int) -> Misfit:
    title = container_title(pod.containers[position].name)
    text = f"{title}: its selectors take too much work on the cards of this cluster; see docs/claims.md"
    return node_misfit(Reason.SELECTORS_TOO_COSTLY, container=position, detail=text)


def _misfit(answer: Placement | Misfit) -> Misfit:
    assert isinstance(answer, Misfit)  # every node was just tried
    return answer
