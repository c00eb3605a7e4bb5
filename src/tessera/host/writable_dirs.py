"""The directories on the host that containers may write to. Every tenant is assumed to be hostile.

Below `<hook>/vgpu`, which belongs to the agent: `containers/<name>` is mounted into one container; `discarded/` holds
what is being deleted; `spare/` holds directories made in advance, because creating one is the slowest step. Replacing a
directory moves the old one aside, so Allocate never waits for the deletion of a million files. No symbolic link is ever
followed: each step goes from an open directory to one of its entries.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tessera.wire.errors import quoted

WORLD_WRITABLE = 0o777
"""for directories that containers of any user write to, whatever the process's umask"""
AGENT_ONLY = 0o755
IDS_PREFIX = "ids-"
"""of directories that belong to the holder of certain device ids, because the pod is unknown; it has no `_`, or HAMi's
monitor would remove them as a dead pod's"""
IDS_DIGITS = 16
CLAIM_PREFIX = "claim-"
"""of directories of ResourceClaims, each for all containers that use one request; without `_` for the same reason"""
CACHE_SUFFIX = ".cache"
SPARES = 4
"""directories made in advance; kubelet asks for one container after the other"""
EMPTYING_STEPS = 2_000
"""entries that one round of deleting visits, a few seconds on a slow disk; the rest waits for the next round"""

_UID = r"[0-9A-Za-z-]{1,64}"
_CONTAINER = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_OF_CONTAINER = re.compile(rf"{_UID}_{_CONTAINER}", re.ASCII)
_OF_IDS = re.compile(rf"{IDS_PREFIX}[0-9a-f]{{{IDS_DIGITS}}}", re.ASCII)
_OF_CLAIM = re.compile(rf"{CLAIM_PREFIX}{_UID}-{_CONTAINER}", re.ASCII)
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafePath(OSError):
    """A name or file that must not be used; the text says why."""


def container_dir_name(uid: str, container: str) -> str:
    """Returns `<uid>_<container>`, which monitors expect. Raises UnsafePath for names that no apiserver allows."""
    name = f"{uid}_{container}"
    if _OF_CONTAINER.fullmatch(name) is None:
        raise UnsafePath(f"{quoted(name)} cannot be the name of a directory")
    return name


def ids_dir_name(device_ids: Collection[str]) -> str:
    """Returns the same name for the same set of ids: kubelet gives an id to one container at a time."""
    text = "\n".join(sorted(set(device_ids)))
    return IDS_PREFIX + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:IDS_DIGITS]


def is_ids_dir_name(name: str) -> bool:
    return _OF_IDS.fullmatch(name) is not None


def claim_dir_name(uid: str, request: str) -> str:
    """The directory of one request of a ResourceClaim."""
    return f"{CLAIM_PREFIX}{uid}-{request}"


def is_claim_dir_name(name: str) -> bool:
    return _OF_CLAIM.fullmatch(name) is not None


def region_file_name(uid: str, container: str) -> str:
    """The region file of a container that uses the downward API: the webhook gave it this name."""
    return f"{uid}_{container}{CACHE_SUFFIX}"


class Emptied(NamedTuple):
    """The result of one round of deleting."""

    finished: bool
    problems: tuple[str, ...]
    """what could not be deleted and why; the next round tries again"""


