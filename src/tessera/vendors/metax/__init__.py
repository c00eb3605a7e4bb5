"""MetaX: whole GPUs (`gpu`) and slices of cards (`sgpu`)."""

from __future__ import annotations

from tessera.vendors.base import Family, ResourceNames, Section, Switches, Vendor
from tessera.vendors.metax.gpu import MetaxGpu
from tessera.vendors.metax.sgpu import MetaxSgpu


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


def build(section: MetaxSection, switches: Switches) -> list[Vendor]:
    slices = ResourceNames(
        count=section.resource_v_count_name,
        memory=section.resource_v_memory_name,
        cores=section.resource_v_core_name,
    )
    return [MetaxGpu(section.names), MetaxSgpu(slices, topology_aware=section.sgpu_topology_aware)]


FAMILY = Family(title="MetaX", section="metax", chart=CHART, build=build)
