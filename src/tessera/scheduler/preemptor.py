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

import asyncio
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from tessera.core.fit import fit_pod
from tessera.core.ledger import Ledger, facts_of
from tessera.core.misfits import Misfit
from tessera.core.node_preemption import NodeSearch
from tessera.core.preemption import Preemption
from tessera.core.requests import PodRequest
from tessera.core.victims import PodTraits, VictimSet
from tessera.scheduler.evictor import Evictor
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.nominated_nodes import write_nominated_node
from tessera.scheduler.observer import PreemptionEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import CycleState, PodCycle, PodCycles
from tessera.scheduler.unschedulable_pods import UnschedulablePod
from tessera.scheduler.victim_book import VictimBook
from tessera.services.failpoints import Failpoint, failpoint

ATTEMPTS = 5
"""sets of victims that are tried for one refusal"""
AGAIN_SECONDS = 1.0
"""until a pod is looked at again for which no victims were found, or while this replica cannot decide"""
DEFERRED_SECONDS = 10.0
"""for which a pod is left to kube-scheduler after it was told of victims"""


@dataclass(frozen=True, slots=True)
class PreemptionSettings:
    """What an administrator decides."""

    is_enabled: bool = True
    delay_seconds: float = 0.0
    """between a pod's first refusal and the first eviction for it"""
    nomination_seconds: float = 300.0
    """for which devices are held beyond the victims' grace"""


