"""The environment variables through which an NVIDIA slice reaches its container.

They are read by NVIDIA's container toolkit (which cards), HAMi-core (limits) and MPS clients (limits where cards are
shared through MPS; nothing reads those elsewhere).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tessera.core.devices import MIG
from tessera.core.grants import Grants
from tessera.core.requests import Constraint
from tessera.vendors.downward_api import POD_UID
from tessera.wire import keys

MAX_DEVICES = 16
"""devices per container that HAMi-core reads limits for"""

ALL_THREADS = 100
"""per cent"""

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_"
"""stem; the device's number in the container follows"""
CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT"
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
"""path of the file in which all processes of a container are counted together"""
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
OWNED = re.compile(
    rf"{VISIBLE}|CUDA_DEVICE_(MEMORY|SM)_LIMIT(_[0-9]+)?|{REGION}|{MPS_MEMORY_LIMIT}|{MPS_THREADS}|{POD_UID}", re.ASCII
)

DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
SWITCHES = frozenset({DISABLE_CONTROL, "CUDA_REDIRECT"})
"""turn HAMi-core off, or replace it by another library"""
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
HARMLESS_POLICIES = frozenset({"", "default", "force", "FORCE"})


@dataclass(frozen=True, slots=True)
class NvidiaDownwardApi:
    """Implements `vendors.downward_api.DownwardApi`."""

    owned: re.Pattern[str] = OWNED
    enforcement_switch: str = DISABLE_CONTROL

    def accepts(self, constraint: Constraint) -> bool:
        """Allocate makes MIG instances, so they have no name before."""
        return MIG not in (constraint.mode or "")

    def references(self, container: int, devices: int) -> tuple[tuple[str, str], ...]:
        return _references(container, min(devices, MAX_DEVICES))

    def literals(self, container_name: str, hook_path: str) -> tuple[tuple[str, str], ...]:
        return ((REGION, f"{hook_path.rstrip('/')}/vgpu/$({POD_UID})_{container_name}.cache"),)

    def annotations(self, container: int, grants: Grants) -> dict[str, str]:
        if [grant for grant in grants if grant.mig is not None]:
            return {}
        # A container numbers its cards in the node's order, whatever order they were chosen in.
        ordered = grants if len(grants) == 1 else sorted(grants, key=lambda grant: grant.index)
        written = {
            keys.visible_devices(container): ",".join([grant.uuid for grant in ordered]),
            keys.core_limit(container): str(ordered[0].cores),
            # MPS reads an empty text as "no limit", so both always have a number.
            keys.mps_memory_limit(container): ",".join([f"{grant.uuid}={grant.memory}M" for grant in ordered]),
            keys.mps_thread_percentage(container): str(min(ordered[0].cores, ALL_THREADS) or ALL_THREADS),
        }
        for index, grant in enumerate(ordered[:MAX_DEVICES]):
            written[keys.memory_limit(container, index)] = f"{grant.memory}m"
        return written

    def loosens_limits(self, entry: Mapping[str, Any]) -> bool:
        name = entry.get("name", "")
        if name == CORE_POLICY:
            return "valueFrom" in entry or entry.get("value", "") not in HARMLESS_POLICIES
        return name in SWITCHES


@lru_cache(maxsize=256)
def _references(container: int, devices: int) -> tuple[tuple[str, str], ...]:
    limits = [(f"{MEMORY_LIMIT}{index}", keys.memory_limit(container, index)) for index in range(devices)]
    return (
        (VISIBLE, keys.visible_devices(container)),
        *limits,
        (CORE_LIMIT, keys.core_limit(container)),
        (MPS_MEMORY_LIMIT, keys.mps_memory_limit(container)),
        (MPS_THREADS, keys.mps_thread_percentage(container)),
    )
