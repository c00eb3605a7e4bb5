"""Preemption: pods of lower priority make way for what was refused, whose place is kept until they have left.

One loop works for the preemptors of all features; single pods are this feature's own.

POST /preempt asks the other way round: kube-scheduler has found victims for CPU or memory, and wants to know where the
devices fit too. For each node the pods that have to leave in addition are found by the exact rule, between other
requests, and only nodes where the pod fits then are answered. kube-scheduler chooses one of them, deletes its victims
itself and asks for the pod again. A pod for which this scheduler preempts already gets no node: nothing is evicted
twice for it. A member of a gang gets the nodes on which devices are held for it, so that its gang stays whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.node_victims import NodeSearch, Scratch
from tessera.scheduler.eviction.preemption_loop import PreemptionLoop, Preemptor, finish_in_slices
from tessera.scheduler.eviction.victim_book import VictimBook
from tessera.scheduler.features.preemption.preemptor import PodPreemptors
from tessera.scheduler.framework import Attempt, Feature, Pipeline, Place, Work
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.requests.reader import RequestReader
from tessera.vendors.drafts import BadPod
from tessera.wire.errors import WireError
from tessera.wire.extender import NodeVictims, decode_preemption_args, encode_preemption_result

MAX_TRIALS = 1_024
"""of the plain rule, for one request: kube-scheduler waits for it, and asks again if it gets no node"""
MAX_NODES = 64
"""looked at for one request, those with the fewest victims first: kube-scheduler chooses among what is answered"""


class PreemptVerb:
    """Answers on one ledger."""

    def __init__(
        self,
        cycles: PodCycles,
        request_reader: RequestReader,
        book: VictimBook,
        *,
        only_nodes: Callable[[PodRequest], frozenset[str] | None],
        defer: Callable[[str], None],
        adds_victims: bool,
    ) -> None:
        """`only_nodes`: on which room helps a pod; None if any does. `defer`: leaves a pod to kube-scheduler for a
        while. Not `adds_victims`: only nodes on which kube-scheduler's victims are enough."""
        self._cycles = cycles
        self._request_reader = request_reader
        self._book = book
        self._only_nodes = only_nodes
        self._defer = defer
        self._adds_victims = adds_victims

    async def answer(self, body: bytes) -> bytes:
        """The nodes on which a preemption helps; none if the request cannot be read."""
        try:
            args = decode_preemption_args(body)
        except WireError:
            return encode_preemption_result({})
        prepared = self._request_reader.read(args.pod)
        if isinstance(prepared, BadPod):
            return encode_preemption_result({})
        if not prepared.needs_placement:
            return encode_preemption_result(args.victims)
        request = prepared.request
        settled = self._settled_answer(request, args.victims)
        if settled is None:
            found = await self._find(request, args.victims)
            # This scheduler may have begun to preempt for the pod meanwhile.
            settled = self._settled_answer(request, args.victims)
            if settled is None and found:
                self._defer(request.uid)
        return encode_preemption_result(found if settled is None else settled)

    def _settled_answer(self, request: PodRequest, victims: dict[str, NodeVictims]) -> dict[str, NodeVictims] | None:
        """What needs no search; None if one is needed."""
        cycle = self._cycles.get(request.uid)
        if cycle is not None and cycle.state not in (CycleState.PENDING, CycleState.REFUSED):
            return {}
        only = self._only_nodes(request)
        return None if only is None else {node: given for node, given in victims.items() if node in only}

    async def _find(self, request: PodRequest, victims: dict[str, NodeVictims]) -> dict[str, NodeVictims]:
        priority = request.preempts_below
        if priority is None:
            return {}
        found, trials = {}, 0
        for node in sorted(victims, key=lambda name: (_size(victims[name]), name))[:MAX_NODES]:
            if trials >= MAX_TRIALS:
                break
            given = victims[node]
            scratch = Scratch(self._cycles.ledger, self._book, free={request.uid}, given=given.uids)
            search = NodeSearch(scratch, self._book, request, priority=priority, node=node)
            best = await finish_in_slices(search.steps())
            await asyncio.sleep(0)
            trials += search.trials
            if best is None or not (self._adds_victims or not best.victims):
                continue
            # A group leaves whole, but kube-scheduler evicts from one node only, and fails if it is told of others.
            if {entry.facts.uid for entry in self._cycles.ledger.pods_on(node)}.issuperset(best.victims):
                found[node] = given.with_more(best.victims)
        return found


def _size(victims: NodeVictims) -> tuple[int, int]:
    return victims.pdb_violations, len(victims.uids)


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
