"""What users are told of decisions, as events: trouble at once, success when there is time.

A success is nice to read, and kube-scheduler says "Scheduled" as well; a slow decision helps nobody. So successes wait
until decisions pause or are few, or until they have waited for long. All of them keep their own time. Under
lasting pressure the oldest are given up, and counted. Never blocks a caller and never raises.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from tessera.core.requests import PodRequest
from tessera.kube.event_broadcaster import EventBroadcaster, ObjectRef
from tessera.scheduler.binder import BindEvent
from tessera.scheduler.filter import FilterEvent

NORMAL, WARNING = "Normal", "Warning"
QUIET_SECONDS = 0.25
"""without a decision: then there is time"""
RUSH = 8
"""successes in such a time: with fewer there is time as well"""
PATIENCE_SECONDS = 10.0
"""after which a success is told in a rush as well, one at a time"""
BATCH = 8
"""successes told before looking whether decisions have begun again"""
WAITING = 1000
"""successes kept; as many events as the recorder takes"""
UNHURRIED = 16
"""successes waiting up to which a sentence says how all nodes did; in a rush it names the chosen one alone"""
WRITE_SECONDS = 5.0
"""for a batch; longer means that the apiserver has no time either"""


class _Success(msgspec.Struct, frozen=True):
    """What is told of it is worked out then."""

    subject: PodRequest | BindEvent
    at: float
    text: Callable[[], str]


class EventRecorder:
    """One for all decisions of a service. Make it on the event loop that runs it."""

    def __init__(self, events: EventBroadcaster, *, now: Callable[[], float] = time.time) -> None:
        """`now` in seconds since the epoch."""
        self._events = events
        self._now = now
        self._waiting: deque[_Success] = deque()
        self._fresh = 0
        """successes since somebody looked"""
        self._some = asyncio.Event()
        self._given_up = 0

    @property
    def dropped(self) -> int:
        """Events that were never written."""
        return self._given_up + self._events.dropped

    def is_rush(self) -> bool:
        """Whether the next success is told briefly."""
        return len(self._waiting) >= UNHURRIED

    def decided(self, event: FilterEvent) -> None:
        """A filter call was answered."""
        if event.success and self.is_rush():
            self._later(_Success(event.request, self._now(), event.brief))
        else:
            # Once the answer is on its way: nobody waits for a sentence.
            asyncio.get_running_loop().call_soon(self._decided, event)

    def bound(self, event: BindEvent) -> None:
        """A bind call was answered."""
        if event.error:
            self._events.record(_ref(event), WARNING, "BindingFailed", event.text())
        else:
            self._later(_Success(event, self._now(), event.text))

    async def run(self) -> None:
        """For ever, until cancelled; what is then still waiting is for `flush`."""
        while True:
            await self._some.wait()
            await asyncio.sleep(QUIET_SECONDS)
            if self._events.waiting:
                continue  # trouble first, and no more than the apiserver takes
            is_rush, self._fresh = self._fresh > RUSH, 0
            if is_rush and self._waiting and self._now() - self._waiting[0].at < PATIENCE_SECONDS:
                continue
            while self._waiting:
                self._tell(1 if is_rush else BATCH)
                if await self._events.flush(WRITE_SECONDS) or is_rush or self._fresh:
                    break

    async def flush(self, deadline: float) -> int:
        """Write all that waits, giving up after `deadline` seconds; how many were left."""
        self._tell(len(self._waiting))
        return await self._events.flush(deadline)

    def _decided(self, event: FilterEvent) -> None:
        for text in event.texts():
            if event.success:
                self._later(_Success(event.request, self._now(), partial(str, text)))
            else:
                self._events.record(_ref(event.request), WARNING, "FilteringFailed", text)

    def _later(self, success: _Success) -> None:
        self._waiting.append(success)
        self._fresh += 1
        waiting = len(self._waiting)
        if waiting == 1:
            self._some.set()
        elif waiting > WAITING:
            self._waiting.popleft()
            self._given_up += 1

    def _tell(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            success = self._waiting.popleft()
            subject = success.subject
            reason = "BindingSucceed" if isinstance(subject, BindEvent) else "FilteringSucceed"
            self._events.record(_ref(subject), NORMAL, reason, success.text(), at=success.at)
        if not self._waiting:
            self._some.clear()


def _ref(subject: PodRequest | BindEvent) -> ObjectRef:
    return ObjectRef("Pod", subject.namespace, subject.name, subject.uid)
