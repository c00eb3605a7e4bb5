"""Choosing a node among candidates: the best that fits, or the reason for every one.

The cost follows the candidates and what changed since a pod of the same shape was last asked for, not the size of the
cluster nor the number of running pods. Nodes are tried best first with the plain rule, so the answer is always one
that `fitting.fit_pod` gives. Ties are decided by node name; the order of the candidates never matters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from tessera.core import policies, quota
from tessera.core.arrays import Bools, CardArrays, Ints
from tessera.core.evaluation import UNREGISTERED, Evaluation
from tessera.core.fit import Rooms
from tessera.core.glancing import OUT, Absent, Leader, best_first, best_position
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import Misfit, Reason, node_misfit
from tessera.core.policies.base import Floats, Ranking
from tessera.core.requests import PodRequest, Request

SHAPES = 256
"""remembered shapes; each costs a byte a card and request"""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Nodes to choose from, with their columns. Callers that are asked about the same nodes again keep it."""

    names: tuple[str, ...]
    rows: Ints
    """columns of the registered ones"""
    registered: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """A placement and what it was chosen from."""

    placement: Placement
    rows: Ints
    """columns that were not ruled out"""
    scores: Floats
    preference: Floats
    """what the node policy made of the scores: larger is better"""
    ranks: Ints
    candidates: Candidates
    names: Sequence[str]
    """by column"""
    undecided: Bools | None = None
    """by column: the arrays cannot tell whether the pod fits there; None = nowhere they can"""

    @property
    def fits(self) -> list[tuple[str, float]]:
        """Nodes and scores, the chosen one last."""
        return self.best(len(self.rows))

    def certain(self) -> Selected:
        """The same choice with only the nodes that fit for sure. Before nodes come or go."""
        unsure = np.ones(len(self.rows), dtype=np.bool_) if self.undecided is None else self.undecided[self.rows]
        sure = ~unsure
        if len(sure) and not sure.all():
            # The chosen one was tried; it is the best of those that were not found wanting.
            sure[best_position(self.preference, self.ranks)] = True
        return replace(
            self,
            rows=self.rows[sure],
            scores=self.scores[sure],
            preference=self.preference[sure],
            ranks=self.ranks[sure],
        )

    def best(self, count: int) -> list[tuple[str, float]]:
        """The best `count` of them, the chosen one last; costs no sorting of all."""
        chosen = np.arange(len(self.rows))
        if count < len(chosen):
            limit = np.partition(self.preference, -count)[-count]
            above, level = np.flatnonzero(self.preference > limit), np.flatnonzero(self.preference == limit)
            first = level[np.argpartition(self.ranks[level], count - len(above) - 1)[: count - len(above)]]
            chosen = np.concatenate((above, first))
        order = chosen[np.lexsort((-self.ranks[chosen], self.preference[chosen]))]
        return [(self.names[self.rows[i]], float(self.scores[i])) for i in order]


class Glanced(NamedTuple):
    """A placement that was found without looking the candidates up."""

    placement: Placement
    scores: Floats
    """by column, as they were"""
    preference: Floats
    arrays: CardArrays
    undecided: Bools | None

    def among(self, candidates: Candidates) -> Selected:
        """The same choice with all that it was chosen from. Before nodes come or go."""
        rows = candidates.rows[self.preference[candidates.rows] != OUT]
        ranks, names = self.arrays.ranks[rows], self.arrays.names
        scores, preference = self.scores[rows], self.preference[rows]
        return Selected(self.placement, rows, scores, preference, ranks, candidates, names, self.undecided)


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """No node fits: why, for every candidate. Equal reasons share one object."""

    misfits: Mapping[str, Misfit]


@dataclass(slots=True)
class Memory:
    """What is remembered of one shape: its evaluation, and the last refusal while nothing about it has changed."""

    evaluation: Evaluation
    refusal: tuple[Candidates, int, Refused] | None = None
    policy: dict[str, object] = field(default_factory=dict)
    """what the node policy wants to find again"""
    leader: Leader = field(default_factory=Leader)


