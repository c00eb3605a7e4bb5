"""Makes the moves of a plan, one step at a time: hold the targets, evict the pods, wait for their successors.

    WAITING ──▶ HELD ──▶ EVICTED ──▶ MOVED
       └────────┴──────────┴──▶ STOPPED: the cluster is not as the plan has it, or the time is over

A step is one pod, or a gang. The plan is compared with the cluster before each step. A plan that was stopped can be
made again: moves whose pod is gone are done. Stopping at any moment leaves no place held.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec
import structlog

from tessera.core.ledger.holders import move_hold_uid
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.requests import PodRequest
from tessera.core.search.relocation import Move, cards_of
from tessera.core.search.victims import PodTraits
from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.errors import KubeError
from tessera.kube.eviction import RETRY_S, EvictionAnswer, EvictionResult, evict_pod
from tessera.scheduler.eviction.preemption_loop import NOT_DECIDING
from tessera.scheduler.features.moves.holds import PlaceHeld, asked_facts, held_facts, hold_all, release_all
from tessera.scheduler.framework import Pipeline
from tessera.wire.moves import MoveAsked, MovesRequest, MoveStage, MoveUpdate
from tessera.wire.objects import Pod, Workload

log = structlog.get_logger(__name__)

LOOKS, LOOK_PAUSES = 3, Backoff(initial=5.0, cap=10.0, floor=2.0)
"""at the pods before a step, if the apiserver cannot be reached"""
HEARTBEAT_S = 15.0
"""between two lines to a caller that follows"""
GONE_ALREADY = "it is gone already, or leaves"
INTERRUPTED = "interrupted"
WAITS_NO_MORE = "does not wait any more"
LAST = msgspec.json.encode(MoveUpdate(is_last=True)) + b"\n"


class Deviation(Exception):
    """The cluster is not as the plan has it, or does not become so in time."""


class PlannedMove(NamedTuple):
    """One pod, from where it is to where its successor goes."""

    step: int
    namespace: str
    name: str
    uid: str
    node: str
    cards: tuple[str, ...]
    """uuids, sorted: what it has now"""
    target: PodFacts
    """what is held for its successor"""

    @property
    def text(self) -> str:
        return f"{self.name} to {self.target.node}"


def planned_move(step: int, move: Move) -> PlannedMove:
    """Of a plan of this process."""
    source = move.source
    target = held_facts(move.uid, move.target)
    return PlannedMove(step, source.namespace, source.name, move.uid, source.node, cards_of(source), target)


def asked_move(asked: MoveAsked) -> PlannedMove:
    """Of a request."""
    target, source = asked_facts(asked.uid, asked.name, asked.target), asked.source
    return PlannedMove(
        asked.step, asked.namespace, asked.name, asked.uid, source.node, tuple(sorted(source.cards)), target
    )


@dataclass(slots=True)
class MoveProgress:
    move: PlannedMove
    stage: MoveStage = MoveStage.WAITING
    reason: str = ""


class Beneficiary(NamedTuple):
    """A pod that waits, and the place that the moves free for it."""

    request: PodRequest
    place: PlaceHeld


class PlanRun:
    """One plan on its way. Used from the event loop only."""

    def __init__(
        self,
        pipeline: Pipeline,
        moves: Sequence[PlannedMove],
        *,
        step_timeout_s: float,
        interval_s: float = 0.0,
        request: MovesRequest | None = None,
        beneficiaries: Sequence[Beneficiary] = (),
        spend: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        """`request`: what a caller has asked for, who follows it. `beneficiaries`: for whom the moves are made.
        `interval_s`: between two steps. `spend`: whether so many pods may be evicted; they count from then on."""
        self._pipeline = pipeline
        self._ledger = pipeline.cycles.ledger
        self._monotonic = pipeline.clock.monotonic
        self._step_timeout_s, self._interval_s = step_timeout_s, interval_s
        self.request = request
        self._beneficiaries = beneficiaries
        self._spend = spend
        self.progress = [MoveProgress(move) for move in moves]
        self.is_over = False
        self.has_evicted = False
        self._step: Sequence[MoveProgress] = ()
        """under way"""
        self._updates: list[bytes] = []
        self._followers = 0
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """done when something has changed"""
        self._stopped = ""
        """why no further step is made"""
        self._workload: Workload | None = None
        """of the step under way"""
        self._known: Collection[str] = ()
        """uids of pods that are no successors"""
        self._bound: dict[str, tuple[str, str]] = {}
        """successors that are bound: name and node, by uid"""

    # -- told by the pipeline

    def on_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if pod.spec.node_name and self._workload == pod.workload and uid not in self._known:
            self._bound[uid] = pod.metadata.name, pod.spec.node_name
        self._notify()

    def on_pod_gone(self, uid: str) -> None:
        self._bound.pop(uid, None)
        self._notify()

    def stop(self, reason: str) -> None:
        """Make no further step, and end the one under way."""
        self._stopped = self._stopped or reason
        self._notify()

    # -- the caller

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """What has changed, and what changes, after an empty piece. Without a caller that follows, the next step is not
        begun."""
        self._followers += 1
        position = 0
        try:
            yield b""
            while position < len(self._updates) or not self.is_over:
                lines, position = self._updates[position:], len(self._updates)
                yield b"".join(lines) or b"\n"
                if position == len(self._updates) and not self.is_over:
                    await self._wait(HEARTBEAT_S)
            yield LAST
        finally:
            self._followers -= 1
            self._notify()

    # -- all steps

    async def run(self) -> bool:
        """Whether all moves were made, and those got their places for whom they were."""
        places = [each.place for each in self._beneficiaries]
        try:
            self._hold_for_beneficiaries(places)
            for number, step in enumerate(self._steps()):
                self._step = step
                await self._pause(self._interval_s if number else 0.0)
                await self._make(step)
            self._step = ()
            await self._await_beneficiaries()
        except (Deviation, KubeError) as error:
            log.warning("moves stopped", reason=str(error))
            for each in self._step or self.progress[:1]:
                if each.stage is not MoveStage.MOVED:
                    self._set(each, MoveStage.STOPPED, str(error))
            return False
        finally:
            release_all(self._ledger, places)
            self._pipeline.cycles.unschedulable.on_room()
            self.is_over = True
            self._notify()
        return True

    async def rehearse(self) -> None:
        """Compares each move with the cluster and asks the apiserver about each eviction. Changes nothing."""
        try:
            pods = await self._list_pods({each.move.namespace for each in self.progress})
            for each in self.progress:
                try:
                    self._check_source(each.move, pods)
                    answer = await self._try_out(each.move)
                    reason = GONE_ALREADY if answer.result is EvictionResult.GONE else answer.reason
                except Deviation as error:
                    reason = str(error)
                if reason == GONE_ALREADY:
                    self._set(each, MoveStage.MOVED, reason)
                else:
                    stage = MoveStage.STOPPED if reason else MoveStage.WAITING
                    self._set(each, stage, reason or f"would move to {each.move.target.node}")
        except KubeError as error:
            self._set(self.progress[0], MoveStage.STOPPED, str(error))
        finally:
            self.is_over = True
            self._notify()

    def _steps(self) -> list[list[MoveProgress]]:
        return [list(step) for _, step in groupby(self.progress, key=lambda each: each.move.step)]

    def _check_wanted(self) -> None:
        self._check_leading()
        if self.request is not None and not self._followers:
            raise Deviation(INTERRUPTED)

    def _check_leading(self) -> None:
        problem = self._stopped or (NOT_DECIDING if self._pipeline.missing() else "")
        if problem:
            raise Deviation(problem)

    # -- one step

    async def _make(self, step: Sequence[MoveProgress]) -> None:
        pods = await self._list_pods({each.move.namespace for each in step})
        self._check_leading()
        left: list[MoveProgress] = []
        for each in step:
            pod = pods.get(each.move.uid)
            if pod is None or pod.metadata.deletion_timestamp:
                self._set(each, MoveStage.MOVED, GONE_ALREADY)
            else:
                self._check_source(each.move, pods)
                left.append(each)
        if not left:
            return
        workloads = {pods[each.move.uid].workload for each in left}
        if len(workloads) > 1:
            raise Deviation("the pods of its gang have several controllers")
        [self._workload] = workloads
        self._known, self._bound = frozenset(pods), {}
        deadline = self._monotonic() + self._step_timeout_s
        places = [PlaceHeld(each.move.target, self._workload) for each in left]
        problem = hold_all(self._ledger, places, deadline=deadline)
        if problem:
            raise Deviation(problem)
        try:
            self._set_all(left, MoveStage.HELD)
            await self._permit(len(left))
            await self._evict([each.move for each in left], deadline)
            self._set_all(left, MoveStage.EVICTED)
            await self._await_successors([each.move for each in left], deadline)
        finally:
            release_all(self._ledger, places)
            self._workload = None
        self._set_all(left, MoveStage.MOVED)

    def _check_source(self, move: PlannedMove, pods: dict[str, Pod]) -> None:
        """Raises Deviation if the move cannot be made as planned."""
        pod, entry = pods.get(move.uid), self._ledger.pod(move.uid)
        if pod is None or pod.metadata.deletion_timestamp:
            raise Deviation(GONE_ALREADY)
        if entry is None or entry.node != move.node or tuple(sorted(entry.holdings)) != move.cards:
            raise Deviation(f"it does not hold what the plan says on {move.node} any more")
        if not pod.workload.kind:
            raise Deviation("nothing creates it again: it is a bare pod")

    async def _try_out(self, move: PlannedMove) -> EvictionAnswer:
        """A dry run."""
        return await evict_pod(self._pipeline.api, move.namespace, move.name, uid=move.uid, dry_run=True)

    async def _permit(self, evictions: int) -> None:
        """Raises Deviation if no pod may be evicted any more."""
        self._check_beneficiaries()
        if self._spend is not None and not await self._spend(evictions):
            raise Deviation("no evictions are left in this hour")

    async def _evict(self, moves: Sequence[PlannedMove], deadline: float) -> None:
        """Again and again while a disruption budget does not allow it."""
        evictor, uids = self._pipeline.evictor, [move.uid for move in moves]
        for move in moves:
            answer = await self._try_out(move)
            if answer.is_final and answer.result is not EvictionResult.GONE:
                raise Deviation(answer.reason)
        while True:
            self.has_evicted = True
            problem = await evictor.evict(evictor.book.traits_of(uids), preemptor=None, obstacle=self._obstacle)
            if not problem:
                return
            self._check_leading()
            if self._monotonic() + RETRY_S > deadline:
                raise Deviation(problem)
            await self._pause(RETRY_S)

    def _obstacle(self, victim: PodTraits) -> str:
        if self._stopped or self._pipeline.missing():
            return self._stopped or NOT_DECIDING
        if self._ledger.holder(move_hold_uid(victim.uid)) is None:
            return "the place that was held for its successor is taken"
        return next((f"{each.request.name} {WAITS_NO_MORE}" for each in self._beneficiaries if self._is_over(each)), "")

    async def _await_successors(self, moves: Sequence[PlannedMove], deadline: float) -> None:
        """Until as many new pods of the workload are on each target as were moved there."""
        wanted = Counter(move.target.node for move in moves)
        while not wanted <= Counter(node for _, node in self._bound.values()):
            self._check_leading()
            astray = [(name, node) for name, node in self._bound.values() if node not in wanted]
            if astray and len(self._bound) >= len(moves):
                raise Deviation("its successor {} went to {}".format(*astray[0]))
            if self._monotonic() >= deadline:
                raise Deviation(f"no successor has come to {moves[0].target.node} in time")
            await self._wait(deadline - self._monotonic())

    # -- those who wait

    def _hold_for_beneficiaries(self, places: Sequence[PlaceHeld]) -> None:
        self._check_leading()
        for each in self._beneficiaries:
            self._pipeline.make_way(each.request.uid)
        self._check_beneficiaries()
        problem = hold_all(self._ledger, places, deadline=self._monotonic() + 2 * self._step_timeout_s)
        if problem:
            raise Deviation(problem)
        self._pipeline.cycles.unschedulable.on_room()  # A place may be free already.

    def _check_beneficiaries(self) -> None:
        """All still wait, and what is held for them is held for longer than a step may take."""
        for each in self._beneficiaries:
            if self._is_over(each):
                raise Deviation(f"{each.request.namespace}/{each.request.name} {WAITS_NO_MORE}")
            self._ledger.extend(each.place.facts.uid, self._monotonic() + 2 * self._step_timeout_s)

    def _is_over(self, each: Beneficiary) -> bool:
        """Whether the pod is gone, or has a place."""
        uid = each.request.uid
        return self._pipeline.cycles.get(uid) is None or self._ledger.pod(uid) is not None

    async def _await_beneficiaries(self) -> None:
        """Until the pods that waited have a node, or are gone."""
        deadline = self._monotonic() + self._step_timeout_s
        for each in self._beneficiaries:
            request = each.request
            while self._waits(request.uid):
                self._check_leading()
                if self._monotonic() >= deadline:
                    raise Deviation(f"{request.namespace}/{request.name} is not bound in time")
                await self._wait(deadline - self._monotonic())

    def _waits(self, uid: str) -> bool:
        entry = self._ledger.pod(uid)
        return not entry.observed if entry is not None else self._pipeline.cycles.get(uid) is not None

    # -- inside

    async def _list_pods(self, namespaces: Collection[str]) -> dict[str, Pod]:
        """By uid."""
        found: dict[str, Pod] = {}
        for namespace in sorted(namespaces):
            pods = await retry_on_error(
                partial(self._pipeline.api.list_pods, namespace),
                backoff=LOOK_PAUSES,
                is_retriable=lambda error, failures: error.is_transient and failures < LOOKS,
            )
            found.update({pod.metadata.uid: pod for pod in pods})
        return found

    async def _pause(self, seconds: float) -> None:
        """Raises Deviation as soon as nothing may follow."""
        until = self._monotonic() + seconds
        while (left := until - self._monotonic()) > 0:
            self._check_wanted()
            await self._wait(left)
        self._check_wanted()

    async def _wait(self, seconds: float) -> None:
        """For news, for so long at most."""
        await asyncio.wait([self._news], timeout=seconds)

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    def _set_all(self, step: Sequence[MoveProgress], stage: MoveStage) -> None:
        for each in step:
            self._set(each, stage)

    def _set(self, each: MoveProgress, stage: MoveStage, reason: str = "") -> None:
        each.stage, each.reason = stage, reason
        log.info("move", pod=f"{each.move.namespace}/{each.move.name}", stage=stage.value, reason=reason)
        self._updates.append(msgspec.json.encode(MoveUpdate(each.move.uid, stage, reason)) + b"\n")
        self._notify()
