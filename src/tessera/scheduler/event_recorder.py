"""Writes decisions as events on their pods: warnings soon, successes when there is time.

A pod's first refusal is one event with a sentence. In a backlog, sentences take their turn: a few are made at a time,
pods that are refused alike share one, and a pod that is placed before its turn needs none.

kube-scheduler reports "Scheduled" as well, and events must not slow decisions down. So successes wait until decisions
pause or are few, or until they have waited for long. Each keeps the time of its decision. Under lasting pressure the
oldest successes are dropped and counted. Never blocks a caller, never raises, and never changes a decision.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable

import msgspec

from tessera.core.model.requests import PodRequest
from tessera.core.search.advice import failure_texts
from tessera.kube.event_broadcaster import EventBroadcaster, ObjectRef
from tessera.scheduler.observer import (
    BindEvent,
    EvictedEvent,
    PlacedEvent,
    PreemptionEvent,
    RefusedEvent,
    SchedulerObserver,
)

NORMAL, WARNING = "Normal", "Warning"
QUIET_S = 0.25
"""without a decision, after which there is time"""
BUSY = 8
"""successes within that time; with fewer there is time as well"""
PATIENCE_S = 10.0
"""after which a success is written in busy times as well, one at a time"""
BATCH = 8
"""successes written before looking whether decisions have begun again"""
MAX_WAITING = 1000
"""successes; as many events as the broadcaster takes"""
DETAILED = 16
"""waiting successes up to which a sentence compares all nodes; with more, it names the chosen node alone"""
REFUSALS = 25
"""pods whose refusals are written per `QUIET_S`: a backlog is no more than 100 events a second"""
SENTENCES = 4
"""different sentences made in that time; with thousands of nodes one takes milliseconds of the event loop"""
MAX_REFUSED = 10_000
"""pods whose refusal waits to be written"""
WRITE_S = 5.0
"""for a batch; if it takes longer, the apiserver is busy too"""


class _Success(msgspec.Struct, frozen=True):
    pod: ObjectRef
    reason: str
    at: float
    text: Callable[[], str]
    """called when the event is written"""


class EventRecorder(SchedulerObserver):
    """One for all decisions of a service. Make it on the event loop that runs it."""

    def __init__(self, events: EventBroadcaster, *, now: Callable[[], float], hami_texts: bool = False) -> None:
        """`now` in seconds since the epoch. `hami_texts`: refusals are told in HAMi's coded texts."""
        self._events = events
        self._now = now
        self._waiting: deque[_Success] = deque()
        self._fresh = 0
        """successes since the last look"""
        self._has_waiting = asyncio.Event()
        self._hami_texts = hami_texts
        self._refused: OrderedDict[str, RefusedEvent] = OrderedDict()
        """by uid, the oldest first"""
        self._has_refused = asyncio.Event()
        self._given_up = 0

    @property
    def dropped(self) -> int:
        """Events that were never written."""
        return self._given_up + self._events.dropped

    def on_placed(self, event: PlacedEvent) -> None:
        self._refused.pop(event.request.uid, None)
        if len(self._waiting) >= DETAILED:
            self._later(_Success(_ref(event.request), "FilteringSucceed", self._now(), event.describe_briefly))
        else:
            # Once the answer is on its way: kube-scheduler does not wait for a sentence.
            asyncio.get_running_loop().call_soon(self._describe_success, event)

    def on_refused(self, event: RefusedEvent) -> None:
        if not event.is_first:
            return
        self._refused[event.request.uid] = event
        self._has_refused.set()
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
            self._given_up += 1

    def on_bind(self, event: BindEvent) -> None:
        pod = ObjectRef("Pod", event.namespace, event.name, event.uid)
        if event.error:
            self._events.record(pod, WARNING, "BindingFailed", event.text)
        else:
            self._later(_Success(pod, "BindingSucceed", self._now(), lambda: event.text))

    def on_evicted(self, event: EvictedEvent) -> None:
        victim = event.victim
        self._events.record(
            ObjectRef("Pod", victim.namespace, victim.name, victim.uid), NORMAL, "Preempted", event.text
        )

    def on_preemption(self, event: PreemptionEvent) -> None:
        if event.node:
            kind, reason = (WARNING, "PreemptionFailed") if event.problem else (NORMAL, "Preempting")
            for request in event.members or (event.request,):
                self._events.record(_ref(request), kind, reason, event.text)

    async def run(self) -> None:
        """For ever, until cancelled; `flush` writes what is still waiting then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_refusals())
            group.create_task(self._write_successes())

    async def _write_refusals(self) -> None:
        while True:
            await self._has_refused.wait()
            self._record_refusals()
            await asyncio.sleep(QUIET_S)

    async def _write_successes(self) -> None:
        while True:
            await self._has_waiting.wait()
            await asyncio.sleep(QUIET_S)
            if self._events.waiting:
                continue  # Warnings first, and no more than the apiserver takes.
            is_busy, self._fresh = self._fresh > BUSY, 0
            if is_busy and self._waiting and self._now() - self._waiting[0].at < PATIENCE_S:
                continue
            while self._waiting:
                self._record(1 if is_busy else BATCH)
                if await self._events.flush(WRITE_S) or is_busy or self._fresh:
                    break

    async def flush(self, deadline: float) -> int:
        """Write what waits, giving up after `deadline` seconds; how many were left. Of the refusals only the next few:
        the next decider refuses these pods again."""
        self._record_refusals()
        self._record(len(self._waiting))
        return await self._events.flush(deadline)

    def _describe_success(self, event: PlacedEvent) -> None:
        text = event.describe()
        self._later(_Success(_ref(event.request), "FilteringSucceed", self._now(), lambda: text))

    def _record_refusals(self) -> None:
        """The oldest ones, as many as one turn allows."""
        known: dict[Hashable, Iterable[str]] = {}
        for _ in range(min(REFUSALS, len(self._refused))):
            event = next(iter(self._refused.values()))
            alike = (id(event.refused), event.request.shape, event.request.namespace)
            if alike not in known:
                if len(known) == SENTENCES:
                    break
                known[alike] = failure_texts(event.refused) if self._hami_texts else (event.describe(),)
            del self._refused[event.request.uid]
            for text in known[alike]:
                self._events.record(_ref(event.request), WARNING, "FilteringFailed", text)
        if not self._refused:
            self._has_refused.clear()

    def _later(self, success: _Success) -> None:
        self._waiting.append(success)
        self._fresh += 1
        waiting = len(self._waiting)
        if waiting == 1:
            self._has_waiting.set()
        elif waiting > MAX_WAITING:
            self._waiting.popleft()
            self._given_up += 1

    def _record(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            success = self._waiting.popleft()
            self._events.record(success.pod, NORMAL, success.reason, success.text(), at=success.at)
        if not self._waiting:
            self._has_waiting.clear()


def _ref(request: PodRequest) -> ObjectRef:
    return ObjectRef("Pod", request.namespace, request.name, request.uid)
