"""The directories of containers on the host: where each region is, and which directories may be removed.

`<uid>_<container>` belongs to one container; `ids-<hash>` belongs to the holder of certain device ids, and
`claim-<uid>-<request>` to the containers that use one request of a ResourceClaim (`pods.ClaimUsers`). A region named
`<uid>_<container>.cache` belongs to that container wherever it lies, because equal pods may have swapped responses.
Nothing is cached between scans, and nothing is removed here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tessera.host.writable_dirs import CACHE_SUFFIX, is_claim_dir_name, is_ids_dir_name, opened_dir, region_file_name

LIBRARY = "libvgpu.so"
"""copies of it may lie beside a region and are not regions"""
MAX_ENTRIES = 1_000
"""read per directory, because its container may fill it"""


class Owner(NamedTuple):
    """One container."""

    uid: str
    """of its pod"""
    container: str


class Folder(NamedTuple):
    """One directory."""

    name: str
    owner: Owner | None
    """None for a directory of device ids, or of a ResourceClaim"""
    changed_at: float
    """seconds since the epoch"""
    caches: tuple[str, ...]
    """names of files that may be regions, in order"""


class RegionPlace(NamedTuple):
    """Where a region is."""

    folder: str
    file: str


class Scan(NamedTuple):
    folders: tuple[Folder, ...]
    problems: tuple[str, ...]


@contextmanager
def containers_of(base: Path) -> Iterator[int | None]:
    """Opens `<hook>/vgpu/containers`; None if no container had a region yet. Raises OSError."""
    # The base itself may be a link that the administrator made.
    parent = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with ExitStack() as stack:
            try:
                tree = stack.enter_context(opened_dir("containers", parent))
            except FileNotFoundError:
                tree = None
            yield tree
    finally:
        os.close(parent)


def scan(tree: int) -> Scan:
    """Returns all directories in order of name. One that cannot be read is reported and hides no other."""
    folders, problems = [], []
    for name in sorted(os.listdir(tree)):
        owner = owner_of(name)
        if owner is None and not is_ids_dir_name(name) and not is_claim_dir_name(name):
            continue
        try:
            with opened_dir(name, tree) as folder:
                folders.append(Folder(name, owner, os.fstat(folder).st_mtime, _caches(folder)))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{name!r}: {error.strerror}")
    return Scan(tuple(folders), tuple(problems))


def owner_of(name: str) -> Owner | None:
    """Splits at the first `_`, because uids have none."""
    uid, _, container = name.partition("_")
    return Owner(uid, container) if uid and container else None


def places(
    folders: Collection[Folder], known: Collection[Owner], claimed: Mapping[str, Owner] | None = None
) -> dict[Owner, RegionPlace]:
    """Returns the region of each known container that has one; `claimed` are the owners of directories of claims."""
    known, found = frozenset(known), dict[Owner, tuple[int, RegionPlace]]()
    for folder in folders:
        holder = folder.owner or (claimed or {}).get(folder.name)
        for file in folder.caches:
            named = owner_of(file.removesuffix(CACHE_SUFFIX))
            owner = named if named in known else holder
            if owner is None or owner not in known:
                continue
            # A container may put files with another owner's name into its directory: they count last.
            rank = (owner != holder) * 2 + (owner != named)
            if owner not in found or rank < found[owner][0]:
                found[owner] = (rank, RegionPlace(folder.name, file))
    return {owner: place for owner, (_, place) in found.items()}


def may_go(
    folder: Folder, *, known: Collection[Owner], known_uids: Collection[str], now: float, interval: float
) -> bool:
    """Whether the pod has been unknown for at least `interval` seconds. The agent removes directories of device ids and
    of claims.

    A modification time in the future does not protect a directory: its container may have set it.
    """
    if folder.owner is None or folder.owner.uid in known_uids or abs(now - folder.changed_at) < interval:
        return False
    living = frozenset(region_file_name(*owner) for owner in known)
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
