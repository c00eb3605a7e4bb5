"""Chooses a node among candidates: the best one that fits, or the reason for every one.

A decision is a function of the ledger, the request and the set of candidates. What is cached (per shape of pod) is
brought up to date with the ledger's log before it is read, so a cache can make an answer faster but never different.
The cost follows the candidates and what changed since the last pod of the same shape. Nodes are tried from the best
on with the plain rule (`fit.fit_pod`). Equal nodes are decided by name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tessera.core import policies, quota
from tessera.core.arrays import Bools, Ints
from tessera.core.evaluation import UNREGISTERED, Evaluation
from tessera.core.fit import QuotaRooms
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import Misfit, Reason, node_misfit
from tessera.core.policies.base import Floats, Ranking
from tessera.core.requests import PodRequest, Request

SHAPES = 256
"""shapes of pods that are cached; each costs one byte per card and request"""


@dataclass(frozen=True, eq=False)
class Candidates:
    """A set of nodes to choose from, looked up in the arrays. Valid for one epoch of the arrays."""

    epoch: int
    rows: Ints
    """columns of the registered nodes, in the order of their names"""
    unregistered: tuple[str, ...]
    _places: Ints
    _sorted_names: tuple[str, ...]

    @cached_property
    def registered(self) -> tuple[str, ...]:
        """Names of the registered nodes, sorted; they belong to `rows`."""
        return tuple(map(self._sorted_names.__getitem__, self._places.tolist()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self.registered + self.unregistered

    def __len__(self) -> int:
        return len(self.rows) + len(self.unregistered)


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """A placement and the nodes it was chosen from, as they were at that moment."""

    placement: Placement
    candidates: Candidates
    positions: Ints
    """of the candidates that were not ruled out, in the order of their names"""
    scores: Floats
    preference: Floats
    """what the node policy made of the scores: larger is better"""
    decided: Bools
    """whether the pod fits for sure; False if only the plain rule could tell and was not asked"""

    @property
    def fits(self) -> list[tuple[str, float]]:
        """Nodes that were not ruled out with their scores, the chosen one last."""
        return self._best(np.arange(len(self.positions)), len(self.positions))

    def best_decided(self, count: int) -> list[tuple[str, float]]:
        """The best `count` nodes that fit for sure with their scores, the chosen one last."""
        return self._best(np.flatnonzero(self.decided), count)

    def _best(self, among: Ints, count: int) -> list[tuple[str, float]]:
        order = among[np.argsort(-self.preference[among], kind="stable")][:count]
        names, positions = self.candidates.registered, self.positions
        return [(names[positions[i]], float(self.scores[i])) for i in reversed(order.tolist())]


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """No node fits: why, for every candidate. Equal reasons share one object."""

    misfits: Mapping[str, Misfit]


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

    def forget(self) -> None:
        """Drop everything that is cached, because the vendors' rules changed."""
        self._shapes.clear()

    def candidates(self, names: Sequence[str]) -> Candidates:
        """The set of these nodes; neither order nor repetition matters."""
        arrays = self.ledger.arrays
        order = arrays.order
        rows = arrays.rows(names)
        known = rows >= 0
        unregistered: tuple[str, ...] = ()
        if not known.all():
            unregistered = tuple(dict.fromkeys(names[i] for i in np.flatnonzero(~known).tolist()))
            rows = rows[known]
        named = np.zeros(len(arrays.names), dtype=np.bool_)
        named[order.places[rows]] = True
        places = np.flatnonzero(named)
        return Candidates(arrays.epoch, order.rows[places], unregistered, places, order.names)

    def select(self, pod: PodRequest, candidates: Candidates | Sequence[str]) -> Selected | Refused:
        """The best placement, or a misfit for every candidate. Changes nothing but the cache."""
        ledger = self.ledger
        if not isinstance(candidates, Candidates):
            candidates = self.candidates(candidates)
        elif candidates.epoch != ledger.arrays.epoch:
            candidates = self.candidates(candidates.names)
        cache = self._cache_of(pod)
        evaluation = cache.evaluation
        evaluation.catch_up()
        if evaluation.unknown_vendor is not None:
            unknown = node_misfit(Reason.VENDOR_UNKNOWN, vendor=evaluation.unknown_vendor)
            return _refused(candidates, [unknown] * len(candidates.rows))
        rooms = ledger.rooms(pod.namespace, pod.vendors)
        if rooms:
            short = quota.first_shortage(pod, rooms)
            if short is not None:
                return self._refuse_for_quota(pod, candidates, evaluation, rooms, short)
            rooms = quota.rooms_that_may_refuse(pod, rooms, ledger.arrays, ledger.rules)
        return self._choose(pod, candidates, cache, rooms) or self._refuse(pod, candidates, cache, rooms)

    # -- choosing

    def _choose(self, pod: PodRequest, candidates: Candidates, cache: ShapeCache, rooms: QuotaRooms) -> Selected | None:
        arrays, evaluation = self.ledger.arrays, cache.evaluation
        positions = np.flatnonzero(evaluation.possible[candidates.rows])
        rows = candidates.rows[positions]
        scores = self._scores(pod, evaluation, rows, rooms)
        preference = policies.rank_nodes(Ranking(pod, rows, scores, arrays, cache.ranking))
        failed: list[int] = []
        for i in best_first(preference):
            row = int(rows[i])
            answer = evaluation.place(pod, row, rooms) if rooms else evaluation.placement(row)
            if isinstance(answer, Misfit):
                failed.append(i)
                continue
            is_exact = evaluation.is_exact and not rooms
            decided = ~arrays.odd[rows] if is_exact else np.zeros(len(rows), dtype=np.bool_)
            decided[i] = True
            left = np.delete(np.arange(len(rows)), failed) if failed else slice(None)
            return Selected(
                placement=answer._replace(score=float(scores[i])),
                candidates=candidates,
                positions=positions[left],
                scores=scores[left],
                preference=preference[left],
                decided=decided[left],
            )
        return None

    def _scores(self, pod: PodRequest, evaluation: Evaluation, rows: Ints, rooms: QuotaRooms) -> Floats:
        """The use of these nodes, with what the vendors add to it."""
        scores: Floats = self.ledger.arrays.score[rows]
        if evaluation.has_vendor_scores:
            added = [evaluation.vendor_score(pod, row, rooms) for row in rows.tolist()]
            scores = scores + np.array(added, dtype=np.float64)
        return scores

    # -- refusing

    def _refuse(self, pod: PodRequest, candidates: Candidates, cache: ShapeCache, rooms: QuotaRooms) -> Refused:
        evaluation = cache.evaluation
        if rooms:
            rows = candidates.rows.tolist()
            return _refused(candidates, [_misfit(evaluation.place(pod, row, rooms)) for row in rows])
        known = cache.refusal
        if known is not None and known[0] is candidates and known[1] == evaluation.version:
            return known[2]
        refused = _refused(candidates, evaluation.misfits(candidates.rows))
        cache.refusal = (candidates, evaluation.version, refused)
        return refused

    def _refuse_for_quota(
        self,
        pod: PodRequest,
        candidates: Candidates,
        evaluation: Evaluation,
        rooms: QuotaRooms,
        short: tuple[Request, int, int],
    ) -> Refused:
        request, container, cards_paid = short
        misfits = evaluation.quota_misfits(
            pod, candidates.rows, rooms, request=request, container=container, cards_paid=cards_paid
        )
        return _refused(candidates, misfits)

    # -- caching

    def _cache_of(self, pod: PodRequest) -> ShapeCache:
        shape = pod.shape
        cache = self._shapes.get(shape)
        if cache is None:
            cache = self._shapes[shape] = ShapeCache(Evaluation(self.ledger, pod))
            if len(self._shapes) > SHAPES:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(shape)
        return cache


def best_first(preference: Floats) -> Iterator[int]:
    """Positions from the largest preference on, of equal ones the first.

    Sorting is put off until the best one turns out not to fit.
    """
    if not len(preference):
        return
    best = int(preference.argmax())
    yield best
    for i in np.argsort(-preference, kind="stable").tolist():
        if i != best:
            yield i


def _refused(candidates: Candidates, misfits: Sequence[Misfit]) -> Refused:
    by_name = dict(zip(candidates.registered, misfits, strict=True))
    return Refused(by_name | dict.fromkeys(candidates.unregistered, UNREGISTERED))


def _misfit(answer: Placement | Misfit) -> Misfit:
    assert isinstance(answer, Misfit)  # every node was just tried
    return answer