class WritableDirs:
    """All methods block and raise OSError. Use one thread at a time; only `empty` may run beside the others."""

    def __init__(self, base: Path) -> None:
        self._base = base
        """`<hook>/vgpu`"""
        self._spares: list[str] | None = None
        """None until the spares of an earlier process, which may be half made, are moved aside"""

    def recreate(self, name: str) -> Path:
        """Makes an empty directory that all users may write to. An existing one is moved aside."""
        with self._tree("containers") as containers:
            if _is_directory(containers, name):
                self._set_aside(containers, name)
            if self._spares:
                with self._tree("spare") as spare:
                    os.rename(self._spares.pop(), name, src_dir_fd=spare, dst_dir_fd=containers)
            else:
                _make(containers, name, WORLD_WRITABLE)
        return self._base / "containers" / name

    def stock(self) -> None:
        """Makes directories in advance."""
        with self._tree("spare") as spare:
            if self._spares is None:
                for name in list(_entries(spare)):
                    self._set_aside(spare, name)
                self._spares = []
            while len(self._spares) < SPARES:
                name = uuid.uuid4().hex
                _make(spare, name, WORLD_WRITABLE)
                self._spares.append(name)

    def names(self) -> list[str]:
        """Returns the directories of containers, in order."""
        with self._tree("containers") as containers, os.scandir(containers) as entries:
            return sorted(each.name for each in entries if _is_ours(each.name) and each.is_dir(follow_symlinks=False))

    def discard(self, name: str, *, unless: Collection[str] = ()) -> bool:
        """Moves a directory aside, unless it contains one of these files. Returns whether it is gone."""
        with self._tree("containers") as containers:
            if not _is_directory(containers, name):
                return True
            with opened_dir(name, containers) as folder:
                if any(_exists(folder, each) for each in unless):
                    return False
            self._set_aside(containers, name)
        return True

    def empty(self, *, steps: int = EMPTYING_STEPS) -> Emptied:
        """Deletes what was moved aside, at most `steps` entries of it."""
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
        """Deletes one level and moves inner directories up, so depth costs neither stack nor open files.

        Returns the number of entries visited.
        """
        if not _is_directory(discarded, name, refuse=False):
            os.unlink(name, dir_fd=discarded)
            return 1
        visited = 1
        with opened_dir(name, discarded) as folder:
            for entry in _entries(folder):
                if visited >= steps:
                    return visited
                visited += 1
                if _is_directory(folder, entry, refuse=False):
                    waiting.append(new := uuid.uuid4().hex)
                    os.rename(entry, new, src_dir_fd=folder, dst_dir_fd=discarded)
                else:
                    os.unlink(entry, dir_fd=folder)
        os.rmdir(name, dir_fd=discarded)
        return visited

    def _set_aside(self, containers: int, name: str) -> None:
        with self._tree("discarded") as discarded:
            os.rename(name, uuid.uuid4().hex, src_dir_fd=containers, dst_dir_fd=discarded)

    @contextmanager
    def _tree(self, name: str) -> Iterator[int]:
        """Opens one of the directories that only the agent writes to."""
        self._base.mkdir(mode=AGENT_ONLY, parents=True, exist_ok=True)
        # The base itself may be a link that the administrator made.
        base = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _is_directory(base, name):
                with suppress(FileExistsError):
                    _make(base, name, AGENT_ONLY)
            with opened_dir(name, base) as tree:
                yield tree
        finally:
            os.close(base)


def make_shared_dir(path: Path) -> None:
    """Makes a directory that all containers write to, e.g. /tmp/vgpulock. A link in its place is refused."""
    path.parent.mkdir(mode=AGENT_ONLY, parents=True, exist_ok=True)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _is_directory(parent, path.name):
            _make(parent, path.name, WORLD_WRITABLE)
            return
        with opened_dir(path.name, parent) as folder:
            if stat.S_IMODE(os.fstat(folder).st_mode) != WORLD_WRITABLE:
                os.fchmod(folder, WORLD_WRITABLE)
    finally:
        os.close(parent)


def _is_ours(name: str) -> bool:
    return any(each.fullmatch(name) for each in (_OF_CONTAINER, _OF_IDS, _OF_CLAIM))


def _make(parent: int, name: str, mode: int) -> None:
    os.mkdir(name, mode, dir_fd=parent)
    with opened_dir(name, parent) as folder:
        os.fchmod(folder, mode)


def _is_directory(parent: int, name: str, *, refuse: bool = True) -> bool:
    """Returns False if there is nothing. Anything but a directory raises UnsafePath, or is False without `refuse`."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return True
    if refuse:
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise UnsafePath(f"{quoted(name)} on the host is {kind}; check and remove it")
    return False


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _entries(folder: int) -> Iterator[str]:
    # scandir duplicates the descriptor; it is closed early if the reader stops.
    with os.scandir(folder) as entries:
        for each in entries:
            yield each.name


@contextmanager
def opened_dir(name: str, parent: int) -> Iterator[int]:
    """Opens an entry of an open directory. Raises OSError, also for a link."""
    descriptor = os.open(name, _DIR_FLAGS, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
