"""Where pods that move go, tried in a transaction.

A move needs its target while the pod still holds its old place: the target is held first, then the pod is evicted, then
its successor takes what is held. So a pod's target never relies on what the pod itself, or a later move, frees.

A target is the tightest: of all cards that take the pod, the one on which the least is left. The plain rule of `fit`
then makes the placement on this card. A move is neutral for quotas, so targets are held in no namespace. Hosts whose
free CPU and memory are known must have room for the pod as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tessera.core.fit import screen
from tessera.core.fit.card_rules.amounts import memory_asked, memory_wanted
from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.holders import GrantState, HolderKind, move_hold_uid
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of, replay
from tessera.core.ledger.transaction import Transaction
from tessera.core.model.arrays import UNKNOWN, Bools, Ints
from tessera.core.model.devices import MIG, MigSlot
from tessera.core.model.grants import Placement
from tessera.core.model.mig import place_choices, smallest_places
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import Constraint, ContainerRequest, HostRequest, PodRequest, Request
from tessera.core.search.evaluation import Evaluation
from tessera.core.search.selection import CandidateNames, Candidates

NO_HOST = HostRequest()
FAR = np.iinfo(np.int64).max


class MovablePod(NamedTuple):
    """What the successor of a running pod asks for."""

    request: PodRequest
    """under the pod's own uid and name"""
    candidates: Candidates | None = None
    """nodes that it may go to; None: all"""
    host: HostRequest = NO_HOST
    is_bare: bool = False
    """nothing creates it again: of sets with as many pods, those without it are better"""


class Move(NamedTuple):
    """One pod, from where it is to where its successor goes."""

    uid: str
    source: PodFacts
    target: PodFacts

    @property
    def key(self) -> str:
        return f"{self.source.namespace}/{self.source.name}"


def cards_of(facts: PodFacts) -> tuple[str, ...]:
    """The uuids of the cards that a pod has, sorted."""
    grants = (grant for containers in facts.grants.values() for grants in containers for grant in grants)
    return tuple(sorted({grant.uuid for grant in grants}))


Instances = tuple[tuple[str, MigSlot], ...]


def instances_of(facts: PodFacts) -> Instances:
    """The MIG instances that a pod has, with the uuids of their cards, sorted."""
    grants = (grant for containers in facts.grants.values() for grants in containers for grant in grants)
    found = [(grant.uuid, grant.mig) for grant in grants if grant.mig is not None]
    return tuple(sorted(found, key=lambda each: (each[0], each[1].placement)))


