"""One round: read the regions of all containers, steer them, and remove directories of pods that are gone.

A region or directory that cannot be read or removed is reported and affects no other. It is a fault only if the whole
tree cannot be reached. Everything here blocks; use one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tessera.host.writable_dirs import WritableDirs, is_claim_dir_name, opened_dir, region_file_name
from tessera.monitor import container_dirs
from tessera.monitor.container_dirs import Folder, Owner, RegionPlace
from tessera.monitor.feedback import steer
from tessera.monitor.pods import Cards
from tessera.monitor.regions import Misread, Region, RegionFile, open_region


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of a round."""

    regions: Mapping[Owner, Region] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    claim_dirs: tuple[str, ...] = ()
    """names of the directories of ResourceClaims"""


class RegionCollector:
    """Runs one round at a time. Raises OSError if the tree cannot be reached."""

    def __init__(self, base: Path, *, interval: float) -> None:
        """`base` is `<hook>/vgpu`; `interval` is how many seconds the directory of an unknown pod stays."""
        self._base = base
        self._interval = interval
        self._dirs = WritableDirs(base)
        self._unfinished = False
        """whether discarded directories remain to be deleted"""

    def run(
        self,
        granted: Mapping[Owner, Cards | None],
        uids: Collection[str],
        *,
        claimed: Mapping[str, Owner] | None = None,
        now: float,
    ) -> Snapshot:
        """`granted` are the containers of the node's pods with their cards; `uids` are of all pods that may exist;
        `claimed` are the owners of directories of claims."""
        with container_dirs.containers_of(self._base) as tree:
            if tree is None:
                return Snapshot()
            found = container_dirs.scan(tree)
            problems = list(found.problems)
            where = container_dirs.places(found.folders, granted, claimed)
            regions = self._steer(tree, where, granted, now, problems)
            going = [
                folder.name
                for folder in found.folders
                if container_dirs.may_go(folder, known=granted, known_uids=uids, now=now, interval=self._interval)
                and not self._is_used(tree, folder, now)
            ]
        self._remove(going, [region_file_name(*owner) for owner in granted], problems)
        claims = tuple(folder.name for folder in found.folders if is_claim_dir_name(folder.name))
        return Snapshot(regions, tuple(problems), claims)

    def _steer(
        self,
        tree: int,
        where: Mapping[Owner, RegionPlace],
        granted: Mapping[Owner, Cards | None],
        now: float,
        problems: list[str],
    ) -> dict[Owner, Region]:
        with ExitStack() as files:
            regions: dict[Owner, Region] = {}
            opened: dict[Owner, RegionFile] = {}
            for owner, place in where.items():
                try:
                    file = self._open(files, tree, place)
                    region = file.read()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    problems.append(f"{place.folder!r}: {error.strerror}")
                    continue
                if isinstance(region, Misread):
                    problems.append(f"{place.folder!r}: {region.problem}")
                else:
                    regions[owner], opened[owner] = region, file
            for owner, orders in steer(regions, now=now, granted=granted).items():
                try:
                    opened[owner].write(regions[owner], **orders._asdict())
                except OSError as error:
                    problems.append(f"{where[owner].folder!r}: {error.strerror}")
        return regions

    def _open(self, files: ExitStack, tree: int, place: RegionPlace) -> RegionFile:
        with opened_dir(place.folder, tree) as folder:
            return files.enter_context(open_region(folder, place.file))

    def _is_used(self, tree: int, folder: Folder, now: float) -> bool:
        """Whether a container recently launched kernels there, e.g. one that swapped responses with its owner."""
        for file in folder.caches:
            with ExitStack() as files:
                try:
                    region = self._open(files, tree, RegionPlace(folder.name, file)).read()
                except OSError:
                    continue
                if isinstance(region, Region) and abs(now - (region.last_kernel_time or 0)) < self._interval:
                    return True
        return False

    def _remove(self, names: Collection[str], living: Collection[str], problems: list[str]) -> None:
        try:
            for name in names:
                self._dirs.discard(name, unless=living)
            if names or self._unfinished:
                emptied = self._dirs.empty()
                self._unfinished = not emptied.finished
                problems.extend(emptied.problems)
        except OSError as error:
            problems.append(str(error))
