"""One loop over all that was refused and may preempt: a pod, or a gang as a whole.

    refused --> wait, if it is too early --> search, in slices --> nominated --> victims evicted
                        ^                         |                                  |
                        '-------------------------'-- none, or a victim stays -------'

Whose turn it is, the search, the evictions and how soon it is tried again are the same for all. A feature says who
waits (`Feature.preemptors`), how a nomination is made, and what becomes of it. Only the replica that decides evicts.

While victims leave, `status.nominatedNodeName` makes kube-scheduler keep CPU and memory free. Nothing here depends on
it: a write that fails is not repeated, and the next decider removes what is left (`takeover`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeVar

import structlog

from tessera.core.model.requests import PodRequest
from tessera.core.search.preemption import Demand, Preemption, VictimSet
from tessera.kube.errors import KubeError
from tessera.scheduler.clock import Clock
from tessera.scheduler.eviction.evictor import Evictor
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePods
from tessera.scheduler.settings import Settings
from tessera.services.failpoints import Failpoint, failpoint

ATTEMPTS = 5
"""sets of victims that are tried for one refusal"""
AGAIN_S = 1.0
"""until victims are looked for again after a search in vain, or while this replica cannot decide"""
SEARCH_PAUSE = 20
"""times as long as a search in vain took, the next one waits at least"""
SLICE_S = 0.002
"""of a search between two pauses"""
NOT_DECIDING = "this replica does not decide any more"

T = TypeVar("T")


class Nominated(NamedTuple):
    """A preemptor has a nomination, and these pods have to leave."""

    nomination: object
    victims: tuple[str, ...]
    """uids"""


class Preemptor(ABC):
    """A pod or a gang that was refused, and for which other pods may leave."""

    def __init__(self, name: str, priority: int, refused_at: float) -> None:
        """`name`: as events call it; `refused_at`: when it was looked at first."""
        self.name = name
        self.priority = priority
        self.refused_at = refused_at

    @property
    @abstractmethod
    def is_due(self) -> bool:
        """Whether it was refused since it was looked at last."""

    @is_due.setter
    @abstractmethod
    def is_due(self, value: bool) -> None: ...

    @abstractmethod
    def due_at(self) -> float:
        """When victims are looked for."""

    @abstractmethod
    def postpone(self, until: float) -> None:
        """No victims are looked for before that."""

    @abstractmethod
    def demand(self) -> Demand | None:
        """What victims are looked for; None if it does not wait, or nothing can be found now."""

    @abstractmethod
    def is_waiting(self, demand: Demand) -> bool:
        """Whether it waits as it did before the search."""

    @abstractmethod
    def on_no_victims(self, seconds: float) -> None:
        """The search found none."""

    @abstractmethod
    async def nominate(self, found: VictimSet, seconds: float) -> Nominated | None:
        """None if the victims, or the places, are not what the search has seen."""

    @abstractmethod
    def is_nominated(self, nomination: object) -> bool:
        """Whether this nomination is still its own."""

    @abstractmethod
    def evicts_as(self) -> tuple[PodRequest, str] | None:
        """The pod for which victims are evicted, and its gang; None if none of its pods waits any more."""

    @abstractmethod
    def on_evicted(self) -> None:
        """All victims leave, or have left."""

    @abstractmethod
    def renounce(self, problem: str) -> None:
        """A victim stays: end the nomination."""


class PreemptionLoop:
    """Works for all preemptors of one scheduler."""

    def __init__(
        self,
        preemptors: Callable[[], Iterable[Preemptor]],
        preemption: Preemption,
        evictor: Evictor,
        *,
        unschedulable: UnschedulablePods,
        clock: Clock,
        settings: Settings,
        is_ready: Callable[[], bool],
    ) -> None:
        """`preemptors`: those that are due; `is_ready`: whether this replica decides now, on complete lists."""
        self._preemptors = preemptors
        self._preemption = preemption
        self._evictor = evictor
        self._unschedulable = unschedulable
        self._refused = unschedulable.refused
        self._clock = clock
        self._settings = settings
        self._is_ready = is_ready
        self._timer: asyncio.TimerHandle | None = None
        """until the first one is due that had to wait; one for all, since every round looks at all of them"""
        self._before_evict = failpoint(Failpoint.BEFORE_EVICT)

    async def run(self) -> None:
        """Looks for victims until cancelled."""
        async with asyncio.TaskGroup() as evictions:
            while self._settings.preemption:
                await self._serve(evictions)

    async def preempt(self, preemptor: Preemptor) -> None:
        """Nominate it and evict its victims, if there are any, until they leave or there are no others."""
        for _ in range(ATTEMPTS):
            nominated = await self.nominate(preemptor)
            if nominated is None or await self.evict(preemptor, nominated):
                return

    async def nominate(self, preemptor: Preemptor) -> Nominated | None:
        """The victims for which it is nominated now; None if it is not."""
        preemptor.is_due, first = False, self._clock.monotonic()
        for _ in range(ATTEMPTS):
            self._evictor.book.forget_overdue()
            demand = preemptor.demand() if self._is_ready() else None
            if demand is None:
                return None
            began = self._clock.monotonic()
            found = await finish_in_slices(self._preemption.search(demand), seconds=SLICE_S)
            now = self._clock.monotonic()
            if not self._is_ready() or not preemptor.is_waiting(demand):
                return None
            if found is None or not (found.victims or found.leaving):
                preemptor.postpone(now + AGAIN_S + SEARCH_PAUSE * (now - began))
                if found is None:
                    preemptor.on_no_victims(now - began)
                else:
                    self._unschedulable.on_room()  # It fits as it is.
                return None
            # The search may have paused, and nodes may have changed since.
            nominated = await preemptor.nominate(found, now - began)
            if nominated is not None:
                self._before_evict()
                return nominated
        now = self._clock.monotonic()
        preemptor.postpone(now + AGAIN_S + SEARCH_PAUSE * (now - first))
        preemptor.is_due = True
        return None

    async def evict(self, preemptor: Preemptor, nominated: Nominated) -> bool:
        """Whether all victims leave; otherwise the nomination ends."""
        evicting, (nomination, victims) = preemptor.evicts_as(), nominated
        if evicting is None:
            return True
        request, gang = evicting
        problem = await self._evictor.evict(
            self._evictor.book.traits_of(victims),
            preemptor=request,
            gang=gang,
            obstacle=lambda _: self._obstacle(preemptor, nomination),
        )
        if preemptor.is_nominated(nomination):
            if problem:
                preemptor.renounce(problem)
            else:
                preemptor.on_evicted()
        if not problem:
            self._unschedulable.on_room()  # The victims may be gone already.
        return not problem

    def _obstacle(self, preemptor: Preemptor, nomination: object) -> str:
        """Why a victim must not be evicted any more; empty if it may."""
        if not self._is_ready():
            return NOT_DECIDING
        return "" if preemptor.is_nominated(nomination) else f"{preemptor.name} is not nominated any more"

    async def _serve(self, evictions: asyncio.TaskGroup) -> None:
        """One round: the highest priority first, then the longest wait."""
        await self._refused.wait()
        self._refused.clear()
        if not self._is_ready():
            self._set_timer(AGAIN_S)
            return
        began, waits = self._clock.monotonic(), []
        for preemptor in sorted(self._preemptors(), key=lambda each: (-each.priority, each.refused_at)):
            wait = preemptor.due_at() - self._clock.monotonic()
            if wait > 0:
                waits.append(wait)
                continue
            nominated = await self.nominate(preemptor)
            if nominated is not None:
                evictions.create_task(self._evict_or_look_again(preemptor, nominated))
            elif preemptor.is_due:
                waits.append(preemptor.due_at() - self._clock.monotonic())
            # Other requests get at least as much time as the search took.
            await asyncio.sleep(self._clock.monotonic() - began)
            began = self._clock.monotonic()
        if waits:
            self._set_timer(min(waits))
        # A round over a large backlog takes time too, and each refusal asks for another one.
        await asyncio.sleep(self._clock.monotonic() - began)

    async def _evict_or_look_again(self, preemptor: Preemptor, nominated: Nominated) -> None:
        if not await self.evict(preemptor, nominated):
            # Pods that stay are spared for a while, so that ends.
            preemptor.is_due = True
            self._refused.set()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._refused.set)


async def finish_in_slices(steps: Generator[None, None, T], *, seconds: float = 0.0) -> T:
    """The result of work that may pause, with other work after each step, or after so many seconds of steps."""
    time = asyncio.get_running_loop().time
    began = time()
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: T = end.value
                return found
            if time() - began >= seconds:
                await asyncio.sleep(0)
                began = time()
    finally:
        steps.close()


log = structlog.get_logger(__name__)

CONCURRENT = 8
"""writes under way at once: a gang has many members"""


class NominatedNodes:
    """What is to be written, one write per pod at a time. The last word on a pod counts."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._wanted: dict[str, tuple[PodRequest, str | None]] = {}
        """by uid"""
        self._left: list[tuple[PodRequest, str | None]] = []
        """what is being written"""
        self._changed = asyncio.Event()

    def set(self, request: PodRequest, node: str | None) -> None:
        """None removes it."""
        self._wanted[request.uid] = request, node
        self._changed.set()

    def forget(self) -> None:
        """This replica stops deciding: the next decider removes what is left."""
        self._wanted.clear()
        self._left.clear()

    async def run(self) -> None:
        """Writes every change until cancelled."""
        while True:
            await self._changed.wait()
            await self.write()

    async def write(self) -> None:
        """All that is wanted by now."""
        self._changed.clear()
        self._left, self._wanted = list(self._wanted.values()), {}
        await asyncio.gather(*(self._write_some() for _ in range(CONCURRENT)))

    async def _write_some(self) -> None:
        while self._left:
            request, node = self._left.pop()
            try:
                await self._api.set_nominated_node(request.namespace, request.name, uid=request.uid, node=node)
            except KubeError as error:
                log.warning("nominated node not written", pod=f"{request.namespace}/{request.name}", error=str(error))