class Relocation:
    """Places for pods that move, in one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.ledger = transaction.ledger
        self._evaluations: dict[Hashable, Evaluation] = {}
        self._places: dict[tuple[tuple[int, ...], int, int], int] = {}

    def put(self, facts: PodFacts, host: HostRequest = NO_HOST) -> None:
        """Place a pod, or move it if it is there already; then its host's load moves with it."""
        self.remove(facts.uid, host)
        self.transaction.put(facts, GrantState.BOUND, observed=True)
        self._load(facts.node, host)

    def remove(self, uid: str, host: HostRequest = NO_HOST) -> None:
        entry = self.transaction.remove(uid)
        if entry is not None:
            self._load(entry.facts.node, HostRequest(-host.cpu, -host.memory))

    def _load(self, node: str, host: HostRequest) -> None:
        free = self.ledger.arrays.host_free(node)
        if free is not None and host != NO_HOST:
            self.transaction.observe_host(node, HostRequest(free[0] - host.cpu, free[1] - host.memory))

    # -- targets

    def find_target(
        self, request: PodRequest, candidates: Candidates | None, host: HostRequest = NO_HOST
    ) -> Placement | None:
        """The tightest place for a pod; None if it fits nowhere."""
        for row, uuid in self._tightest(request, self._rows(request, candidates, host)):
            pinned = pin(request, (uuid,)) if uuid else request
            placement = self.place_on(pinned, self.ledger.arrays.names[row])
            if placement is not None:
                return placement
        return None

    def place_on(self, request: PodRequest, node: str) -> Placement | None:
        """By the plain rule."""
        view = self.ledger.node(node)
        rooms = self.ledger.rooms(request.namespace, request.vendors) if request.namespace else {}
        answer = None if view is None else fit_pod(view, request, self.ledger.rules, rooms)
        return answer if isinstance(answer, Placement) else None

    def has_host_room(self, node: str, host: HostRequest) -> bool:
        free = self.ledger.arrays.host_free(node)
        return free is None or (free[0] >= host.cpu and free[1] >= host.memory)

    def _rows(self, request: PodRequest, candidates: Candidates | None, host: HostRequest) -> Ints:
        """Columns that the arrays do not rule out."""
        arrays = self.ledger.arrays
        known = self._evaluations.get(request.shape)
        if known is None:
            known = self._evaluations[request.shape] = Evaluation(self.ledger, request)
        known.catch_up()
        if known.unknown_vendor is not None:
            return np.zeros(0, dtype=np.int64)
        possible: Bools = known.possible.copy()
        if candidates is not None:
            allowed = np.zeros(len(possible), dtype=np.bool_)
            rows = candidates.rows if candidates.order is arrays.order else arrays.rows(candidates.names)
            allowed[rows[rows >= 0]] = True
            possible &= allowed
        if host != NO_HOST:
            cpu, memory = arrays.free_cpu[: len(possible)], arrays.free_memory[: len(possible)]
            possible &= (cpu == UNKNOWN) | ((cpu >= host.cpu) & (memory >= host.memory))
        return np.flatnonzero(possible)

    def _tightest(self, request: PodRequest, rows: Ints) -> Iterator[tuple[int, str]]:
        """Columns with a card, the tightest first; no card where the plain rule has to choose."""
        arrays = self.ledger.arrays
        if not len(rows):
            return
        rows = rows[np.argsort(arrays.order.places[rows], kind="stable")]
        asked = request.requests[0][1]
        rules = self.ledger.rules[asked.vendor]
        if (
            len(request.requests) > 1
            or asked.count > 1
            or not rules.arrays_exact
            or request.numa_bind
            or request.matches
        ):
            if len(request.requests) == 1 and rules.arrays_exact:
                rows = rows[self._takes_enough(request, asked, rows)]
            yield from ((row, "") for row in rows[np.argsort(-arrays.score[rows], kind="stable")].tolist())
            return
        # Of one card for one container the arrays know all, but for claims, and on nodes with too many cards.
        odd = arrays.odd[rows] & ((asked.accepts is not None) | (arrays.kind[:, rows] < 0).all(axis=0))
        plain = rows[~odd]
        takes = screen.judge(arrays, screen.question(request, asked, rules), plain) == screen.TAKES
        if arrays.odd[plain].any():
            takes &= screen.has_instance(arrays, asked, plain)
        memory = arrays.memory[:, plain]
        left = memory - arrays.used_memory[:, plain] - memory_asked(asked, memory)
        slack = np.where(takes, left, FAR)
        flat = slack.ravel()
        few = min(len(flat), 4)
        best = np.argpartition(flat, few - 1)[:few] if few else np.zeros(0, dtype=np.intp)
        for i in best[np.lexsort((best, flat[best]))].tolist():
            if flat[i] < FAR:
                place, column = divmod(i, len(plain))
                row = int(plain[column])
                yield row, self._uuid(row, place)
        yield from ((row, "") for row in rows[odd].tolist())

    def _takes_enough(self, request: PodRequest, asked: Request, rows: Ints) -> Bools:
        """Columns that are not ruled out: their cards, in MIG mode by their free places, take the request often enough.
        The plain rule takes too long to be asked about each of thousands."""
        arrays = self.ledger.arrays
        codes = screen.judge(arrays, screen.question(request, asked, self.ledger.rules[asked.vendor]), rows)
        kinds, taken = arrays.kind[:, rows], arrays.taken[:, rows]
        times = np.ones(kinds.shape, dtype=np.int64)
        for number, kind in enumerate(arrays.kinds):
            if kind.sample.mode == MIG:
                memory = memory_wanted(asked, kind.sample)
                places = smallest_places(each for each in kind.sample.mig_profiles if each.memory >= memory)
                of_kind = kinds == number
                states, state_of = np.unique(taken[of_kind], return_inverse=True)
                free = [self._free_places(places, int(state), asked.count) for state in states]
                times[of_kind] = np.array(free, dtype=np.int64)[state_of]
        enough: Bools = np.where(codes == screen.TAKES, times, 0).sum(axis=0) >= asked.count
        return enough

    def _free_places(self, places: tuple[int, ...], taken: int, most: int) -> int:
        """How many of the places are free, side by side."""
        key = places, taken, most
        if key not in self._places:
            choices = place_choices(places, blocked=taken, most=most)
            self._places[key] = max((number for number, _ in choices), default=0)
        return self._places[key]

    def _uuid(self, row: int, place: int) -> str:
        places = self.ledger.arrays.places_on(self.ledger.arrays.names[row])
        return next(uuid for uuid, position in places.items() if position == place)


