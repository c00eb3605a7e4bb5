"""Single pods that were refused and may preempt; what their victims free is held until they are bound.

    refused --> search --> nominated: no other pod takes the devices --> victims evicted, then gone --> the pod is woken
                                  |
                                  '--> a victim is not evicted: renounced

Nominations live in this process alone. After a restart the victims that leave are found leaving, and none is evicted
again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from tessera.core.ledger.holders import Holder, HolderKind
from tessera.core.ledger.ledger import facts_of
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.preemption import Demand, VictimSet
from tessera.scheduler.eviction.preemption_loop import Nominated, Preemptor
from tessera.scheduler.framework import Pipeline
from tessera.scheduler.observer import PreemptionEvent
from tessera.scheduler.pod_cycle import CycleState, PodCycle
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePod

DEFERRED_S = 10.0
"""for which a pod is left to kube-scheduler after it was told of victims"""


class PodPreemptors:
    """The refused pods of one scheduler that may preempt."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._cycles = pipeline.cycles
        self._ledger = pipeline.cycles.ledger
        self._unschedulable = pipeline.cycles.unschedulable
        self._now = pipeline.clock.monotonic
        self._refused_at: dict[str, float] = {}
        """when a pod was first seen here"""
        self._fruitless: dict[Hashable, float] = {}
        """kind of pod -> when it is looked at again"""
        self._deferred: dict[str, float] = {}
        """pod -> until when kube-scheduler preempts for it"""
        self._victims_left: dict[str, int] = {}
        """nominated pod -> victims that were there when it was looked at last"""
        self._cycles.on_overdue[HolderKind.POD] = self._end_overdue

    def of(self, pod: UnschedulablePod) -> PodPreemptor:
        return PodPreemptor(self, pod, self._refused_at.setdefault(pod.request.uid, self._now()))

    def due(self) -> Iterator[PodPreemptor]:
        """Pods that were refused since they were looked at last, in the order in which they were first refused."""
        self._tidy()
        return map(self.of, self._unschedulable.preemptors())

    def tick(self) -> None:
        """Other refused pods are looked at again."""
        self._tidy()
        self._unschedulable.reconsider()

    def ready(self) -> Iterator[PodRequest]:
        """Nominated pods that fit now, each once until it is refused again."""
        for nomination in self._ledger.nominations.all():
            uid = nomination.facts.uid
            pod = self._unschedulable.get(uid)
            left = sum(self._ledger.pod(victim) is not None for victim in nomination.victims)
            if pod is None or pod.is_woken or (left and left == self._victims_left.get(uid)):
                continue
            self._victims_left[uid] = left
            if isinstance(self._ledger.fit(pod.request, nomination.facts.node), Placement):
                pod.is_woken = True
                yield pod.request

    def defer(self, uid: str) -> None:
        """kube-scheduler was told of victims, and deletes them: what they free is found soon."""
        self._deferred[uid] = self._now() + DEFERRED_S

    def due_at(self, pod: UnschedulablePod) -> float:
        uid = pod.request.uid
        due = self._refused_at.get(uid, 0.0) + self.pipeline.settings.preemption_delay_s
        return max(due, self._fruitless.get(_kind(pod), 0.0), self._deferred.get(uid, 0.0))

    def postpone(self, pod: UnschedulablePod, until: float) -> None:
        self._fruitless[_kind(pod)] = until

    def forget_victims(self, uid: str) -> None:
        """It is nominated anew."""
        self._victims_left.pop(uid, None)

    def _end_overdue(self, holder: Holder) -> None:
        """The nomination of a pod."""
        pod = self._unschedulable.get(holder.uid)
        for victim in holder.victims:
            self.pipeline.evictor.book.note_stuck(victim)
        if pod is not None:
            self.of(pod).renounce("The devices were held for too long: the nomination ends")

    def _tidy(self) -> None:
        """Forget what does not wait any more."""
        now = self._now()
        for by_pod in (self._refused_at, self._victims_left):
            for uid in [uid for uid in by_pod if uid not in self._unschedulable]:
                del by_pod[uid]
        self._fruitless = {kind: until for kind, until in self._fruitless.items() if until > now}
        self._deferred = {uid: until for uid, until in self._deferred.items() if until > now}


