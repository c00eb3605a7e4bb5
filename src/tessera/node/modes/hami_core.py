"""The sharing mode `hami-core`: HAMi's library, preloaded into every process, enforces the limits of a container.

The response holds the container's limits and a directory of its own. For a container that uses the downward API it
holds only what all containers have in common and names no card; the directory belongs to the holder of the device ids.
Limits are numbered as the container enumerates its cards. The library takes a missing, zero or unreadable limit for no
limit, so such a slice is refused, and so is every Allocate while the library is not on the host.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.host.writable_dirs import (
    CACHE_SUFFIX,
    UnsafePath,
    WritableDirs,
    container_dir_name,
    ids_dir_name,
    make_shared_dir,
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
from tessera.node.modes.container_dirs import ContainerDirs, dir_name
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings
from tessera.vendors.nvidia import downward_api as variables

log = structlog.get_logger(__name__)

LIBRARY_HOME = Path("/usr/local")
"""where the library looks for itself by default"""
LIBRARY = "libvgpu.so"
LOCK_DIR = "/tmp/vgpulock"
PRELOAD = "/etc/ld.so.preload"
LICENSE = "/tmp/license"
VALIDATOR = "/usr/bin/vgpuvalidator"


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
