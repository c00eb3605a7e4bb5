"""MetaX: whole GPUs (`gpu`) and slices of cards (`sgpu`)."""

from __future__ import annotations

from tessera.vendors.base import Family, ResourceNames, Switches, Vendor
from tessera.vendors.metax.gpu import MetaxGpu
from tessera.vendors.metax.section import CHART, MetaxSection
from tessera.vendors.metax.sgpu import MetaxSgpu

__all__ = ["FAMILY", "MetaxGpu", "MetaxSgpu"]


def build(section: MetaxSection, switches: Switches) -> list[Vendor]:
    slices = ResourceNames(
        count=section.resource_v_count_name,
        memory=section.resource_v_memory_name,
        cores=section.resource_v_core_name,
    )
    return [
        MetaxGpu(section.resource_count_name),
        MetaxSgpu(slices, topology_aware=section.sgpu_topology_aware),
    ]


FAMILY = Family(section="metax", schema=MetaxSection, chart=CHART, build=build)
