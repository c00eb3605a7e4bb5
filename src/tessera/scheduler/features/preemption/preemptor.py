"""Evicts pods of lower priority for a refused pod, and holds what they free until the pod is bound.

    refused --> search (in slices, between other requests) --> nominated: no other pod takes the devices
                                                                  |
                  a victim is not evicted: renounced, another <---+---> victims evicted, then gone --> the pod is woken
                  set is chosen, a bounded number of times

Only the replica that decides evicts, and it judges by the ledger as it is right before: between the last look and the
nomination nothing else runs. `evictor` sends the evictions. Nominations live in this process alone. After a restart the
victims that leave are found leaving, and none is evicted again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from tessera.core.grants import Placement
from tessera.core.holders import Holder, HolderKind
from tessera.core.ledger import Ledger, facts_of
from tessera.core.preemption import Preemption, VictimSet
from tessera.core.requests import PodRequest
from tessera.core.victims import PodTraits
from tessera.scheduler.evictor import Evictor
from tessera.scheduler.nominated_nodes import NominatedNodes
from tessera.scheduler.observer import PreemptionEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import CycleState, PodCycle, PodCycles
from tessera.scheduler.preemption_loop import (
    AGAIN_S,
    ATTEMPTS,
    NOT_DECIDING,
    SEARCH_PAUSE,
    PreemptionLoop,
    finish_in_slices,
)
from tessera.scheduler.settings import Settings
from tessera.scheduler.unschedulable_pods import UnschedulablePod

DEFERRED_S = 10.0
"""for which a pod is left to kube-scheduler after it was told of victims"""


class Preemptor(PreemptionLoop[UnschedulablePod, VictimSet]):
    """Works for the refused pods of one scheduler."""

    def __init__(
        self,
        cycles: PodCycles,
        preemption: Preemption,
        evictor: Evictor,
        *,
        nominated_nodes: NominatedNodes,
        observer: SchedulerObserver,
        settings: Settings,
        is_ready: Callable[[], bool],
    ) -> None:
        super().__init__(cycles.unschedulable.refused, cycles.clock, settings=settings, is_ready=is_ready)
        self._cycles = cycles
        self._ledger: Ledger = cycles.ledger
        self._preemption = preemption
        self._evictor = evictor
        self._book = evictor.book
        self._nominated_nodes = nominated_nodes
        self._observer = observer
        self._refused_at: dict[str, float] = {}
        """when a pod was first seen here"""
        self._fruitless: dict[Hashable, float] = {}
        """kind of pod -> when it is looked at again"""
        self._deferred: dict[str, float] = {}
        """pod -> until when kube-scheduler preempts for it"""
        self._victims_left: dict[str, int] = {}
        """nominated pod -> victims that were there when it was looked at last"""
        cycles.on_overdue[HolderKind.POD] = self._end_overdue

    # -- over time

    def preemptors(self) -> list[UnschedulablePod]:
        self._tidy()
        return self._cycles.unschedulable.preemptors()

    def _look_again(self, pod: UnschedulablePod) -> None:
        pod.may_preempt = True

    def tick(self) -> None:
        """Other refused pods are looked at again."""
        self._tidy()
        self._cycles.unschedulable.reconsider()

    def _end_overdue(self, holder: Holder) -> None:
        """The nomination of a pod."""
        cycle, pod = self._cycles.get(holder.uid), self._cycles.unschedulable.get(holder.uid)
        for victim in holder.victims:
            self._book.note_stuck(victim)
        if cycle is not None and cycle.state is CycleState.NOMINATED and pod is not None:
            self._renounce(cycle, pod.request, "The devices were held for too long: the nomination ends")

    def ready(self) -> Iterator[PodRequest]:
        """Nominated pods that fit now, each once until it is refused again."""
        for nomination in self._ledger.nominations.all():
            uid = nomination.facts.uid
            pod = self._cycles.unschedulable.get(uid)
            left = sum(self._ledger.pod(victim) is not None for victim in nomination.victims)
            if pod is None or pod.is_woken or (left and left == self._victims_left.get(uid)):
                continue
            self._victims_left[uid] = left
            if isinstance(self._ledger.fit(pod.request, nomination.facts.node), Placement):
                pod.is_woken = True
                yield pod.request

    def defer(self, uid: str) -> None:
        """kube-scheduler was told of victims, and deletes them: what they free is found soon."""
        self._deferred[uid] = self._clock.monotonic() + DEFERRED_S

    # -- one pod

    async def _nominate(self, pod: UnschedulablePod) -> VictimSet | None:
        pod.may_preempt = False
        for _ in range(ATTEMPTS):
            if self._cycle_of(pod) is None:
                return None
            began = self._clock.monotonic()
            found = await self._search(pod)
            seconds = self._clock.monotonic() - began
            cycle = self._cycle_of(pod)
            if cycle is None:
                return None
            if found is None:
                self._fruitless[_kind(pod)] = self._clock.monotonic() + AGAIN_S + SEARCH_PAUSE * seconds
                self._observer.on_preemption(PreemptionEvent(pod.request, problem="no victims", seconds=seconds))
                return None
            if not found.victims and not found.leaving:
                self._cycles.unschedulable.on_room()  # It fits as it is.
                return None
            # The search may have paused, and the node may have changed since. No await from here to the nomination.
            found = self._confirm(pod.request, found)
            if found is not None:
                self._hold(cycle, pod.request, found, seconds)
                return found
        return None

    def _hold(self, cycle: PodCycle, request: PodRequest, found: VictimSet, seconds: float) -> None:
        """REFUSED -> NOMINATED."""
        victims, leaving = self._book.traits_of(found.victims), self._book.traits_of(found.leaving)
        grace = max((traits.grace_s for traits in (*victims, *leaving)), default=0.0)
        deadline = self._clock.monotonic() + grace + self._settings.nomination_s
        leaving_first = frozenset((*found.victims, *found.leaving))
        self._cycles.nominate(cycle, facts_of(request, found.places[0].placement), leaving_first, deadline=deadline)
        self._victims_left.pop(request.uid, None)
        self._observer.on_preemption(
            PreemptionEvent(request, node=found.node, victims=victims, waits_for=leaving, seconds=seconds)
        )
        self._before_evict()

    async def _evict(self, pod: UnschedulablePod, found: VictimSet) -> bool:
        request = pod.request
        victims, nomination = self._book.traits_of(found.victims), self._ledger.nominations.get(request.uid)
        problem = await self._evictor.evict(
            victims,
            preemptor=request,
            obstacle=lambda victim: self._obstacle(victim, request),
        )
        cycle = self._cycles.get(request.uid)
        is_same = self._ledger.nominations.get(request.uid) is nomination
        if problem and cycle is not None and is_same:
            self._renounce(cycle, request, problem)
        if problem:
            return False
        if is_same and nomination is not None:
            self._nominated_nodes.set(request, found.node)
        self._cycles.unschedulable.on_room()  # The victims may be gone already.
        return True

    async def _search(self, pod: UnschedulablePod) -> VictimSet | None:
        priority = pod.request.preempts_below
        if priority is None:
            return None
        self._book.forget_overdue()
        search = self._preemption.search_for_pod(pod.request, priority=priority, candidates=pod.candidates)
        return await finish_in_slices(search)

    def _confirm(self, request: PodRequest, found: VictimSet) -> VictimSet | None:
        priority = request.preempts_below
        assert priority is not None  # the search had one
        return self._preemption.confirm(request, found, priority=priority)

    def _obstacle(self, victim: PodTraits, request: PodRequest) -> str:
        """Why a victim must not be evicted any more; empty if it may."""
        if not self._is_ready():
            return NOT_DECIDING
        nomination = self._ledger.nominations.get(request.uid)
        if nomination is None or victim.uid not in nomination.victims:
            return f"pod {request.namespace}/{request.name} is gone, or has a node"
        return ""

    def _renounce(self, cycle: PodCycle, request: PodRequest, problem: str) -> None:
        if cycle.state is not CycleState.NOMINATED:
            return
        nomination = self._ledger.nominations.get(request.uid)
        node = nomination.facts.node if nomination is not None else ""
        self._cycles.renounce(cycle)
        self._observer.on_preemption(PreemptionEvent(request, node=node, problem=problem))
        self._nominated_nodes.set(request, None)

    # -- inside

    def _cycle_of(self, pod: UnschedulablePod) -> PodCycle | None:
        """The record of a pod that is still refused, may preempt, and which nothing else works on."""
        cycle = self._cycles.get(pod.request.uid)
        is_idle = cycle is not None and cycle.state is CycleState.REFUSED and not cycle.is_checked_out
        return cycle if is_idle and self._is_ready() else None

    def _wait_of(self, pod: UnschedulablePod) -> float:
        uid, now = pod.request.uid, self._clock.monotonic()
        first = self._refused_at.setdefault(uid, now)
        due = first + self._settings.preemption_delay_s
        return max(due, self._fruitless.get(_kind(pod), 0.0), self._deferred.get(uid, 0.0)) - now

    def _tidy(self) -> None:
        """Forget what does not wait any more."""
        unschedulable, now = self._cycles.unschedulable, self._clock.monotonic()
        for by_pod in (self._refused_at, self._victims_left):
            for uid in [uid for uid in by_pod if uid not in unschedulable]:
                del by_pod[uid]
        self._fruitless = {kind: until for kind, until in self._fruitless.items() if until > now}
        self._deferred = {uid: until for uid, until in self._deferred.items() if until > now}


def _kind(pod: UnschedulablePod) -> Hashable:
    """Pods for which the same victims are found."""
    request = pod.request
    return request.shape, request.namespace, request.preempts_below, pod.candidates.fingerprint
