"""The section `nvidia` of device-config.yaml, for the scheduler and for node agents, with the chart's values.

A missing key has HAMi's zero value, so files of any version since v2.4 keep their meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tessera.vendors.base import SharedSection
from tessera.vendors.drafts import INT32_MAX
from tessera.vendors.nvidia.mig import CHART_ALLOWLIST, MigAllowance

Amount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Scaling = Annotated[float, Meta(ge=0)]


class NvidiaSection(SharedSection, frozen=True, kw_only=True):
    resource_memory_percentage_name: str = ""
    resource_priority_name: str = ""
    overwrite_env: bool = False
    """hide all cards from containers that ask for none"""
    default_memory: Amount = 0
    """MiB for a container that names no memory; 0 = the whole card"""
    default_cores: Amount = 0
    default_gpu_num: Amount = field(default=0, name="defaultGPUNum")
    """cards for a container that names only memory or cores; 0 = it requests nothing"""
    memory_factor: Amount = 0
    """MiB per unit of memory in pods and quotas; 0 means 1"""
    gpu_core_policy: Literal["", "default", "force", "disable"] = ""
    runtime_class_name: str = ""
    mig_profile_allowlist: tuple[MigAllowance, ...] = ()
    known_mig_geometries: tuple[Any, ...] = ()
    """HAMi v2.5 to v2.9: accepted so that old files load; cards register their own profiles now"""

    # Only node agents read the rest; None = not configured.
    device_split_count: Amount | None = None
    device_memory_scaling: Scaling | None = None
    device_core_scaling: Scaling | None = None
    pre_configured_device_memory: Amount | None = None
    """MiB of cards that do not report their memory"""
    enable_numa_topology: bool | None = None
    lib_cuda_log_level: int | str | None = None
    disable_core_limit: bool | None = None


CHART = NvidiaSection(
    resource_count_name="nvidia.com/gpu",
    resource_memory_name="nvidia.com/gpumem",
    resource_memory_percentage_name="nvidia.com/gpumem-percentage",
    resource_core_name="nvidia.com/gpucores",
    resource_priority_name="nvidia.com/priority",
    default_gpu_num=1,
    memory_factor=1,
    gpu_core_policy="default",
    mig_profile_allowlist=CHART_ALLOWLIST,
    device_split_count=10,
    device_memory_scaling=1.0,
    device_core_scaling=1.0,
    pre_configured_device_memory=0,
    enable_numa_topology=False,
    lib_cuda_log_level=1,
)
