"""The section `metax` of device-config.yaml, with the chart's values."""

from __future__ import annotations

from tessera.vendors.base import Section


class MetaxSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_v_count_name: str = ""
    resource_v_memory_name: str = ""
    resource_v_core_name: str = ""
    sgpu_topology_aware: bool = False


CHART = MetaxSection(
    resource_count_name="metax-tech.com/gpu",
    resource_v_count_name="metax-tech.com/sgpu",
    resource_v_memory_name="metax-tech.com/vmemory",
    resource_v_core_name="metax-tech.com/vcore",
)
