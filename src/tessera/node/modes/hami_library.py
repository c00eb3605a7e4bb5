"""What HAMi's enforcing library needs in a container: variables and files.

Limits are numbered as the container counts its cards. To the library a missing, zero or unreadable limit means none at
all, so such a slice is refused; so is every handover while the library itself is not on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tessera.node.handover.claims import Claim
from tessera.node.modes.base import Mount, Refused
from tessera.node.modes.card_slices import CardSlice
from tessera.node.settings import AgentSettings

MAX_CARDS = 16
"""the library reads no limit of any further one"""
UNLIMITED_CORES = 100
"""percent"""
LIBRARY_HOME = Path("/usr/local")
"""below it the library looks for itself unless it is told"""
LIBRARY = "libvgpu.so"
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
"""names the file in which the processes of a container count together"""
LOCK_FOLDER = "/tmp/vgpulock"
PRELOAD = "/etc/ld.so.preload"
LICENSE = "/tmp/license"
VALIDATOR = "/usr/bin/vgpuvalidator"


def home_of(settings: AgentSettings) -> Path:
    """The same on the host and in containers."""
    return settings.paths.hook / "vgpu"


def limits_of(claim: Claim, slices: Sequence[CardSlice]) -> dict[str, str]:
    """The variables that limit a container. Raises Refused."""
    if claim.mig:
        raise Refused("a MIG instance is reserved for the container, but this node shares cards by hami-core")
    if len(slices) > MAX_CARDS:
        raise Refused(f"{len(slices)} cards: no more than {MAX_CARDS} can be limited in one container")
    limits: dict[str, str] = {}
    for number, each in enumerate(slices):
        if each.memory <= 0:
            raise Refused(f"card {each.uuid}: a limit of {each.memory} MiB would be no limit")
        limits[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{each.memory}m"
        # A zero here would mean the limit of the first card, not none.
        limits[f"CUDA_DEVICE_SM_LIMIT_{number}"] = f"{each.cores or UNLIMITED_CORES}"
    return limits | {"CUDA_DEVICE_SM_LIMIT": f"{slices[0].cores}"}


def common_variables(settings: AgentSettings) -> dict[str, str]:
    """The same for every container of the node."""
    values = {
        "CUDA_REDIRECT": f"{home_of(settings) / LIBRARY}" if settings.paths.hook != LIBRARY_HOME else "",
        "CUDA_OVERSUBSCRIBE": "true" if settings.node.memory_scaling > 1 else "",
        "LIBCUDA_LOG_LEVEL": settings.node.log_level,
        "GPU_CORE_UTILIZATION_POLICY": "disable" if settings.disable_core_limit else "",
    }
    return {name: value for name, value in values.items() if value}


def common_mounts(settings: AgentSettings) -> tuple[Mount, ...]:
    """The same for every container of the node. Looks at the disk, so it may block. Raises Refused."""
    home = home_of(settings)
    versioned = home / f"{LIBRARY}.{settings.library_version}"
    library = versioned if settings.library_version and versioned.is_file() else home / LIBRARY
    preload = home / "ld.so.preload"
    for needed in (library, preload):
        if not needed.is_file():
            raise Refused(f"nothing would limit the container: {needed} is not on the host")
    mounts = [
        Mount(f"{home / LIBRARY}", f"{library}"),
        Mount(LOCK_FOLDER, f"{settings.paths.lock}", read_only=False),
        Mount(PRELOAD, f"{preload}"),
    ]
    if (home / "license").is_file():
        mounts += [Mount(LICENSE, f"{home / 'license'}"), Mount(VALIDATOR, f"{home / 'vgpuvalidator'}")]
    return tuple(mounts)
