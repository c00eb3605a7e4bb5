"""Looks at the sockets in kubelet's directories, several times a second.

A notification would not do: it can be lost, a directory can be replaced or missing, and a node can run out of watches.
Looking takes microseconds and misses none of these.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

LOOK_EVERY_S = 0.2


class FileId(NamedTuple):
    """One file, and no later file of the same name: inodes are reused, but not at the same time."""

    device: int
    inode: int
    born_ns: int
    """modification time; a socket's file is never written to"""


class SocketState(NamedTuple):
    """Which files exist; None for those that do not."""

    folder: tuple[int, int] | None
    """of the agent's own socket"""
    own: FileId | None
    kubelet: FileId | None


def file_id(path: Path) -> FileId | None:
    """Returns None if there is no file, or none that can be read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileId(found.st_dev, found.st_ino, found.st_mtime_ns)


class SocketWatch:
    def __init__(self, *, own: Path, kubelet: Path | None, look_every: float = LOOK_EVERY_S) -> None:
        self._own = own
        self._kubelet = kubelet
        self._look_every = look_every

    def look(self) -> SocketState:
        """Returns the current state."""
        folder = file_id(self._own.parent)
        return SocketState(
            folder=None if folder is None else folder[:2],
            own=file_id(self._own),
            kubelet=None if self._kubelet is None else file_id(self._kubelet),
        )

    async def other_than(self, seen: SocketState, *, within: float) -> SocketState:
        """Returns the state as soon as it differs, or the same state after so many seconds."""
        time = asyncio.get_running_loop().time
        end = time() + within
        while (state := self.look()) == seen and (left := end - time()) > 0:
            await asyncio.sleep(min(left, self._look_every))
        return state