class Preemptor:
    """Works for the refused pods of one scheduler."""

    def __init__(
        self,
        cycles: PodCycles,
        preemption: Preemption,
        book: VictimBook,
        api: KubeApi,
        *,
        observer: SchedulerObserver,
        settings: PreemptionSettings,
        is_ready: Callable[[], bool],
    ) -> None:
        """`is_ready`: whether this replica decides now, on complete lists."""
        self._cycles = cycles
        self._ledger: Ledger = cycles.ledger
        self._preemption = preemption
        self._book = book
        self._api = api
        self._evictor = Evictor(api, book, observer=observer)
        self._observer = observer
        self._settings = settings
        self._is_ready = is_ready
        self._refused_at: dict[str, float] = {}
        """when a pod was first seen here"""
        self._fruitless: dict[Hashable, float] = {}
        """kind of pod -> when it is looked at again"""
        self._deferred: dict[str, float] = {}
        """pod -> until when kube-scheduler preempts for it"""
        self._victims_left: dict[str, int] = {}
        """nominated pod -> victims that were there when it was looked at last"""
        self._timer: asyncio.TimerHandle | None = None
        """until the first pod is due that had to wait; one for all, since every round looks at all of them"""
        self._before_evict = failpoint(Failpoint.BEFORE_EVICT)

    # -- over time

    async def run(self) -> None:
        """For ever: look for victims for pods that were refused."""
        async with asyncio.TaskGroup() as evictions:
            while self._settings.is_enabled:
                await self._serve(evictions)

    async def _serve(self, evictions: asyncio.TaskGroup) -> None:
        """One round over the pods that were refused."""
        unschedulable, clock = self._cycles.unschedulable, self._cycles.clock
        await unschedulable.refused.wait()
        unschedulable.refused.clear()
        if not self._is_ready():
            self._set_timer(AGAIN_SECONDS)
            return
        began = clock.monotonic()
        self._tidy()
        waits = []
        for pod in unschedulable.preemptors():
            wait = self._wait_of(pod)
            if wait > 0:
                waits.append(wait)
                continue
            pod.may_preempt = False
            found = await self._nominate(pod)
            if found is not None:
                evictions.create_task(self._evict_or_renounce(pod, found))
            # Other requests get at least as much time as the search took.
            await asyncio.sleep(clock.monotonic() - began)
            began = clock.monotonic()
        if waits:
            self._set_timer(min(waits))
        # A round over a large backlog takes time too, and each refusal asks for another one.
        await asyncio.sleep(clock.monotonic() - began)

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._cycles.unschedulable.refused.set)

    async def end_overdue(self) -> None:
        """Give up nominations whose time is over; called at every tick. Other refused pods are looked at again."""
        for uid in self._ledger.nominations.expired(self._cycles.clock.monotonic()):
            cycle, pod = self._cycles.get(uid), self._cycles.unschedulable.get(uid)
            nomination = self._ledger.nominations.get(uid)
            for victim in nomination.victims if nomination is not None else ():
                self._book.note_stuck(victim)
            if cycle is not None and cycle.state is CycleState.NOMINATED and pod is not None:
                await self._renounce(cycle, pod.request, "The devices were held for too long: the nomination ends")
        self._cycles.unschedulable.reconsider()

    def ready(self) -> Iterator[PodRequest]:
        """Nominated pods that fit now, each once until it is refused again."""
        for nomination in self._ledger.nominations.all():
            uid = nomination.facts.uid
            pod = self._cycles.unschedulable.get(uid)
            left = sum(self._ledger.pod(victim) is not None for victim in nomination.victims)
            if pod is None or pod.is_woken or (left and left == self._victims_left.get(uid)):
                continue
            self._victims_left[uid] = left
            view = self._ledger.node(nomination.facts.node, claimant=uid)
            rooms = self._ledger.rooms(pod.request.namespace, pod.request.vendors, claimant=uid)
            if view is not None and not isinstance(fit_pod(view, pod.request, self._ledger.rules, rooms), Misfit):
                pod.is_woken = True
                yield pod.request

    def defer(self, uid: str) -> None:
        """kube-scheduler was told of victims, and deletes them: what they free is found soon."""
        self._deferred[uid] = self._cycles.clock.monotonic() + DEFERRED_SECONDS

    # -- one pod

    async def preempt(self, pod: UnschedulablePod) -> None:
        """Nominate a refused pod and evict its victims, if there are any, until they leave or there are no others."""
        for _ in range(ATTEMPTS):
            found = await self._nominate(pod)
            if found is None or await self._evict_all(pod.request, found):
                return

    async def _nominate(self, pod: UnschedulablePod) -> VictimSet | None:
        """The victims for which the pod is nominated now; None if it is not."""
        for _ in range(ATTEMPTS):
            if self._cycle_of(pod) is None:
                return None
            began = self._cycles.clock.monotonic()
            found = await self._search(pod)
            seconds = self._cycles.clock.monotonic() - began
            cycle = self._cycle_of(pod)
            if cycle is None:
                return None
            if found is None:
                self._fruitless[_kind(pod)] = self._cycles.clock.monotonic() + AGAIN_SECONDS + 20 * seconds
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
        victims, leaving = self._traits(found.victims), self._traits(found.leaving)
        grace = max((traits.grace_seconds for traits in (*victims, *leaving)), default=0.0)
        deadline = self._cycles.clock.monotonic() + grace + self._settings.nomination_seconds
        claimed = frozenset((*found.victims, *found.leaving))
        self._cycles.nominate(cycle, facts_of(request, found.placement), claimed, deadline=deadline)
        self._victims_left.pop(request.uid, None)
        self._observer.on_preemption(
            PreemptionEvent(request, node=found.node, victims=victims, waits_for=leaving, seconds=seconds)
        )
        self._before_evict()

    async def _evict_or_renounce(self, pod: UnschedulablePod, found: VictimSet) -> None:
        """What `run` does after a nomination. If a victim stays, the pod is looked at again, a bounded number of times:
        pods that stay are spared for a while."""
        if not await self._evict_all(pod.request, found):
            pod.may_preempt = True
            self._cycles.unschedulable.refused.set()

    async def _evict_all(self, request: PodRequest, found: VictimSet) -> bool:
        """Whether all victims leave; otherwise the nomination is renounced."""
        victims, nomination = self._traits(found.victims), self._ledger.nominations.get(request.uid)
        problem = await self._evictor.evict(
            victims,
            preemptor=request,
            obstacle=lambda victim: self._obstacle(victim, request),
        )
        cycle = self._cycles.get(request.uid)
        is_same = self._ledger.nominations.get(request.uid) is nomination
        if problem and cycle is not None and is_same:
            await self._renounce(cycle, request, problem)
        if problem:
            return False
        if is_same and nomination is not None:
            await write_nominated_node(self._api, request, found.node)
        self._cycles.unschedulable.on_room()  # The victims may be gone already.
        return True

    async def _search(self, pod: UnschedulablePod) -> VictimSet | None:
        priority = pod.request.preempts_below
        if priority is None:
            return None
        self._book.forget_overdue()
        search = self._preemption.search(pod.request, priority=priority, candidates=pod.candidates)
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: VictimSet | None = end.value
                return found
            await asyncio.sleep(0)

    def _confirm(self, request: PodRequest, found: VictimSet) -> VictimSet | None:
        priority = request.preempts_below
        assert priority is not None  # the search had one
        search = NodeSearch(self._ledger, self._book, request, priority=priority, node=found.node)
        return search.confirm(found)

    def _obstacle(self, victim: PodTraits, request: PodRequest) -> str:
        """Why a victim must not be evicted any more; empty if it may."""
        if not self._is_ready():
            return "this replica does not decide any more"
        nomination = self._ledger.nominations.get(request.uid)
        if nomination is None or victim.uid not in nomination.victims:
            return f"pod {request.namespace}/{request.name} is gone, or has a node"
        return ""

    async def _renounce(self, cycle: PodCycle, request: PodRequest, problem: str) -> None:
        if cycle.state is not CycleState.NOMINATED:
            return
        nomination = self._ledger.nominations.get(request.uid)
        node = nomination.facts.node if nomination is not None else ""
        self._cycles.renounce(cycle)
        self._observer.on_preemption(PreemptionEvent(request, node=node, problem=problem))
        await write_nominated_node(self._api, request, None)

    # -- inside

    def _cycle_of(self, pod: UnschedulablePod) -> PodCycle | None:
        """The record of a pod that is still refused, may preempt, and which nothing else works on."""
        cycle = self._cycles.get(pod.request.uid)
        is_idle = cycle is not None and cycle.state is CycleState.REFUSED and not cycle.is_claimed
        return cycle if is_idle and self._is_ready() else None

    def _traits(self, uids: tuple[str, ...]) -> tuple[PodTraits, ...]:
        return tuple(traits for uid in uids if (traits := self._book.traits(uid)) is not None)

    def _wait_of(self, pod: UnschedulablePod) -> float:
        """Seconds until victims are looked for."""
        uid, now = pod.request.uid, self._cycles.clock.monotonic()
        first = self._refused_at.setdefault(uid, now)
        due = first + self._settings.delay_seconds
        return max(due, self._fruitless.get(_kind(pod), 0.0), self._deferred.get(uid, 0.0)) - now

    def _tidy(self) -> None:
        """Forget what does not wait any more."""
        unschedulable, now = self._cycles.unschedulable, self._cycles.clock.monotonic()
        for by_pod in (self._refused_at, self._victims_left):
            for uid in [uid for uid in by_pod if uid not in unschedulable]:
                del by_pod[uid]
        self._fruitless = {kind: until for kind, until in self._fruitless.items() if until > now}
        self._deferred = {uid: until for uid, until in self._deferred.items() if until > now}


def _kind(pod: UnschedulablePod) -> Hashable:
    """Pods for which the same victims are found."""
    request = pod.request
    return request.shape, request.namespace, request.preempts_below, pod.candidates.fingerprint
