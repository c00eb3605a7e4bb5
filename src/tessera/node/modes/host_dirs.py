"""The folders on the host that containers may write to, made and removed as if every tenant were hostile.

Below `<hook>/vgpu`, which belongs to the agent: `containers/<folder>` is mounted into one container and writable by it;
`discarded/` holds what is on its way out, `spare/` folders made ahead, because making one is what takes longest. A
folder is replaced by moving the old one aside, whatever its size, so a handover never waits for somebody's million
files. Nothing is ever reached through a link: every step goes from an open
folder to an entry of it, and only files and folders of these trees are unlinked.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tessera.node.handover.claims import Claim
from tessera.node.modes.base import Refused
from tessera.wire.quotes import quoted

EVERYBODY = 0o777
"""for folders that containers of any user write to; the process's umask has no say in it"""
OURS = 0o755
IDS_PREFIX = "ids-"
"""of folders that whoever holds certain device ids has alone, because nobody can tell which pod that is; without the
`_` that HAMi's monitor looks for, which would remove them as a dead pod's"""
IDS_DIGITS = 16
CACHE_SUFFIX = ".cache"
SPARES = 4
"""folders made ahead; kubelet asks for one container after the other"""
EMPTYING_STEPS = 2_000
"""entries that one round of removing looks at, a few seconds on a slow disk; the rest waits for the next"""

_UID = r"[0-9A-Za-z-]{1,64}"
_CONTAINER = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_OF_CLAIM = re.compile(rf"{_UID}_{_CONTAINER}", re.ASCII)
_OF_IDS = re.compile(rf"{IDS_PREFIX}[0-9a-f]{{{IDS_DIGITS}}}", re.ASCII)
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_of(claim: Claim) -> str:
    """`<uid>_<container>`, as monitors expect it. Raises Refused for names that no apiserver gives."""
    name = f"{claim.pod.uid}_{claim.container}"
    if _OF_CLAIM.fullmatch(name) is None:
        raise Refused(f"{quoted(name)} cannot be the name of a folder")
    return name


def folder_of_ids(device_ids: Collection[str]) -> str:
    """The same for the same set of ids: kubelet gives an id to one container at a time."""
    text = "\n".join(sorted(set(device_ids)))
    return IDS_PREFIX + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:IDS_DIGITS]


def is_of_ids(name: str) -> bool:
    return _OF_IDS.fullmatch(name) is not None


def cache_of(claim: Claim) -> str:
    """The file in which a container that carries its slice counts: the webhook gave it this name."""
    return f"{claim.pod.uid}_{claim.container}{CACHE_SUFFIX}"


class Emptied(NamedTuple):
    """How far one round of removing came."""

    finished: bool
    problems: tuple[str, ...]
    """what could not be removed and why; the next round tries it again"""


