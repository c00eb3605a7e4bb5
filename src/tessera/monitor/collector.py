"""One round: read the regions of all containers, steer them, and remove directories of pods that are gone.

A region or directory that cannot be read or removed is reported and affects no other. It is a fault only if the whole
tree cannot be reached. Rounds block; use one thread. `steer` decides which containers must wait and whose SM limit
applies, by activity and priority on each card: while a container with a higher priority (0 is the highest) is active on
a card, the others wait, and a limit applies only while one with a higher or equal priority is active as well. Activity
is the time of the last kernel: HAMi-core writes `recent_kernel` only while the limit applies, so judging by it would
switch limits off for good. Old regions have nothing else. A container may write anything into its region; it counts
only on cards it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from tessera.host.writable_dirs import WritableDirs, is_claim_dir_name, opened_dir, region_file_name
from tessera.monitor import container_dirs
from tessera.monitor.container_dirs import Folder, Owner, RegionPlace
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


K = TypeVar("K", bound=Hashable)

ACTIVE_S = 10
"""since the last kernel: two rounds, as long as `recent_kernel` lasts"""
WAITING = -1
"""value of `recent_kernel` that suspends launches"""


class Orders(NamedTuple):
    """New values for a region."""

    recent_kernel: int
    utilization_switch: int


def steer(
    regions: Mapping[K, Region], *, now: float, granted: Mapping[K, Collection[str] | None] | None = None
) -> dict[K, Orders]:
    """Returns orders for every container. `granted` are the uuids of its cards; if None or missing, those in its region
    count."""
    granted = granted or {}
    cards = {key: _cards(region, granted.get(key)) for key, region in regions.items()}
    counted = {key: _counted_down(region.recent_kernel) for key, region in regions.items()}
    active: Counter[tuple[bytes, int]] = Counter()
    for key, region in regions.items():
        if region.priority >= 0 and _is_active(region, counted[key], now):
            active.update((card, region.priority) for card in cards[key])
    return {key: _orders(region, counted[key], cards[key], active) for key, region in regions.items()}


def _counted_down(recent_kernel: int) -> int:
    return recent_kernel - 1 if recent_kernel > 0 else recent_kernel


def _is_active(region: Region, recent_kernel: int, now: float) -> bool:
    if not region.last_kernel_time:
        return recent_kernel > 0
    # A time in the future is a mistake or a trick.
    return abs(now - region.last_kernel_time) <= ACTIVE_S


def _orders(
    region: Region, recent_kernel: int, cards: Collection[bytes], active: Mapping[tuple[bytes, int], int]
) -> Orders:
    higher = any(card in cards and priority < region.priority for card, priority in active)
    beside = any(active.get((card, region.priority), 0) > 1 for card in cards)
    if higher:
        return Orders(min(recent_kernel, WAITING), 1)
    return Orders(max(recent_kernel, 0), int(beside))


def _cards(region: Region, granted: Collection[str] | None) -> frozenset[bytes]:
    """Returns each card once, however often a region names it."""
    named = (device for device in region.devices if device.key)
    return frozenset(device.key for device in named if granted is None or device.uuid in granted)