class Selector:
    """Chooses on one ledger and remembers shapes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._shapes: OrderedDict[Hashable, Memory] = OrderedDict()
        self._everyone = Candidates((), np.zeros(0, dtype=np.int64), (), -1)
        self._absent = Absent()

    def forget(self) -> None:
        """Drop all remembered shapes, because the rules themselves changed."""
        self._shapes.clear()

    def candidates(self, names: Sequence[str]) -> Candidates:
        """Look the names up once."""
        unique = tuple(dict.fromkeys(names))
        arrays = self.ledger.arrays
        rows = arrays.rows(unique)
        known = rows >= 0
        registered = unique if known.all() else tuple(n for n, k in zip(unique, known.tolist(), strict=True) if k)
        return Candidates(unique, rows[known], registered, arrays.epoch)

    def all_nodes(self) -> Candidates:
        """All that are registered; the same object while they stay the same."""
        if self._everyone.epoch != self.ledger.arrays.epoch:
            self._everyone = self.candidates(self.ledger.node_names())
        return self._everyone

    def glimpse(self, pod: PodRequest, allowed: Callable[[str], bool], likeness: int) -> Placement | None:
        """What `glance` would choose, from no more than the last choice for a pod of this shape and what changed since.

        Of two equal numbers the same nodes are believed to be allowed, for a while: see `Absent`. None says nothing.
        """
        memory = self._caught_up(pod)
        sign = policies.sign_of_score(pod.node_policy)
        if memory is None or sign is None:
            return None
        arrays, evaluation = self.ledger.arrays, memory.evaluation
        column = self._absent.best_again(
            memory.leader, arrays, evaluation.possible, allowed, sign=sign, likeness=likeness
        )
        return None if column is None else self._placed(evaluation, column)

    def glance(self, pod: PodRequest, allowed: Callable[[str], bool], likeness: int = -1) -> Glanced | None:
        """What `select` would choose among the nodes that are `allowed`, without knowing all of these.

        The best of all nodes, where it is allowed, is the best of those that are allowed. None says nothing: it was not
        found among the first few, or the choice is not that simple.
        """
        memory = self._caught_up(pod)
        if memory is None:
            return None
        evaluation = memory.evaluation
        arrays, possible = self.ledger.arrays, evaluation.possible
        scores = arrays.score[: len(possible)].copy()
        sign = policies.sign_of_score(pod.node_policy)
        if sign is not None:
            preference: Floats = np.where(possible, scores if sign > 0 else -scores, OUT)
        else:
            rows = np.flatnonzero(possible)
            preference = np.full(len(possible), OUT)
            preference[rows] = self._rank(pod, memory, rows, {})[1]
        column = self._absent.best(arrays, preference, allowed)
        placement = None if column is None else self._placed(evaluation, column)
        if column is None or placement is None:
            return None
        if sign is not None:
            self._absent.note(memory.leader, arrays, preference, column, likeness=likeness)
        undecided = arrays.odd if evaluation.is_exact else None
        return Glanced(placement, scores, preference, arrays, undecided)

    def select(self, pod: PodRequest, candidates: Candidates | Sequence[str]) -> Selected | Refused:
        """The best placement, or a misfit for every candidate. Changes nothing but the memory of shapes."""
        ledger = self.ledger
        if not isinstance(candidates, Candidates):
            candidates = self.candidates(candidates)
        elif candidates.epoch != ledger.arrays.epoch:
            candidates = self.candidates(candidates.names)
        memory = self._recall(pod)
        evaluation = memory.evaluation
        evaluation.catch_up()
        if evaluation.unknown_vendor is not None:
            unknown = node_misfit(Reason.VENDOR_UNKNOWN, vendor=evaluation.unknown_vendor)
            return self._refused(candidates, [unknown] * len(candidates.rows))
        rooms = ledger.rooms(pod.namespace, pod.vendors)
        if rooms:
            short = quota.first_shortage(pod, rooms)
            if short is not None:
                return self._refuse_for_quota(pod, candidates, evaluation, rooms, short)
            rooms = quota.binding(pod, rooms, ledger.arrays, ledger.rules)
        rows = candidates.rows[evaluation.possible[candidates.rows]]
        chosen = self._choose(pod, candidates, memory, rows, rooms)
        if chosen is not None:
            return chosen
        return self._refuse(pod, candidates, memory, rooms)

    # -- choosing

    def _caught_up(self, pod: PodRequest) -> Memory | None:
        """What is known about the pod's shape, judged anew; None where the best of all nodes may not do."""
        memory = self._recall(pod)
        evaluation = memory.evaluation
        evaluation.catch_up()
        if evaluation.unknown_vendor is not None or evaluation.scored or not len(evaluation.possible):
            return None
        return None if self.ledger.rooms(pod.namespace, pod.vendors) else memory

    def _placed(self, evaluation: Evaluation, column: int) -> Placement | None:
        """The placement on a column, with its score; None where only the plain rule knew that the pod does not fit."""
        answer = evaluation.placement(column)
        if isinstance(answer, Misfit):
            return None
        return Placement(answer.node, answer.grants, float(self.ledger.arrays.score[column]))

    def _choose(
        self, pod: PodRequest, candidates: Candidates, memory: Memory, rows: Ints, rooms: Rooms
    ) -> Selected | None:
        arrays, evaluation = self.ledger.arrays, memory.evaluation
        scores, preference, ranks = self._rank(pod, memory, rows, rooms)
        failed: list[int] = []
        for i in best_first(preference, ranks):
            row = int(rows[i])
            answer = evaluation.place(pod, row, rooms) if rooms else evaluation.placement(row)
            if isinstance(answer, Placement):
                left = np.delete(np.arange(len(rows)), failed) if failed else slice(None)
                return Selected(
                    placement=answer._replace(score=float(scores[i])),
                    rows=rows[left],
                    scores=scores[left],
                    preference=preference[left],
                    ranks=ranks[left],
                    candidates=candidates,
                    names=arrays.names,
                    undecided=arrays.odd if evaluation.is_exact and not rooms else None,
                )
            failed.append(i)
        return None

    def _rank(self, pod: PodRequest, memory: Memory, rows: Ints, rooms: Rooms) -> tuple[Floats, Floats, Ints]:
        """Scores, what the node policy makes of them, and the order of names."""
        arrays, evaluation = self.ledger.arrays, memory.evaluation
        scores: Floats = arrays.score[rows]
        if evaluation.scored:
            scores = scores + np.array(
                [evaluation.vendor_score(pod, row, rooms) for row in rows.tolist()], dtype=np.float64
            )
        rank = policies.node_rank(pod.node_policy)
        return scores, rank(Ranking(pod, rows, scores, arrays, memory.policy)), arrays.ranks[rows]

    # -- refusing

    def _refuse(self, pod: PodRequest, candidates: Candidates, memory: Memory, rooms: Rooms) -> Refused:
        evaluation = memory.evaluation
        if rooms:
            rows = candidates.rows.tolist()
            return self._refused(candidates, [_misfit(evaluation.place(pod, row, rooms)) for row in rows])
        known = memory.refusal
        if known is not None and known[0] is candidates and known[1] == evaluation.changed:
            return known[2]
        refused = self._refused(candidates, evaluation.misfits(candidates.rows))
        memory.refusal = (candidates, evaluation.changed, refused)
        return refused

    def _refused(self, candidates: Candidates, misfits: Sequence[Misfit]) -> Refused:
        if len(candidates.registered) == len(candidates.names):
            return Refused(dict(zip(candidates.names, misfits, strict=True)))
        known = dict(zip(candidates.registered, misfits, strict=True))
        return Refused({name: known.get(name, UNREGISTERED) for name in candidates.names})

    # -- quota

    def _refuse_for_quota(
        self,
        pod: PodRequest,
        candidates: Candidates,
        evaluation: Evaluation,
        rooms: Rooms,
        short: tuple[Request, int, int],
    ) -> Refused:
        request, container, cards_paid = short
        misfits = evaluation.quota_misfits(
            pod, candidates.rows, rooms, request=request, container=container, cards_paid=cards_paid
        )
        return self._refused(candidates, misfits)

    # -- memory

    def _recall(self, pod: PodRequest) -> Memory:
        shape = pod.shape
        memory = self._shapes.get(shape)
        if memory is None:
            memory = self._shapes[shape] = Memory(Evaluation(self.ledger, pod))
            if len(self._shapes) > SHAPES:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(shape)
        return memory


def _misfit(answer: Placement | Misfit) -> Misfit:
    assert isinstance(answer, Misfit)  # every node was just tried
    return answer
