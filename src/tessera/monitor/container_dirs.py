"""The folders of containers on the host: whose region is where, and which folders nobody needs any more.

`<uid>_<container>` is one container's; `ids-<hash>` belongs to whoever holds certain device ids. A region that is named
`<uid>_<container>.cache` is that container's wherever it lies, because pods of equal shape may have swapped answers.
Every look is anew, so that a folder that was made again or has gone is seen as it is. Nothing is removed here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tessera.node.modes.host_dirs import CACHE_SUFFIX, is_of_ids

LIBRARY = "libvgpu.so"
"""copies of it may lie beside a region, and are none"""
MAX_ENTRIES = 1_000
"""that are looked at in one folder: its container may fill it"""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Owner(NamedTuple):
    """One container."""

    uid: str
    """of its pod"""
    container: str


class Folder(NamedTuple):
    """One folder as it was found."""

    name: str
    owner: Owner | None
    """None for folders of device ids"""
    changed_at: float
    """seconds since the epoch"""
    caches: tuple[str, ...]
    """names of files that may be regions, in order"""


class Place(NamedTuple):
    """Where a region is."""

    folder: str
    file: str


class Scan(NamedTuple):
    folders: tuple[Folder, ...]
    problems: tuple[str, ...]


@contextmanager
def containers_of(base: Path) -> Iterator[int | None]:
    """The folder of folders below `<hook>/vgpu`, opened; None where no container had a region yet. Raises OSError."""
    # The base itself may be a link: where it leads is the administrator's choice.
    parent = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            tree = os.open("containers", _FLAGS, dir_fd=parent)
        except FileNotFoundError:
            yield None
            return
        try:
            yield tree
        finally:
            os.close(tree)
    finally:
        os.close(parent)


@contextmanager
def opened(tree: int, name: str) -> Iterator[int]:
    """One folder. Raises OSError, also where it is a link."""
    descriptor = os.open(name, _FLAGS, dir_fd=tree)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def scan(tree: int) -> Scan:
    """All folders in order of their names; one that cannot be read is a problem and hides no other."""
    folders, problems = [], []
    for name in sorted(os.listdir(tree)):
        owner = owner_of(name)
        if owner is None and not is_of_ids(name):
            continue
        try:
            with opened(tree, name) as folder:
                folders.append(Folder(name, owner, os.fstat(folder).st_mtime, _caches(folder)))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{name!r}: {error.strerror}")
    return Scan(tuple(folders), tuple(problems))


def owner_of(name: str) -> Owner | None:
    """Uids have no `_`, so that the first one is what separates."""
    uid, _, container = name.partition("_")
    return Owner(uid, container) if uid and container else None


def cache_of(owner: Owner) -> str:
    return f"{owner.uid}_{owner.container}{CACHE_SUFFIX}"


def places(folders: Collection[Folder], known: Collection[Owner]) -> dict[Owner, Place]:
    """Where the region of each known container is; those without one are not in the answer."""
    known, found = frozenset(known), dict[Owner, tuple[int, Place]]()
    for folder in folders:
        for file in folder.caches:
            named = owner_of(file.removesuffix(CACHE_SUFFIX))
            owner = named if named in known else folder.owner
            if owner is None or owner not in known:
                continue
            # A container may leave files in another one's name in its own folder: they count last.
            rank = (owner != folder.owner) * 2 + (owner != named)
            if owner not in found or rank < found[owner][0]:
                found[owner] = (rank, Place(folder.name, file))
    return {owner: place for owner, (_, place) in found.items()}


def may_go(
    folder: Folder, *, known: Collection[Owner], known_uids: Collection[str], now: float, interval: float
) -> bool:
    """Whether its pod is unknown, and has been for at least so many seconds. Folders of ids are the agent's to remove.

    A time far in the future is a container's trick and keeps nothing.
    """
    if folder.owner is None or folder.owner.uid in known_uids or abs(now - folder.changed_at) < interval:
        return False
    living = frozenset(cache_of(owner) for owner in known)
    return living.isdisjoint(folder.caches)


def _caches(folder: int) -> tuple[str, ...]:
    names = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if entry.name.endswith(CACHE_SUFFIX) and LIBRARY not in entry.name:
                with suppress(OSError):
                    if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                        names.append(entry.name)
    return tuple(sorted(names))
