"""Long work on an event loop that has something better to do: some milliseconds of it, then a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def one_step(pause: Pause) -> AsyncIterator[None]:
    """A block of work that is done at once, with a pause after it."""
    began = time.thread_time()
    yield
    await pause(time.thread_time() - began)


async def paced(records: AsyncIterator[T], pause: Pause) -> AsyncIterator[T]:
    """The same for work that is done by a generator."""
    began = time.thread_time()
    async for record in records:
        yield record
        spent = time.thread_time() - began
        if spent > SLICE_S:
            await pause(spent)
            began = time.thread_time()


async def finish_in_steps(steps: Generator[None, None, T], pause: Pause) -> T:
    """The result of work that may pause."""
    found: list[T] = []

    def follow() -> Generator[None, None, None]:
        found.append((yield from steps))

    async for _ in in_steps(follow(), pause):
        pass
    return found[0]


async def in_steps(steps: Iterable[T], pause: Pause) -> AsyncIterator[T]:
    """The same, with pauses between slices of time. Processor time counts: on a busy machine the clock would make
    pauses longer and longer."""
    began = time.thread_time()
    for step in steps:
        yield step
        spent = time.thread_time() - began
        if spent > SLICE_S:
            await pause(spent)
            began = time.thread_time()
