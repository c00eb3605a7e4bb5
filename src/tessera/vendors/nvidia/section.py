"""The section `nvidia` of device-config.yaml, for the scheduler and for node agents, with the chart's values.

A missing key has HAMi's zero value, so files of any version since v2.4 keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tessera.vendors.base import Amount, Section, SharedSection
from tessera.wire.quotes import quoted

Scaling = Annotated[float, Meta(ge=0)]


class MigAllowance(Section, frozen=True, kw_only=True):
    """Profiles that a model of card may be cut into. Node agents read it: cards register what they offer."""

    models: tuple[str, ...] = ()
    """parts of product names"""
    profiles: tuple[str, ...] = ()


def validate_mig_allowlist(allowlist: Iterable[MigAllowance]) -> None:
    """Raise ValueError unless every entry has models and well-formed profiles, such as `2g.20gb`."""
    for entry in allowlist:
        if not entry.models or not entry.profiles:
            raise ValueError("invalid MIG profile allowlist: MIG profile allowlist must define models and profiles")
        for profile in entry.profiles:
            slices, dot, _ = profile.partition(".")
            if not dot or len(slices) < 2 or not slices.endswith("g"):
                raise ValueError(f"invalid MIG profile allowlist: invalid MIG profile {quoted(profile)}")


def _allow(models: str, profiles: str) -> MigAllowance:
    return MigAllowance(
        models=tuple(model.strip() for model in models.split(",")),
        profiles=tuple(profiles.split()),
    )


CHART_ALLOWLIST = (
    _allow("A30", "1g.6gb 2g.12gb 4g.24gb"),
    _allow("A100-SXM4-40GB, A100-40GB-PCIe, A100-PCIE-40GB", "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    # The driver calls the whole A100 80GB 7g.79gb, unlike its siblings.
    _allow("A100-SXM4-80GB, A100-80GB-PCIe, A100-PCIE-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    _allow("H100-PCIE-80GB, H100-SXM5-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    _allow("H100-PCIE-94GB, H100-SXM5-94GB", "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    _allow("H20, H100 on GH200", "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    _allow("H200 NVL, H200-SXM5", "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    _allow("B200", "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
    _allow("RTX PRO 6000 Blackwell Server Edition", "1g.24gb 2g.48gb 4g.96gb"),
)


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
