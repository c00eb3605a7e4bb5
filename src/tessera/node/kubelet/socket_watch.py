"""Watches the sockets in kubelet's directories.

The files themselves are the truth; inotify only says when to look. It can overflow, a directory can be replaced or
missing, and a node can run out of watches, so the files are also checked every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import structlog
from asyncinotify import Event, Inotify, Mask, Watch

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 3.0
"""without a notification"""

_MASK = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


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
    """Use as `with SocketWatch(...) as watch`."""

    def __init__(self, *, own: Path, kubelet: Path | None, look_every: float = LOOK_EVERY_S) -> None:
        self._own = own
        self._kubelet = kubelet
        self._look_every = look_every
        sockets = [path for path in (own, kubelet) if path is not None]
        self._folders = tuple(dict.fromkeys(path.parent for path in sockets))
        self._names = frozenset(path.name for path in sockets)
        self._inotify: Inotify | None = None
        self._watches: dict[Path, Watch] = {}

    def __enter__(self) -> Self:
        try:
            self._inotify = Inotify()
        except OSError as error:
            log.warning("no inotify; polling instead", error=str(error), seconds=self._look_every)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inotify is not None:
            self._inotify.close()

    async def look(self) -> SocketState:
        """Returns the current state."""
        return await asyncio.to_thread(self._look)

    async def other_than(self, seen: SocketState, *, within: float) -> SocketState:
        """Returns the state as soon as it differs, or the same state after so many seconds."""
        time = asyncio.get_running_loop().time
        end = time() + within
        while (state := await self.look()) == seen and (left := end - time()) > 0:
            await self._wait_for_event(min(left, self._look_every))
        return state

    def _look(self) -> SocketState:
        # Watch before looking: changes after the look are then notified.
        for folder in self._folders:
            self._watch(folder)
        folder_id = file_id(self._own.parent)
        return SocketState(
            folder=None if folder_id is None else (folder_id.device, folder_id.inode),
            own=file_id(self._own),
            kubelet=None if self._kubelet is None else file_id(self._kubelet),
        )

    def _watch(self, folder: Path) -> None:
        """Does nothing for a directory that is watched already, unless it was replaced."""
        if self._inotify is None:
            return
        before = self._watches.pop(folder, None)
        # If the directory is missing or watches have run out, the next look tries again.
        with contextlib.suppress(OSError):
            self._watches[folder] = self._inotify.add_watch(folder, _MASK)
        if before is not None and self._watches.get(folder) is not before:
            # Usually it is gone with its directory; a moved directory would stay watched forever.
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(before)

    async def _wait_for_event(self, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                if self._inotify is None:
                    await asyncio.Event().wait()
                else:
                    while not self._concerns(await self._inotify.get()):
                        pass

    def _concerns(self, event: Event) -> bool:
        """Other plugins use the directory too. An event without a name is about the directory itself."""
        return event.name is None or event.name.name in self._names