def pin(request: PodRequest, uuids: Sequence[str], instances: Instances = ()) -> PodRequest:
    """The same pod, which accepts these cards only, and on cards in MIG mode these instances, if there are any."""

    def pinned(constraint: Constraint) -> Constraint:
        return replace(constraint, use_uuids=tuple(uuids), instances=instances)

    constraints = {**dict(request.constraints), **{each: pinned(request.constraint(each)) for each in request.vendors}}
    containers = tuple(_constrain_claims(container, pinned) for container in request.containers)
    return replace(request, containers=containers, constraints=tuple(sorted(constraints.items())))


def _constrain_claims(container: ContainerRequest, narrow: Callable[[Constraint], Constraint]) -> ContainerRequest:
    if all(asked.accepts is None for asked in container.requests):
        return container
    narrowed = tuple(
        asked if asked.accepts is None else replace(asked, accepts=narrow(asked.accepts))
        for asked in container.requests
    )
    return replace(container, requests=narrowed)


def pin_to(request: PodRequest, target: PodFacts) -> PodRequest:
    """The same pod, which accepts this place only."""
    return pin(request, cards_of(target), instances_of(target))


def fit_held(ledger: Ledger, request: PodRequest, held: PodFacts) -> tuple[PodRequest, Placement] | None:
    """What a pod gets for which this place was held, and the request by which: this place, if it still fits and the
    plain rule would take another; else what the plain rule says. None: it does not fit on the node any more."""
    plain = fit_on(ledger, request, held.node)
    if plain is not None and _is_at(facts_of(request, plain), held):
        return request, plain
    for pinned in (pin_to(request, held), pin(request, cards_of(held))):
        there = fit_on(ledger, pinned, held.node)
        if there is not None:
            return pinned, there
    return None if plain is None else (request, plain)


def take_moved(
    ledger: Ledger, request: PodRequest, workload: Hashable, named: CandidateNames
) -> tuple[PodRequest, Placement] | None:
    """The place on one of these nodes that is held for this pod or its workload because pods are moved, with the
    request that leads to it; it is free for the pod from now on. A place that does not fit any more is dropped."""
    for holder in ledger.holds.meant_for(HolderKind.MOVE, request.uid, workload):
        if holder.node in named and ledger.is_free(holder):
            ledger.release(holder.uid)
            found = fit_held(ledger, request, holder.facts)
            if found is not None:
                return found
    return None


def _is_at(facts: PodFacts, place: PodFacts) -> bool:
    return cards_of(facts) == cards_of(place) and instances_of(facts) == instances_of(place)


def fit_on(ledger: Ledger, request: PodRequest, node: str) -> Placement | None:
    """By the plain rule."""
    view, rooms = ledger.node(node), ledger.rooms(request.namespace, request.vendors)
    answer = None if view is None else fit_pod(view, request, ledger.rules, rooms)
    return answer if isinstance(answer, Placement) else None


def replay_moves(
    ledger: Ledger,
    steps: Sequence[Sequence[Move]],
    pods: Mapping[str, MovablePod],
    gained: Sequence[tuple[PodRequest, PodFacts]],
    *,
    fitting: Sequence[PodFacts] = (),
    leaving: Iterable[str] = (),
) -> str:
    """Makes each step after those before it, then places what is gained once the `leaving` pods have left: by the plain
    rule, on copies of the nodes, beside what is `fitting` already. Empty, or what does not fit.

    The targets of one step are held together before its first pod leaves.
    """
    moves = [move for step in steps for move in step]
    names = sorted(
        {name for move in moves for name in (move.source.node, move.target.node)} | {facts.node for _, facts in gained}
    )
    copy = replay(
        ledger.rules,
        nodes=[view.facts for name in names if (view := ledger.node(name)) is not None],
        pods=[
            *(entry.facts for name in names for entry in ledger.pods_on(name)),
            *(facts for facts in fitting if facts.node in names),
        ],
    )
    for step in steps:
        for move in step:
            held = move.target._replace(uid=move_hold_uid(move.uid))
            if not _fits_exactly(copy, pods[move.uid].request, held):
                return f"{move.key} does not fit on {held.node}"
            copy.observe_pod(held)
        for move in step:
            copy.release(move_hold_uid(move.uid))
            copy.observe_pod(move.target)
    for uid in leaving:
        copy.release(uid)
    for request, facts in gained:
        if not _fits_exactly(copy, request, facts):
            return f"{facts.name} does not fit on {facts.node}"
        copy.observe_pod(facts)
    return ""


def _fits_exactly(ledger: Ledger, request: PodRequest, target: PodFacts) -> bool:
    view = ledger.node(target.node)
    answer = None if view is None else fit_pod(view, pin_to(request, target), ledger.rules, {})
    return not (answer is None or isinstance(answer, Misfit)) and _is_at(facts_of(request, answer), target)
