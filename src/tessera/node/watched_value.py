"""A value that changes, and everybody who wants to hear of it.

Every listener sees the latest value; one that is slow misses values in between but never the last one. Used from the
event loop only, so there is nothing to lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

T = TypeVar("T")


class Current(Generic[T]):
    """The latest value. Setting an equal one tells nobody."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        if value != self._value:
            self._value = value
            # Everybody who waits holds the old event; the next to wait gets a new one.
            self._changed.set()
            self._changed = asyncio.Event()

    async def changes(self) -> AsyncGenerator[T, None]:
        """The value now, and then every later one that is still the latest when the listener asks."""
        while True:
            changed = self._changed
            yield self._value
            await changed.wait()
