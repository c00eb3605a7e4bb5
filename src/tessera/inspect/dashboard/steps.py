"""Long work on an event loop that has something better to do: some milliseconds of it, then a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import TypeVar

from tessera.inspect.state import InspectionError

T = TypeVar("T")

SLICE_S = 0.004
"""of the event loop at once"""

Pause = Callable[[float], Awaitable[None]]
"""waits after so many seconds of work"""


def pause_for(share: float) -> Pause:
    """Pauses so that work takes this part of the event loop's time."""

    async def pause(spent: float) -> None:
        await asyncio.sleep(spent * (1.0 / share - 1.0))

    return pause


class TooLong(InspectionError):
    """Work took more time than it may."""


class Allowance:
    """A pause that ends the work when there was too much of it. Raises TooLong."""

    def __init__(self, pause: Pause, seconds: float, instead: str = "") -> None:
        self._pause = pause
        self._left = seconds
        self._instead = instead

    async def __call__(self, spent: float) -> None:
        self._left -= spent
        if self._left <= 0:
            raise TooLong(f"this takes longer than a page may: {self._instead}")
        await self._pause(spent)


class Pace:
    """Pauses between slices of time. Processor time counts: on a busy machine the clock would make pauses longer and
    longer."""

    def __init__(self, pause: Pause) -> None:
        self._pause = pause
        self._began = time.thread_time()

    async def step(self) -> None:
        """Some more work was done."""
        spent = time.thread_time() - self._began
        if spent > SLICE_S:
            await self._pause(spent)
            self._began = time.thread_time()


async def in_steps(steps: Iterable[T], pause: Pause) -> AsyncIterator[T]:
    """The same, with pauses."""
    pace = Pace(pause)
    for step in steps:
        yield step
        await pace.step()


async def finish_in_steps(steps: Generator[None, None, T], pause: Pause) -> T:
    """The result of work that may pause."""
    pace = Pace(pause)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await pace.step()
