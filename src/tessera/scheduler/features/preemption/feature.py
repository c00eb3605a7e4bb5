"""Preemption: pods of lower priority make way for what was refused, whose place is kept until they have left.

One loop works for the preemptors of all features; single pods are this feature's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.scheduler.eviction.preemption_loop import PreemptionLoop, Preemptor
from tessera.scheduler.features.preemption.preempt_verb import PreemptVerb
from tessera.scheduler.features.preemption.preemptor import PodPreemptors
from tessera.scheduler.framework import Attempt, Feature, Pipeline, Place, Work


class PodPreemption(Feature):
    """Evicts pods for others of a higher priority."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._ledger = pipeline.cycles.ledger
        self.pods = PodPreemptors(pipeline)
        self.loop = PreemptionLoop(
            pipeline.preemptors,
            pipeline.preemption,
            pipeline.evictor,
            unschedulable=pipeline.cycles.unschedulable,
            clock=pipeline.clock,
            settings=pipeline.settings,
            is_ready=pipeline.may_preempt,
        )
        self._verb = PreemptVerb(
            pipeline.cycles,
            pipeline.request_reader,
            pipeline.evictor.book,
            only_nodes=pipeline.preemption_nodes,
            defer=self.pods.defer,
            adds_victims=pipeline.settings.preemption,
        )

    def concerns(self, attempt: Attempt) -> bool:
        return attempt.request.uid in self._ledger.nominations

    def place(self, attempt: Attempt) -> Place | None:
        """On the node that the pod is nominated for, if its victims have left. If they have not, or it does not fit, it
        is placed wherever it fits, or keeps its nomination."""
        nomination = self._ledger.nominations.get(attempt.request.uid)
        if nomination is None or nomination.facts.node not in attempt.candidates:
            return None
        answer = self._ledger.fit(attempt.request, nomination.facts.node)
        return None if isinstance(answer, Misfit) else Place(attempt.request, answer)

    def answer_preempt(self, body: bytes) -> Coroutine[Any, Any, bytes]:
        return self._verb.answer(body)

    def is_nominated(self, uid: str) -> bool:
        return uid in self._ledger.nominations

    def preemptors(self) -> Iterator[Preemptor]:
        return self.pods.due()

    def tick(self) -> None:
        self.pods.tick()

    async def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        for pod in self.pods.ready():
            yield [pod]

    def work(self) -> Sequence[Work]:
        return (self.loop.run,)
