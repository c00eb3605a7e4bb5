"""Tells when the configuration should be read again: on SIGHUP, or when one of its files changed or disappeared.

Files are compared by inode, modification time and size; they are not read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

CHECK_EVERY_S = 5.0

Stamp = tuple[int, int, int]


class FileWatch:
    """`files` returns the paths to watch at this moment."""

    def __init__(self, files: Callable[[], Sequence[str]]) -> None:
        self._files = files
        self._is_requested = asyncio.Event()
        self._stamps: tuple[Stamp, ...] | None = None

    def request_reload(self) -> None:
        """What SIGHUP does."""
        self._is_requested.set()

    async def start(self) -> None:
        """Changes are counted from now on."""
        self._stamps = await asyncio.to_thread(self._take_stamps)

    async def wait_for_change(self) -> bool:
        """Returns when the configuration should be read again, and whether that was requested."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._is_requested.wait()
            is_requested = self._is_requested.is_set()
            self._is_requested.clear()
            before, self._stamps = self._stamps, await asyncio.to_thread(self._take_stamps)
            if is_requested or self._stamps != before:
                return is_requested

    def _take_stamps(self) -> tuple[Stamp, ...]:
        return tuple(_stamp_of(name) for name in self._files())


def _stamp_of(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
