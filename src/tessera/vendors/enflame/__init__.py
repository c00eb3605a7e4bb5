"""Enflame: whole cards (`gcu`), and partitions that the plugin offers by profile (`drs`)."""

from __future__ import annotations

from msgspec import field

from tessera.vendors.base import Family, ResourceNames, Section, Switches, Vendor
from tessera.vendors.enflame.drs import Drs
from tessera.vendors.enflame.gcu import Gcu

DRS_NAME = "enflame.com/drs-gcu"
MEMORY_NAME = "enflame.com/gcu-memory"
CORES_NAME = "enflame.com/gcu-core"


class EnflameSection(Section, frozen=True, kw_only=True):
    gcu: str = field(default="", name="resourceNameGCU")
    drs: str = field(default="", name="resourceNameDRSGCU")
    memory: str = field(default="", name="resourceNameGCUMemory")
    cores: str = field(default="", name="resourceNameGCUCore")
    vgcu: str = field(default="", name="resourceNameVGCU")
    """older name of `drs`"""
    vgcu_percentage: str = field(default="", name="resourceNameVGCUPercentage")
    """used by the shared mode before HAMi v2.10; ignored here"""


CHART = EnflameSection(gcu="enflame.com/gcu", drs=DRS_NAME, memory=MEMORY_NAME, cores=CORES_NAME)


def build(section: EnflameSection, switches: Switches) -> list[Vendor]:
    if section == EnflameSection():
        # Absent from the file, as where an administrator left this vendor off: nothing is claimed.
        return [Gcu(ResourceNames()), Drs(ResourceNames())]
    partitions = ResourceNames(
        count=section.drs or section.vgcu or DRS_NAME,
        memory=section.memory or MEMORY_NAME,
        cores=section.cores or CORES_NAME,
    )
    return [Gcu(ResourceNames(count=section.gcu)), Drs(partitions)]


FAMILY = Family(title="Enflame", section="enflame", chart=CHART, build=build)
