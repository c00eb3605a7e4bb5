"""One round: read the regions of the node's containers, steer them, and remove the folders of pods that are gone.

A region or folder that cannot be read or removed is a problem to report and touches no other. Only the tree as a whole
being out of reach is a fault. All of it blocks, in one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tessera.monitor import container_dirs as looking
from tessera.monitor import region_files
from tessera.monitor.container_dirs import Folder, Owner, Place
from tessera.monitor.feedback import steer
from tessera.monitor.pods import Cards
from tessera.monitor.region_files import RegionFile
from tessera.monitor.region_layouts import Misread
from tessera.monitor.regions import Region
from tessera.node.modes.base import Refused
from tessera.node.modes.host_dirs import Folders


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a round found."""

    regions: Mapping[Owner, Region] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Rounds:
    """One at a time. Raises OSError where the tree cannot be reached."""

    def __init__(self, base: Path, *, interval: float) -> None:
        """`base`: `<hook>/vgpu`; `interval`: seconds that a folder of an unknown pod stays."""
        self._base = base
        self._interval = interval
        self._folders = Folders(base)
        self._unfinished = False
        """whether folders that were moved aside are still to be emptied"""

    def run(self, granted: Mapping[Owner, Cards | None], uids: Collection[str], *, now: float) -> Snapshot:
        """`granted`: the containers of the node's pods with their cards; `uids`: of every pod that may exist."""
        with looking.containers_of(self._base) as tree:
            if tree is None:
                return Snapshot()
            found = looking.scan(tree)
            problems = list(found.problems)
            regions = self._steer(tree, looking.places(found.folders, granted), granted, now, problems)
            going = [
                folder.name
                for folder in found.folders
                if looking.may_go(folder, known=granted, known_uids=uids, now=now, interval=self._interval)
                and not self._is_used(tree, folder, now)
            ]
        self._remove(going, [looking.cache_of(owner) for owner in granted], problems)
        return Snapshot(regions, tuple(problems))

    def _steer(
        self,
        tree: int,
        where: Mapping[Owner, Place],
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

    def _open(self, files: ExitStack, tree: int, place: Place) -> RegionFile:
        with looking.opened(tree, place.folder) as folder:
            return files.enter_context(region_files.opened(folder, place.file))

    def _is_used(self, tree: int, folder: Folder, now: float) -> bool:
        """Whether some container launched kernels there lately: one of another pod that swapped answers with it."""
        for file in folder.caches:
            with ExitStack() as files:
                try:
                    region = self._open(files, tree, Place(folder.name, file)).read()
                except OSError:
                    continue
                if isinstance(region, Region) and abs(now - (region.last_kernel_time or 0)) < self._interval:
                    return True
        return False

    def _remove(self, names: Collection[str], living: Collection[str], problems: list[str]) -> None:
        try:
            for name in names:
                self._folders.discard(name, unless=living)
            if names or self._unfinished:
                emptied = self._folders.empty()
                self._unfinished = not emptied.finished
                problems.extend(emptied.problems)
        except (OSError, Refused) as error:
            problems.append(str(error))