class PodPreemptor(Preemptor):
    """One of them."""

    def __init__(self, pods: PodPreemptors, pod: UnschedulablePod, refused_at: float) -> None:
        self._pods = pods
        self._pipeline = pods.pipeline
        self._pod = pod
        self._request = request = pod.request
        super().__init__(f"pod {request.namespace}/{request.name}", request.preempts_below or 0, refused_at)

    @property
    def is_due(self) -> bool:
        return self._pod.may_preempt

    @is_due.setter
    def is_due(self, value: bool) -> None:
        self._pod.may_preempt = value

    def due_at(self) -> float:
        return self._pods.due_at(self._pod)

    def postpone(self, until: float) -> None:
        self._pods.postpone(self._pod, until)

    def demand(self) -> Demand | None:
        if self._request.preempts_below is None or self._cycle(CycleState.REFUSED) is None:
            return None
        return Demand.of_pod(self._request, self._pod.candidates, priority=self.priority)

    def is_waiting(self, demand: Demand) -> bool:
        return self._cycle(CycleState.REFUSED) is not None

    def on_no_victims(self, seconds: float) -> None:
        self._pipeline.observer.on_preemption(PreemptionEvent(self._request, problem="no victims", seconds=seconds))

    async def nominate(self, found: VictimSet, seconds: float) -> Nominated | None:
        """REFUSED -> NOMINATED, without a pause since the last look."""
        request, pipeline = self._request, self._pipeline
        cycle, now = (
            self._cycle(CycleState.REFUSED),
            pipeline.preemption.confirm(request, found, priority=self.priority),
        )
        if cycle is None or now is None:
            return None
        book = pipeline.evictor.book
        victims, leaving = book.traits_of(now.victims), book.traits_of(now.leaving)
        grace = max((traits.grace_s for traits in (*victims, *leaving)), default=0.0)
        deadline = pipeline.clock.monotonic() + grace + pipeline.settings.nomination_s
        first = frozenset((*now.victims, *now.leaving))
        pipeline.cycles.nominate(cycle, facts_of(request, now.places[0].placement), first, deadline=deadline)
        self._pods.forget_victims(request.uid)
        pipeline.observer.on_preemption(
            PreemptionEvent(request, node=now.node, victims=victims, waits_for=leaving, seconds=seconds)
        )
        return Nominated(self._nomination(), now.victims)

    def is_nominated(self, nomination: object) -> bool:
        return nomination is not None and self._nomination() is nomination

    def evicts_as(self) -> tuple[PodRequest, str]:
        return self._request, ""

    def on_evicted(self) -> None:
        nomination = self._nomination()
        if nomination is not None:
            self._pipeline.nominated_nodes.set(self._request, nomination.facts.node)

    def renounce(self, problem: str) -> None:
        """NOMINATED -> REFUSED."""
        cycle, nomination = self._pipeline.cycles.get(self._request.uid), self._nomination()
        if cycle is None or cycle.state is not CycleState.NOMINATED:
            return
        node = nomination.facts.node if nomination is not None else ""
        self._pipeline.cycles.renounce(cycle)
        self._pipeline.observer.on_preemption(PreemptionEvent(self._request, node=node, problem=problem))
        self._pipeline.nominated_nodes.set(self._request, None)

    def _nomination(self) -> Holder | None:
        return self._pipeline.cycles.ledger.nominations.get(self._request.uid)

    def _cycle(self, state: CycleState) -> PodCycle | None:
        """The record of the pod, if it is in this state and nothing else works on it."""
        cycle = self._pipeline.cycles.get(self._request.uid)
        is_idle = cycle is not None and cycle.state is state and not cycle.is_checked_out
        return cycle if is_idle else None


def _kind(pod: UnschedulablePod) -> Hashable:
    """Pods for which the same victims are found."""
    request = pod.request
    return request.shape, request.namespace, request.preempts_below, pod.candidates.fingerprint
