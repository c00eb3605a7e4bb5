"""Notices when the configuration should be read again: SIGHUP asked for it, or one of its files changed or went.

Files are compared by inode, time and size, never read here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

LOOK_AT_FILES_S = 5.0
"""seconds between looks at the configuration files"""

Stamp = tuple[tuple[int, int, int], ...]


class FileNotice:
    """`files` says which ones count at this moment."""

    def __init__(self, files: Callable[[], Sequence[str]]) -> None:
        self._files = files
        self._asked = asyncio.Event()
        self._seen: Stamp | None = None

    def ask(self) -> None:
        """As SIGHUP does."""
        self._asked.set()

    async def begin(self) -> None:
        """What is there now is no news."""
        self._seen = await asyncio.to_thread(self._stamp)

    async def news(self) -> bool:
        """Wait until the configuration should be read again; whether somebody asked for it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AT_FILES_S):
                    await self._asked.wait()
            asked = self._asked.is_set()
            self._asked.clear()
            before, self._seen = self._seen, await asyncio.to_thread(self._stamp)
            if asked or self._seen != before:
                return asked

    def _stamp(self) -> Stamp:
        return tuple(_stamp_of(name) for name in self._files())


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
