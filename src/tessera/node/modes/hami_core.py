"""The sharing mode `hami-core`: HAMi's library, preloaded into every process, enforces the limits of a container.

The response holds the container's limits and a directory of its own. For a container that uses the downward API it
holds only what all containers have in common and names no card; the directory belongs to the holder of the device ids.
Limits are numbered as the container enumerates its cards. The library takes a missing, zero or unreadable limit for no
limit, so such a slice is refused, and so is every Allocate while the library is not on the host.

    directory in use --(no reason left to keep it)--> unused --(still so after the grace period)--> removed
       ^---------------(handed over, or a reason is back)------'

Reasons to keep one: its container lives; a container holds the device ids it was made for, because equal pods may have
swapped responses; kubelet cannot be asked. One thread creates directories and moves them aside, in the order in which
the event loop decided, so an older decision never removes a directory that was handed over again. Deleting has a second
thread, so that Allocate does not wait for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.writable_dirs import (
    CACHE_SUFFIX,
    UnsafePath,
    WritableDirs,
    claim_dir_name,
    container_dir_name,
    ids_dir_name,
    is_ids_dir_name,
    make_shared_dir,
    region_file_name,
)
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import (
    NO_DEVICES,
    AllocationRefused,
    CardSlice,
    ContainerResponse,
    HostMount,
    SharingMode,
    slices_by_card,
)
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings
from tessera.vendors.nvidia import downward_api as variables

log = structlog.get_logger(__name__)

DEADLINE_S = 10.0
"""for the directories of one container; well under a millisecond on a working disk"""
LOOK_EVERY_S = 60.0
"""between searches for directories that no container needs"""
GRACE_S = 600.0
"""how long a directory of unknown purpose stays; kubelet and its pods need less to reappear after a restart"""
SHOWN = 3
"""problems in one message"""

Held = Callable[[], Awaitable[Collection[Collection[str]] | None]]
"""asks kubelet for the device ids of each container that holds some; None if kubelet cannot be asked"""

T = TypeVar("T")

_NO_IDS: frozenset[str] = frozenset()

LIBRARY_HOME = Path("/usr/local")
"""where the library looks for itself by default"""
LIBRARY = "libvgpu.so"
LOCK_DIR = "/tmp/vgpulock"
PRELOAD = "/etc/ld.so.preload"
LICENSE = "/tmp/license"
VALIDATOR = "/usr/bin/vgpuvalidator"


class DirRetention:
    """Decides which directories may go. Used from the event loop only.

    A directory of an earlier agent process whose container is gone may also have been swapped: it stays until every
    pod is gone that lived when this process started.
    """

    def __init__(self, *, grace: float = GRACE_S) -> None:
        self._grace = grace
        self._made_for: dict[str, frozenset[str]] = {}
        """device ids by directory, for handovers of this process"""
        self._missing: frozenset[str] = frozenset()
        """directories that did not exist at the last look"""
        self._unused_since: dict[str, float] = {}
        self._first_seen: frozenset[str] | None = None
        """uids of the pods that lived when this process started"""

    def on_handed_over(self, name: str, device_ids: Collection[str]) -> None:
        """The directory was made for the holder of these ids; no other container can hold them now."""
        ids = frozenset(device_ids)
        for other, theirs in self._made_for.items():
            if theirs == ids:
                self._made_for[other] = _NO_IDS
        self._made_for[name] = ids
        self._unused_since.pop(name, None)

    def take_unused(
        self, names: Sequence[str], *, live: Sequence[Assignment], held: Collection[Collection[str]] | None, now: float
    ) -> list[str]:
        """Returns the directories that may go, and forgets them. `held` are the ids of each container that has some;
        None if they are unknown."""
        uids = frozenset(assignment.pod.uid for assignment in live)
        if self._first_seen is None:
            self._first_seen = uids
        self._forget_missing(frozenset(names))
        if held is None and live:
            self._unused_since.clear()
            return []
        kept = self._kept(names, live, {frozenset(ids) for ids in held or ()}, bool(self._first_seen & uids))
        self._unused_since = {name: self._unused_since.get(name, now) for name in names if name not in kept}
        going = [name for name, since in self._unused_since.items() if now - since >= self._grace]
        for name in going:
            del self._unused_since[name]
            self._made_for.pop(name, None)
        return going

    def _forget_missing(self, existing: frozenset[str]) -> None:
        """Another program removed them. A directory that is missing once may still be in the making."""
        missing = self._made_for.keys() - existing
        for name in missing & self._missing:
            del self._made_for[name]
        self._missing = frozenset(missing)

    def _kept(
        self, names: Sequence[str], live: Sequence[Assignment], held: Collection[frozenset[str]], earlier_pods: bool
    ) -> set[str]:
        kept = {dir_name(assignment) for assignment in live}
        kept |= {ids_dir_name(ids) for ids in held}
        kept |= {name for name, ids in self._made_for.items() if ids and ids in held}
        if earlier_pods:
            kept |= {name for name in names if name not in self._made_for and not is_ids_dir_name(name)}
        return kept


def dir_name(assignment: Assignment) -> str:
    """Returns the name of the directory that is made for an assignment."""
    if assignment.of_resource_claim:
        return claim_dir_name(assignment.pod.uid, assignment.container)
    return f"{assignment.pod.uid}_{assignment.container}"


async def unknown_holders() -> None:
    """The `Held` of an agent that cannot ask kubelet."""
    return None


class ContainerDirs:
    """Used from the event loop only."""

    def __init__(
        self,
        dirs: WritableDirs,
        *,
        held: Held = unknown_holders,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dirs = dirs
        self._held = held
        self._retention = DirRetention()
        self._now = now
        self._thread = CallThread("container-dirs")
        self._deletion_thread = CallThread("discarded-dirs")
        self._all_deleted = False
        self._look_at = now()
        self._problem = ""

    async def give(self, name: str, device_ids: Collection[str], *, after: Callable[[], T]) -> tuple[Path, T]:
        """Makes a directory for the holder of these ids. `after` must succeed in the thread first; its result is
        returned too. Raises AllocationRefused."""
        self._retention.on_handed_over(name, device_ids)
        self._all_deleted = False

        def work() -> tuple[Path, T]:
            first = after()
            return self._dirs.recreate(name), first

        try:
            return await self.call(work)
        finally:
            self._thread.follow_up(self._dirs.stock)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread. Raises AllocationRefused."""
        try:
            return await self._thread.call(work, deadline=DEADLINE_S)
        except (OSError, CallTimeout) as error:
            raise AllocationRefused(f"the container's directories on the host cannot be made: {error}") from error

    async def remove_unused(self, live: Sequence[Assignment]) -> None:
        """Removes what belongs to none of the `live` assignments. A fault is logged once and tried again later."""
        try:
            if self._now() >= self._look_at:
                self._look_at = self._now() + LOOK_EVERY_S
                await self._discard_unused(live)
            if not self._all_deleted:
                emptied = await self._deletion_thread.call(self._dirs.empty, deadline=DEADLINE_S)
                self._all_deleted = emptied.finished
                self._report("; ".join(emptied.problems[:SHOWN]))
        except (OSError, CallTimeout) as error:
            self._report(f"{type(error).__name__}: {error}")

    async def stop(self) -> None:
        await self._thread.close(patience=DEADLINE_S)
        await self._deletion_thread.close(patience=DEADLINE_S)

    async def _discard_unused(self, live: Sequence[Assignment]) -> None:
        names = await self._thread.call(self._dirs.names, deadline=DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            held = await self._held()
        going = self._retention.take_unused(names, live=live, held=held, now=self._now())
        if going:
            self._all_deleted = False
            # No await before this call: a later handover must also come later in the thread.
            regions = [region_file_name(assignment.pod.uid, assignment.container) for assignment in live]
            await self._thread.call(lambda: self._discard(going, regions), deadline=DEADLINE_S)

    def _discard(self, names: Sequence[str], live_regions: Collection[str]) -> None:
        """Keeps directories with the region of a live container: kubelet does not report what init containers hold."""
        for name in names:
            self._dirs.discard(name, unless=live_regions)

    def _report(self, problem: str) -> None:
        """Logs each problem once, not once per round."""
        if problem and problem != self._problem:
            log.warning("old directories of containers cannot be removed", problem=problem)
        self._problem = problem


class HamiCore(SharingMode):
    def __init__(
        self,
        settings: AgentSettings,
        device_lists: DeviceLists,
        *,
        dirs: ContainerDirs | None = None,
        new_cache: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        super().__init__()
        self._settings = settings
        self._device_lists = device_lists
        self._home = home_of(settings)
        self._dirs = dirs or ContainerDirs(WritableDirs(self._home))
        self._new_cache = new_cache

    async def start(self, fleet: Fleet) -> None:
        await super().start(fleet)
        try:
            await self._dirs.call(self._common_mounts)
        except AllocationRefused as refusal:
            log.error("containers cannot be limited yet", problem=f"{refusal}")

    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        slices = slices_by_card(assignment, self._fleet)
        limits = limits_of(assignment, slices)
        response = self._device_lists.response([each.uuid for each in slices], self._fleet)
        region = {variables.REGION: f"{self._home}/{self._new_cache()}{CACHE_SUFFIX}"}
        mounts = await self._mounts(_dir_name(assignment) if certain else ids_dir_name(ids), ids)
        # If another container may get this response, that one did not ask to run without the library.
        if assignment.uncontrolled and certain:
            mounts = tuple(each for each in mounts if each.container_path != PRELOAD)
        env = {**common_variables(self._settings), **limits, **region}
        return response.with_more(ContainerResponse(env=env, mounts=mounts))

    async def hand_over_downward_api(self, ids: Sequence[str]) -> ContainerResponse:
        mounts = await self._mounts(ids_dir_name(ids), ids)
        # The container's own variable overrides this one. A container without its own gets no card.
        env = {variables.VISIBLE: NO_DEVICES, **common_variables(self._settings)}
        return self._device_lists.features().with_more(ContainerResponse(env=env, mounts=mounts))

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        await super().reconcile(live, fleet)
        await self._dirs.remove_unused(live)

    async def stop(self) -> None:
        await self._dirs.stop()
        await super().stop()

    async def _mounts(self, name: str, device_ids: Sequence[str]) -> tuple[HostMount, ...]:
        own, common = await self._dirs.give(name, device_ids, after=self._common_mounts)
        # The library is mounted inside the directory, so the directory comes first.
        return (HostMount(f"{self._home}", f"{own}", read_only=False), *common)

    def _common_mounts(self) -> tuple[HostMount, ...]:
        make_shared_dir(self._settings.paths.lock)
        return common_mounts(self._settings)


def home_of(settings: AgentSettings) -> Path:
    """Returns the directory of the library, the same on the host and in containers."""
    return settings.paths.hook / "vgpu"


def _dir_name(assignment: Assignment) -> str:
    try:
        container_dir_name(assignment.pod.uid, assignment.container)
    except UnsafePath as error:
        raise AllocationRefused(str(error)) from error
    return dir_name(assignment)


def limits_of(assignment: Assignment, slices: Sequence[CardSlice]) -> dict[str, str]:
    """Returns the variables that limit a container. Raises AllocationRefused."""
    if assignment.mig:
        raise AllocationRefused("a MIG instance is reserved for the container, but this node shares cards by hami-core")
    if len(slices) > variables.MAX_DEVICES:
        raise AllocationRefused(
            f"{len(slices)} cards: no more than {variables.MAX_DEVICES} can be limited in one container"
        )
    limits: dict[str, str] = {}
    for number, each in enumerate(slices):
        if each.memory <= 0:
            raise AllocationRefused(f"card {each.uuid}: a limit of {each.memory} MiB would be no limit")
        limits[f"{variables.MEMORY_LIMIT}{number}"] = f"{each.memory}m"
        # Zero would mean the limit of the first card, not unlimited.
        limits[f"{variables.CORE_LIMIT}_{number}"] = f"{each.cores or WHOLE_CARD_CORES}"
    return limits | {variables.CORE_LIMIT: f"{slices[0].cores}"}


def common_variables(settings: AgentSettings) -> dict[str, str]:
    """Returns the variables that all containers of the node get."""
    values = {
        variables.LIBRARY: f"{home_of(settings) / LIBRARY}" if settings.paths.hook != LIBRARY_HOME else "",
        "CUDA_OVERSUBSCRIBE": "true" if settings.node.memory_scaling > 1 else "",
        "LIBCUDA_LOG_LEVEL": settings.node.log_level,
        variables.CORE_POLICY: "disable" if settings.disable_core_limit else "",
    }
    return {name: value for name, value in values.items() if value}


def common_mounts(settings: AgentSettings) -> tuple[HostMount, ...]:
    """Returns the mounts that all containers get. Reads the disk, so it may block. Raises AllocationRefused."""
    home = home_of(settings)
    versioned = home / f"{LIBRARY}.{settings.library_version}"
    library = versioned if settings.library_version and versioned.is_file() else home / LIBRARY
    preload = home / "ld.so.preload"
    lock = HostMount(LOCK_DIR, f"{settings.paths.lock}", read_only=False)
    for needed in (library, preload):
        if not needed.is_file():
            if not settings.has_real_cards:
                return (lock,)
            raise AllocationRefused(f"nothing would limit the container: {needed} is not on the host")
    mounts = [HostMount(f"{home / LIBRARY}", f"{library}"), lock, HostMount(PRELOAD, f"{preload}")]
    if (home / "license").is_file():
        mounts += [HostMount(LICENSE, f"{home / 'license'}"), HostMount(VALIDATOR, f"{home / 'vgpuvalidator'}")]
    return tuple(mounts)