class Folders:
    """All of it blocks; one thread at a time, except that `empty` may run beside the rest. Raises OSError, Refused."""

    def __init__(self, base: Path, *, new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._base = base
        """`<hook>/vgpu`"""
        self._new_name = new_name
        self._spares: list[str] | None = None
        """None until those of an earlier process, which may be half made, were moved aside"""

    def recreate(self, name: str) -> Path:
        """An empty folder of that name that everybody may write to. What was there is moved aside."""
        with self._tree("containers") as containers:
            if _is_folder(containers, name):
                self._set_aside(containers, name)
            if self._spares:
                with self._tree("spare") as spare:
                    os.rename(self._spares.pop(), name, src_dir_fd=spare, dst_dir_fd=containers)
            else:
                _make(containers, name, EVERYBODY)
        return self._base / "containers" / name

    def stock(self) -> None:
        """Make folders ahead."""
        with self._tree("spare") as spare:
            if self._spares is None:
                for name in list(_entries(spare)):
                    self._set_aside(spare, name)
                self._spares = []
            while len(self._spares) < SPARES:
                name = self._new_name()
                _make(spare, name, EVERYBODY)
                self._spares.append(name)

    def names(self) -> list[str]:
        """Folders that are named as ours are, in order."""
        with self._tree("containers") as containers, os.scandir(containers) as entries:
            return sorted(each.name for each in entries if _is_ours(each.name) and each.is_dir(follow_symlinks=False))

    def discard(self, name: str, *, unless: Collection[str] = ()) -> bool:
        """Move a folder aside; not where one of these files is in it. Whether it is gone."""
        with self._tree("containers") as containers:
            if not _is_folder(containers, name):
                return True
            with _opened(name, containers) as folder:
                if any(_exists(folder, each) for each in unless):
                    return False
            self._set_aside(containers, name)
        return True

    def empty(self, *, steps: int = EMPTYING_STEPS) -> Emptied:
        """Remove what was moved aside, at most so many entries of it."""
        problems: list[str] = []
        with self._tree("discarded") as discarded:
            waiting = deque(islice(_entries(discarded), steps))
            while waiting and steps > 0:
                name = waiting.popleft()
                try:
                    steps -= self._remove(discarded, name, waiting, steps)
                except OSError as error:
                    steps -= 1
                    problems.append(f"{quoted(name)}: {error}")
            return Emptied(next(_entries(discarded), None) is None, tuple(problems))

    def _remove(self, discarded: int, name: str, waiting: deque[str], steps: int) -> int:
        """One level only: inner folders come up beside their parent, so depth costs neither stack nor open files.

        The number of entries that it looked at.
        """
        if not _is_folder(discarded, name, refuse=False):
            os.unlink(name, dir_fd=discarded)
            return 1
        looked_at = 1
        with _opened(name, discarded) as folder:
            for entry in _entries(folder):
                if looked_at >= steps:
                    return looked_at
                looked_at += 1
                if _is_folder(folder, entry, refuse=False):
                    waiting.append(new := self._new_name())
                    os.rename(entry, new, src_dir_fd=folder, dst_dir_fd=discarded)
                else:
                    os.unlink(entry, dir_fd=folder)
        os.rmdir(name, dir_fd=discarded)
        return looked_at

    def _set_aside(self, containers: int, name: str) -> None:
        with self._tree("discarded") as discarded:
            os.rename(name, self._new_name(), src_dir_fd=containers, dst_dir_fd=discarded)

    @contextmanager
    def _tree(self, name: str) -> Iterator[int]:
        """One of the folders that only the agent writes to."""
        self._base.mkdir(mode=OURS, parents=True, exist_ok=True)
        # The base itself may be a link: where it leads is the administrator's choice.
        base = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _is_folder(base, name):
                with suppress(FileExistsError):
                    _make(base, name, OURS)
            with _opened(name, base) as tree:
                yield tree
        finally:
            os.close(base)


def share_folder(path: Path) -> None:
    """A folder that all containers write to, e.g. /tmp/vgpulock; whoever may write to its parent cannot redirect it."""
    path.parent.mkdir(mode=OURS, parents=True, exist_ok=True)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _is_folder(parent, path.name):
            _make(parent, path.name, EVERYBODY)
            return
        with _opened(path.name, parent) as folder:
            if stat.S_IMODE(os.fstat(folder).st_mode) != EVERYBODY:
                os.fchmod(folder, EVERYBODY)
    finally:
        os.close(parent)


def _is_ours(name: str) -> bool:
    return is_of_ids(name) or _OF_CLAIM.fullmatch(name) is not None


def _make(parent: int, name: str, mode: int) -> None:
    os.mkdir(name, mode, dir_fd=parent)
    with _opened(name, parent) as folder:
        os.fchmod(folder, mode)


def _is_folder(parent: int, name: str, *, refuse: bool = True) -> bool:
    """False where there is nothing; anything else of that name is refused, or False where it is to be unlinked."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return True
    if refuse:
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise Refused(f"{quoted(name)} on the host is {kind}; somebody must look at it and remove it")
    return False


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _entries(folder: int) -> Iterator[str]:
    # A second descriptor with its own position; closed early where the reader has enough.
    with os.scandir(folder) as entries:
        for each in entries:
            yield each.name


@contextmanager
def _opened(name: str, parent: int) -> Iterator[int]:
    descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
