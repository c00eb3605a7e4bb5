"""Long work on an event loop that has something better to do: some milliseconds of it, then a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.004
"""of the event loop at once"""

Pause = Callable[[float], Awaitable[None]]
"""waits after so many seconds of work"""


def pause_for(share: float) -> Pause:
    """Pauses so that work takes this part of the event loop's time."""

    async def pause(spent: float) -> None:
        await asyncio.sleep(spent * (1.0 / share - 1.0))

    return pause


async def in_steps(steps: Iterable[T], pause: Pause) -> AsyncIterator[T]:
    """The same, with pauses between slices of time."""
    began = time.perf_counter()
    for step in steps:
        yield step
        spent = time.perf_counter() - began
        if spent > SLICE_SECONDS:
            await pause(spent)
            began = time.perf_counter()
