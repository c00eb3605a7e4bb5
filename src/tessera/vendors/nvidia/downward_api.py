"""The environment variables through which an NVIDIA slice reaches its container.

They are read by NVIDIA's container toolkit (which cards), HAMi-core (limits) and MPS clients (limits where cards are
shared through MPS; nothing reads those elsewhere).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tessera.core.model.devices import MIG
from tessera.core.model.grants import Grants
from tessera.core.model.requests import Constraint
from tessera.vendors.downward_api import POD_UID, ProtectedVariables
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
DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
"""turns HAMi-core off"""
LIBRARY = "CUDA_REDIRECT"
"""path of the library that is used instead of HAMi-core"""
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
PROTECTED = ProtectedVariables(
    devices=VISIBLE,
    no_devices="none",
    harmless=frozenset({"", "void"}),
    stems=(
        VISIBLE, MEMORY_LIMIT.rstrip("_"), CORE_LIMIT, REGION, MPS_MEMORY_LIMIT, MPS_THREADS, POD_UID
    ),
    switches={
        DISABLE_CONTROL: frozenset({"", "0", "f", "F", "false", "False", "FALSE"}),
        LIBRARY: frozenset(),
        CORE_POLICY: frozenset({"", "default", "force", "FORCE"}),
    },
    instances="nvidia.com/mig-",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NvidiaDownwardApi:
    """Implements `vendors.downward_api.DownwardApi`."""

    enforcement_switch: str = DISABLE_CONTROL
    core_policy: str = "default"
    """of nodes: `disable` where agents do not limit cores"""

    def accepts(self, constraint: Constraint) -> bool:
        """Allocate makes MIG instances, so they have no name before."""
        return not constraint.names_mode(MIG)

    def references(self, container: int, devices: int) -> tuple[tuple[str, str], ...]:
        return _references(container, min(devices, MAX_DEVICES))

    def literals(self, container_name: str, hook_path: str) -> tuple[tuple[str, str], ...]:
        return ((REGION, f"{hook_path.rstrip('/')}/vgpu/$({POD_UID})_{container_name}.cache"),)

    def shields(self, container: int, devices: int) -> tuple[tuple[str, str], ...]:
        return tuple(
            (f"{CORE_LIMIT}_{index}", keys.core_limit(container)) for index in range(min(devices, MAX_DEVICES))
        )

    def shield_literals(self, hook_path: str) -> tuple[tuple[str, str], ...]:
        library = f"{hook_path.rstrip('/')}/vgpu/libvgpu.so"
        return ((DISABLE_CONTROL, "false"), (LIBRARY, library), (CORE_POLICY, self.core_policy))

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
