"""A value that changes, with any number of listeners; and waiting for a change, but not forever.

A listener always gets the latest value. A slow listener may miss values in between, but never the last one. Who follows
several values has them set one event. Used from the event loop only, so nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

T = TypeVar("T")


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Waits for the event, at most so many seconds; whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class WatchedValue(Generic[T]):
    """The latest value. Setting an equal value notifies no listener."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()
        self._woken: list[asyncio.Event] = []

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        if value != self._value:
            self._value = value
            # Waiting listeners hold the old event; later ones get a new one.
            self._changed.set()
            self._changed = asyncio.Event()
            for each in self._woken:
                each.set()

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        """Sets the event with each change from now on, while the context lasts."""
        self._woken.append(event)
        try:
            yield
        finally:
            self._woken.remove(event)

    async def other_than(self, seen: T, *, within: float | None = None) -> T:
        """Waits for another value. Returns the latest one, after `within` seconds also the same."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._value == seen:
                    await self._changed.wait()
        return self._value

    async def changes(self) -> AsyncGenerator[T, None]:
        """Yields the current value, and then each later one that is still the latest when the listener is ready."""
        while True:
            changed = self._changed
            yield self._value
            await changed.wait()
