"""Moves: pods are evicted so that others fit, and their successors find the places that are held for them.

`rounds` plans for pods that wait, on a schedule; `apply` makes the moves that a person asks for. One plan at a time is
made (`plan_run`). All of it ends with the term: a new leader plans afresh.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from tessera.core.ledger.holders import Holder, HolderKind
from tessera.core.model.requests import PodRequest
from tessera.core.search.relocation import take_moved
from tessera.core.search.selection import Refused
from tessera.scheduler.eviction.preemption_loop import NOT_DECIDING
from tessera.scheduler.features.moves.plan_run import PlanRun, asked_move
from tessera.scheduler.features.moves.rounds import Rounds
from tessera.scheduler.framework import Attempt, Feature, Pipeline, Place, Work
from tessera.wire.moves import MovesRequest
from tessera.wire.objects import Pod

BUSY = "other moves are being made; try again when they have ended"


class Moves(Feature):
    """All moves."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._cycles = pipeline.cycles
        self._ledger, self._unschedulable = pipeline.cycles.ledger, pipeline.cycles.unschedulable
        self._is_scheduled = pipeline.settings.defrag.enabled
        self._run: PlanRun | None = None
        """the plan that is being made"""
        self.rounds = Rounds(pipeline, self._make, lambda: self._run is not None)
        pipeline.cycles.on_overdue[HolderKind.MOVE] = self._end_overdue

    # -- a person asks

    def apply(self, request: MovesRequest) -> AsyncGenerator[bytes, None] | str:
        """The lines to be told, or why nothing is done. A request that is being made is followed."""
        missing = self._pipeline.missing()
        if missing:
            return missing
        if self._run is not None and self._run.request == request:
            return self._run.follow()
        if self._run is not None:
            return BUSY
        run = PlanRun(
            self._pipeline,
            [asked_move(each) for each in request.moves],
            step_timeout_s=request.step_timeout_s,
            interval_s=request.interval_s,
            request=request,
        )
        lines = run.follow()
        self._run = run
        self._pipeline.spawn(self._serve(run))
        return lines

    async def _serve(self, run: PlanRun) -> None:
        await self._make(run)

    async def _make(self, run: PlanRun) -> bool:
        """One plan at a time."""
        self._run = run
        try:
            if run.request is not None and run.request.dry_run:
                await run.rehearse()
                return True
            return await run.run()
        finally:
            self._run = None

    # -- what the API shows

    def on_pod(self, pod: Pod) -> None:
        if pod.spec.node_name:
            self.rounds.forget(pod.metadata.uid)
        if self._run is not None:
            self._run.on_pod(pod)

    def on_pod_gone(self, uid: str) -> None:
        self.rounds.forget(uid)
        if self._run is not None:
            self._run.on_pod_gone(uid)

    # -- filter

    def concerns(self, attempt: Attempt) -> bool:
        return self._is_scheduled or self._ledger.holds.has_moves

    def place(self, attempt: Attempt) -> Place | None:
        if not self._ledger.holds.has_moves:
            return None
        found = take_moved(self._ledger, attempt.request, attempt.pod.workload, attempt.candidates)
        return None if found is None else Place(*found)

    def on_refused(self, attempt: Attempt, refused: Refused, *, by_feature: bool) -> Refused:
        if self._is_scheduled:
            self.rounds.note_refused(attempt.request.uid)
        return refused

    # -- over time

    async def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        """Pods for which others were moved away, each once until it is refused again."""
        for holder in self._ledger.holds.of_moves():
            pod = self._unschedulable.get(str(holder.meant_for))
            if pod is not None and not pod.is_woken and self._ledger.is_free(holder):
                pod.is_woken = True
                yield [pod.request]

    def tick(self) -> None:
        self.rounds.tick()

    def work(self) -> Sequence[Work]:
        return (self.rounds.run,) if self._is_scheduled else ()

    def end_term(self) -> None:
        if self._run is not None:
            self._run.stop(NOT_DECIDING)
        for holder in self._ledger.holds.of_moves():
            self._ledger.release(holder.uid)

    def _end_overdue(self, holder: Holder) -> None:
        self._ledger.release(holder.uid)
        self._unschedulable.on_room()
