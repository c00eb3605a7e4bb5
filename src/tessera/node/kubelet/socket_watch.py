"""What is to be seen in kubelet's folders, and waiting until it changes.

The files themselves are the truth; inotify only says when to look. It can overflow, a folder can be replaced or not be
there yet, and a node can be out of watches: so there is a look every few seconds as well.
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
"""without any news"""

_NEWS = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


class FileId(NamedTuple):
    """One file, and no later one of the same name: inode numbers are used again, but not within the same moment."""

    device: int
    inode: int
    born_ns: int
    """when it was last written to; nobody writes to a socket's file"""


class Sight(NamedTuple):
    """What there is; None for what there is not."""

    folder: tuple[int, int] | None
    """of the agent's own socket"""
    own: FileId | None
    kubelet: FileId | None


def file_id(path: Path) -> FileId | None:
    """None where there is nothing, or nothing that can be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileId(found.st_dev, found.st_ino, found.st_mtime_ns)


class Watching:
    """Use as `with Watching(...) as watching`."""

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
            log.warning("no inotify; looking from time to time instead", error=str(error), seconds=self._look_every)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inotify is not None:
            self._inotify.close()

    async def look(self) -> Sight:
        """Now."""
        return await asyncio.to_thread(self._look)

    async def other_than(self, seen: Sight, *, within: float) -> Sight:
        """What is to be seen as soon as it differs; the same again after so many seconds."""
        time = asyncio.get_running_loop().time
        end = time() + within
        while (sight := await self.look()) == seen and (left := end - time()) > 0:
            await self._news(min(left, self._look_every))
        return sight

    def _look(self) -> Sight:
        # First the watch, then the look: whatever happens after the look is told.
        for folder in self._folders:
            self._watch(folder)
        folder_id = file_id(self._own.parent)
        return Sight(
            folder=None if folder_id is None else (folder_id.device, folder_id.inode),
            own=file_id(self._own),
            kubelet=None if self._kubelet is None else file_id(self._kubelet),
        )

    def _watch(self, folder: Path) -> None:
        """Does nothing for a folder that is watched already, unless another one has taken its place."""
        if self._inotify is None:
            return
        before = self._watches.pop(folder, None)
        # Without the folder, or without a free watch, the next look tries again.
        with contextlib.suppress(OSError):
            self._watches[folder] = self._inotify.add_watch(folder, _NEWS)
        if before is not None and self._watches.get(folder) is not before:
            # Already gone with its folder, mostly; one that was moved away would be watched for ever.
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(before)

    async def _news(self, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                if self._inotify is None:
                    await asyncio.Event().wait()
                else:
                    while not self._concerns(await self._inotify.get()):
                        pass

    def _concerns(self, event: Event) -> bool:
        """Other plugins and kubelet's checkpoint are in the folder too; an event without a name is about the folder."""
        return event.name is None or event.name.name in self._names
