"""Rounds on a schedule: who waits and gains by moves, and which moves.

    who waits? ──▶ plan, in slices ──▶ hold what is gained ──▶ move, step by step ──▶ the pod that waited is bound
                    └──▶ none helps: the next one

A round ends when none that waits gains, the budget is used up, or the cluster deviates from a plan. None begins while
moves are made. A plan is found on a copy of the ledger, between other requests, and judged by the ledger itself when
its places are held. What the ledger does not know of pods and nodes, their node selectors, affinities, tolerations and
taints, is listed in the round.

How many evictions are left in the last hour is counted over restarts and changes of the leader. The record is an
annotation of a Lease that no process holds: one time for each eviction, written *before* it, for the version that was
read. So a process that dies counts at most one step too much, and of two processes that believe to decide only one can
spend. What cannot be read counts as a full hour of evictions.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import structlog

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.requests import PodRequest
from tessera.core.search.defragmentation import copy_in_steps, plan_room
from tessera.core.search.move_planner import DefragmentationPlan, Goal
from tessera.core.search.relocation import NO_HOST, MovablePod
from tessera.core.search.selection import Candidates, Selector
from tessera.kube.errors import KubeError, is_conflict
from tessera.kube.resources import NODES, PODS
from tessera.scheduler.clock import Clock
from tessera.scheduler.eviction.preemption_loop import finish_in_slices
from tessera.scheduler.features.moves.holds import PlaceHeld, held_facts
from tessera.scheduler.features.moves.plan_run import Beneficiary, PlannedMove, PlanRun, planned_move
from tessera.scheduler.framework import Pipeline
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.movable_pods import MovablePods
from tessera.scheduler.node_filters import FilteredNode, NodeTraits, pod_constraints
from tessera.scheduler.pod_cycle import CycleState
from tessera.wire.moves import MoveStage
from tessera.wire.objects import Pod, PodSpec

HOUR_S = 3600.0
LEASE = "tessera-defrag"
ANNOTATION = "tessera.io/evictions"
LONGEST = 65_536
"""characters of the annotation that are read: some thousand times"""


class EvictionBudget:
    """The evictions of the last hour. How long ago they were is read from the record once, and measured from there: a
    wall clock that is set gives no evictions and takes none for longer than an hour."""

    def __init__(self, api: KubeApi, clock: Clock, *, per_hour: int, namespace: str | None = None) -> None:
        """`namespace` of the record; None: that of the client."""
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._per_hour = per_hour
        self._version = ""
        """of the record; empty: there is none"""
        self._known: tuple[str, list[float]] = ("[]", [])
        """the record as it was read or written last, and its times by the monotonic clock"""

    def left(self) -> int:
        """As far as is known since the last `load`."""
        return max(0, self._per_hour - len(self._recent()))

    async def load(self) -> None:
        """Read the record. Raises KubeError."""
        found = await self._api.find_record(self._namespace, LEASE)
        annotations = (found.metadata.annotations if found is not None else None) or {}
        self._version = "" if found is None else found.metadata.resource_version
        text = annotations.get(ANNOTATION, "[]")
        if text != self._known[0]:
            self._known = text, self._read(text)

    async def spend(self, count: int) -> bool:
        """Count so many evictions, if that many are left. Raises KubeError: then none may follow."""
        await self.load()
        times = [*self._recent(), *[self._clock.monotonic()] * count]
        if len(times) > self._per_hour:
            return False
        ahead = self._clock.now() - self._clock.monotonic()
        text = msgspec.json.encode([round(time + ahead) for time in times]).decode()
        try:
            await self._api.write_record(self._namespace, LEASE, {ANNOTATION: text}, version=self._version)
        except KubeError as error:
            if is_conflict(error):
                return False  # Another process spends.
            raise
        self._known = text, times
        return True

    def _recent(self) -> list[float]:
        return [time for time in self._known[1] if time > self._clock.monotonic() - HOUR_S]

    def _read(self, text: str) -> list[float]:
        now, clock = self._clock.now(), self._clock.monotonic()
        try:
            if len(text) > LONGEST:
                raise msgspec.DecodeError("too long")
            times = msgspec.json.decode(text, type=list[int])
        except (msgspec.MsgspecError, UnicodeError):
            return [clock] * self._per_hour
        # One from the future, by a clock that was wrong, counts from now on.
        return [clock - max(0.0, now - time) for time in times]


log = structlog.get_logger(__name__)

MAX_PLANS = 20
"""kinds of waiting pods that are planned for in one round: each takes up to some seconds"""
LEFT_ALONE_S = 3600.0
"""after evictions that did not help a pod: no others are made for it"""
SLICE_S = 0.005
"""of planning between other requests"""
PODS_AT_ONCE = 100
"""read between two pauses"""


class Outcome(Enum):
    """Why a round ended."""

    IDLE = "idle"
    """nothing waits for long enough"""
    NO_GAIN = "no-gain"
    """no moves help, or too many for the budget"""
    BUSY = "busy"
    """other moves are under way"""
    MOVED = "moved"
    PLANNED = "planned"
    """with --defrag-dry-run"""
    STOPPED = "stopped"
    """the cluster deviated from a plan"""


@dataclass(slots=True)
class RoundFigures:
    """For metrics; totals since the start."""

    waiting: int = 0
    """pods and gangs that waited for long enough in the last round"""
    plans: int = 0
    moves: int = 0
    stops: int = 0
    rounds: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    last_round: float = 0.0
    """unix seconds when it ended; 0: none has yet"""


class Demand(NamedTuple):
    """A pod, or a gang of pods that are alike."""

    name: str
    pods: tuple[PodRequest, ...]
    """that must fit together"""
    candidates: Candidates
    since: float
    """on the monotonic clock"""

    @property
    def priority(self) -> int:
        return min(pod.priority for pod in self.pods)

    @property
    def kind(self) -> Hashable:
        """Those for which the same moves are found."""
        request = self.pods[0]
        return request.shape, request.namespace, self.candidates.fingerprint, len(self.pods), self.priority


class _ConstrainedSpec(PodSpec, frozen=True):
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    tolerations: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def constraints(self) -> Hashable:
        return tuple(sorted((self.node_selector or {}).items())), bytes(self.affinity), bytes(self.tolerations)


class ConstrainedPod(Pod, frozen=True):
    """With what decides which nodes kube-scheduler allows."""

    spec: _ConstrainedSpec = _ConstrainedSpec()


@contextmanager
def collector_paused() -> Iterator[None]:
    """The garbage collector would look at the whole copy of the ledger at once, and find nothing: 170 ms in which no
    request is answered, at 5000 nodes. Reference counts end the copy."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Rounds:
    """Makes rounds; one at a time."""

    def __init__(
        self, pipeline: Pipeline, make: Callable[[PlanRun], Awaitable[bool]], is_busy: Callable[[], bool]
    ) -> None:
        """`make`: makes the moves of a plan. `is_busy`: whether others are made."""
        self._pipeline = pipeline
        self._settings = pipeline.settings.defrag
        self._make = make
        self._is_busy = is_busy
        self._ledger = pipeline.cycles.ledger
        self.budget = EvictionBudget(
            pipeline.api,
            pipeline.clock,
            per_hour=self._settings.evictions_per_hour,
            namespace=self._settings.lease_namespace,
        )
        self.figures = RoundFigures()
        self._since: dict[str, float] = {}
        """when a pod was first refused, by uid"""
        self._in_vain: dict[str, float] = {}
        """uids of pods that wait, and until when they are left alone"""

    # -- told by the pipeline

    def note_refused(self, uid: str) -> None:
        self._since.setdefault(uid, self._pipeline.clock.monotonic())

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone."""
        self._since.pop(uid, None)
        self._in_vain.pop(uid, None)

    def tick(self) -> None:
        """Forget pods that were gone when something was noted of them."""
        cycles = self._pipeline.cycles
        for uid in [uid for uid in {**self._since, **self._in_vain} if cycles.get(uid) is None]:
            self.forget(uid)

    # -- rounds

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            if not self._pipeline.may_preempt():
                continue
            try:
                outcome = await self.make_round()
                self.figures.rounds[outcome] += 1
                log.info(
                    "round", outcome=outcome.value, waiting=self.figures.waiting, evictions_left=self.budget.left()
                )
            except KubeError as error:
                log.warning("round failed", error=str(error))
            self.figures.last_round = self._pipeline.clock.now()

    async def make_round(self) -> Outcome:
        """Raises KubeError."""
        outcome = Outcome.NO_GAIN
        while True:
            if self._is_busy():
                return Outcome.BUSY if outcome is Outcome.NO_GAIN else outcome
            demand = self._demand()
            self.figures.waiting = len(demand)
            found = await self._plan_first(
                [who for who in demand if not any(pod.uid in self._in_vain for pod in who.pods)]
            )
            if found is None or self._is_busy() or not self._pipeline.may_preempt():
                return Outcome.IDLE if not demand and outcome is Outcome.NO_GAIN else outcome
            self.figures.plans += 1
            who, plan = found
            moves = [planned_move(number, move) for number, step in enumerate(plan.steps) for move in step]
            log.info("plan", waiting=who.name, moves=[move.text for move in moves])
            if self._settings.dry_run:
                return Outcome.PLANNED
            if not await self._apply(who, plan, moves):
                return Outcome.STOPPED
            outcome = Outcome.MOVED

    async def _apply(self, who: Demand, plan: DefragmentationPlan, moves: Sequence[PlannedMove]) -> bool:
        """Whether all moves were made, and the pods bound for which they were."""
        run = PlanRun(
            self._pipeline,
            moves,
            step_timeout_s=self._settings.step_timeout_s,
            beneficiaries=_beneficiaries(who, plan, moves),
            spend=self.budget.spend,
        )
        is_made = await self._make(run)
        self.figures.moves += sum(each.stage is MoveStage.MOVED for each in run.progress)
        if not is_made:
            self.figures.stops += 1
            if run.has_evicted:
                until = self._pipeline.clock.monotonic() + LEFT_ALONE_S
                self._in_vain |= {pod.uid: until for pod in who.pods}
        return is_made

    # -- who waits

    def _demand(self) -> list[Demand]:
        """What waits for longer than the patience, the highest priority first, then the longest wait. Left out are pods
        that other means are about to help: those that preemption has nominated, and gangs that are not complete."""
        now = self._pipeline.clock.monotonic()
        self._in_vain = {uid: until for uid, until in self._in_vain.items() if until > now}
        # A pod whose claims are all allocated asks for no card any more: moves do not help it.
        patient = [
            who for who in self._waiting() if who.since + self._settings.patience_s <= now and who.pods[0].requests
        ]
        return sorted(patient, key=lambda who: (-who.priority, who.since, who.name))

    def _waiting(self) -> Iterator[Demand]:
        cycles = self._pipeline.cycles
        for pod in cycles.unschedulable:
            request, cycle = pod.request, cycles.get(pod.request.uid)
            since = self._since.get(request.uid)
            if since is not None and cycle is not None and cycle.state is CycleState.REFUSED and pod.is_judged:
                yield Demand(f"{request.namespace}/{request.name}", (request,), pod.candidates, since)
        for group in self._pipeline.waiting_groups():
            times = [self._since.get(request.uid) for request in group.requests]
            known = [time for time in times if time is not None]
            if len(known) == len(times) and len({request.shape for request in group.requests}) == 1:
                yield Demand(group.name, group.requests, group.candidates, max(known))

    # -- the plan

    async def _plan_first(self, demand: Sequence[Demand]) -> tuple[Demand, DefragmentationPlan] | None:
        """The first that gains by moves, and how."""
        if not demand:
            return None
        left = self._settings.max_moves
        if not self._settings.dry_run:
            await self.budget.load()
            left = min(left, self.budget.left())
        if not left:
            return None
        with collector_paused():
            return await self._search(demand, left)

    async def _search(self, demand: Sequence[Demand], left: int) -> tuple[Demand, DefragmentationPlan] | None:
        tried: set[Hashable] = set()
        ledger = await finish_in_slices(copy_in_steps(self._ledger), seconds=SLICE_S)
        selector = Selector(ledger)
        movable = await self._movable(selector)
        book = self._pipeline.evictor.book
        book.forget_overdue()
        for who in demand:
            if len(tried) == MAX_PLANS or who.kind in tried:
                continue
            tried.add(who.kind)
            request, candidates = who.pods[0], selector.candidates(who.candidates.names)
            goal = Goal(request, len(who.pods), candidates, request.host or NO_HOST)
            planning = plan_room(ledger, book, movable, goal, max_moves=left, highest_priority=who.priority)
            plan = await finish_in_slices(planning, seconds=SLICE_S)
            if plan.steps and plan.fitting + len(plan.gained) >= len(who.pods):
                return who, plan
        return None

    async def _movable(self, selector: Selector) -> dict[str, MovablePod]:
        """Reads all pods, and the nodes as kube-scheduler sees them."""
        api, reader = self._pipeline.api, self._pipeline.request_reader
        nodes: list[NodeTraits] = []
        async for node_page in api.pages(NODES, FilteredNode):
            nodes = [] if node_page.is_first else nodes
            nodes += [node.traits for node in node_page.items]
            await asyncio.sleep(0)
        allowed: dict[Hashable, Candidates] = {}
        found = MovablePods(selector.ledger, reader.vendors, reader.read, with_bare=False)
        async for page in api.pages(PODS, ConstrainedPod):
            if page.is_first:
                found = MovablePods(selector.ledger, reader.vendors, reader.read, with_bare=False)
            for number, pod in enumerate(page.items, 1):
                key = pod.spec.constraints
                if key not in allowed and selector.ledger.pod(pod.metadata.uid) is not None:
                    allowed[key] = selector.candidates(await _allowed(nodes, pod.spec))
                found.add(pod, lambda key=key: allowed[key])  # type: ignore[misc]
                if number % PODS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return found.pods


async def _allowed(nodes: Sequence[NodeTraits], spec: _ConstrainedSpec) -> list[str]:
    """The nodes that kube-scheduler would ask about, sorted."""
    document: dict[str, Any] = {
        "nodeSelector": spec.node_selector,
        "affinity": msgspec.json.decode(spec.affinity),
        "tolerations": msgspec.json.decode(spec.tolerations),
    }
    constraints, names = pod_constraints({"spec": document}), []
    for number, node in enumerate(nodes, 1):
        if node.refusal(constraints) is None:
            names.append(node.name)
        if number % PODS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return sorted(names)


def _beneficiaries(who: Demand, plan: DefragmentationPlan, moves: Sequence[PlannedMove]) -> list[Beneficiary]:
    """A place for each pod that waits, over the pods that have it now. A place that needs no move is not to be taken
    before all moves are made: a gang takes all its places at once."""
    found = []
    places: list[tuple[PodFacts, bool]] = [(facts, True) for facts in plan.fitting_places]
    places += [(facts, False) for facts in plan.gained]
    for request, (facts, is_free) in zip(who.pods, places, strict=True):
        leaving = frozenset(move.uid for move in moves if is_free or move.node == facts.node)
        found.append(Beneficiary(request, PlaceHeld(held_facts(request.uid, facts), request.uid, leaving)))
    return found
