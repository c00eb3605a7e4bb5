"""Rounds over what was refused and may preempt: victims are looked for one after the other, and evicted side by side.

    refused --> wait, if it is too early --> search, in slices --> nominated --> victims evicted
                        ^                         |                                  |
                        '-------------------------'-- none, or a victim stays -------'

`preemptor` does this for single pods and `gangs/preemptor` for whole gangs: they say what is next, how victims are
found, and what becomes of them.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

from tessera.scheduler.clock import Clock
from tessera.scheduler.settings import Settings
from tessera.services.failpoints import Failpoint, failpoint

ATTEMPTS = 5
"""sets of victims that are tried for one refusal"""
AGAIN_S = 1.0
"""until a pod is looked at again for which no victims were found, or while this replica cannot decide"""
SEARCH_PAUSE = 20
"""times as long as a search in vain took, the next one waits at least"""
NOT_DECIDING = "this replica does not decide any more"

Preemptor = TypeVar("Preemptor")
"""what was refused: a pod, or a gang"""
Victims = TypeVar("Victims")
T = TypeVar("T")


class PreemptionLoop(ABC, Generic[Preemptor, Victims]):
    """Looks for victims, for one kind of preemptors."""

    def __init__(
        self, refused: asyncio.Event, clock: Clock, *, settings: Settings, is_ready: Callable[[], bool]
    ) -> None:
        """`refused` is set when there may be work; `is_ready`: whether this replica decides now, on complete lists."""
        self._refused = refused
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
            found = await self._nominate(preemptor)
            if found is None or await self._evict(preemptor, found):
                return

    @abstractmethod
    def preemptors(self) -> Iterable[Preemptor]:
        """What was refused since it was looked at last: the highest priority first, then the longest wait."""

    @abstractmethod
    def _wait_of(self, preemptor: Preemptor) -> float:
        """Seconds until victims are looked for."""

    @abstractmethod
    async def _nominate(self, preemptor: Preemptor) -> Victims | None:
        """The victims for which it is nominated now; None if it is not."""

    @abstractmethod
    async def _evict(self, preemptor: Preemptor, found: Victims) -> bool:
        """Whether all victims leave; otherwise what it was nominated for is renounced."""

    @abstractmethod
    def _look_again(self, preemptor: Preemptor) -> None:
        """It is one of the `preemptors` again. Pods that stay are spared for a while, so that ends."""

    async def _serve(self, evictions: asyncio.TaskGroup) -> None:
        """One round."""
        await self._refused.wait()
        self._refused.clear()
        if not self._is_ready():
            self._set_timer(AGAIN_S)
            return
        began, waits = self._clock.monotonic(), []
        for preemptor in self.preemptors():
            wait = self._wait_of(preemptor)
            if wait > 0:
                waits.append(wait)
                continue
            found = await self._nominate(preemptor)
            if found is not None:
                evictions.create_task(self._evict_or_look_again(preemptor, found))
            # Other requests get at least as much time as the search took.
            await asyncio.sleep(self._clock.monotonic() - began)
            began = self._clock.monotonic()
        if waits:
            self._set_timer(min(waits))
        # A round over a large backlog takes time too, and each refusal asks for another one.
        await asyncio.sleep(self._clock.monotonic() - began)

    async def _evict_or_look_again(self, preemptor: Preemptor, found: Victims) -> None:
        if not await self._evict(preemptor, found):
            self._look_again(preemptor)
            self._refused.set()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._refused.set)


async def finish_in_slices(steps: Generator[None, None, T], *, seconds: float = 0.0) -> T:
    """The result of work that may pause, with other work after each step, or after so many seconds of steps."""
    began = time.perf_counter()
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: T = end.value
                return found
            if time.perf_counter() - began >= seconds:
                await asyncio.sleep(0)
                began = time.perf_counter()
    finally:
        steps.close()
