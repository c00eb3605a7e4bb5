"""Enflame: whole cards (`gcu`), and partitions that the plugin offers by profile (`drs`)."""

from __future__ import annotations

from tessera.vendors.base import Family, ResourceNames, Switches, Vendor
from tessera.vendors.enflame.drs import Drs
from tessera.vendors.enflame.gcu import Gcu
from tessera.vendors.enflame.section import CHART, CORES_NAME, DRS_NAME, MEMORY_NAME, EnflameSection

__all__ = ["FAMILY", "Drs", "Gcu"]


def build(section: EnflameSection, switches: Switches) -> list[Vendor]:
    names = ResourceNames(
        count=section.drs or section.vgcu or DRS_NAME,
        memory=section.memory or MEMORY_NAME,
        cores=section.cores or CORES_NAME,
    )
    return [Gcu(section.gcu), Drs(names)]


FAMILY = Family(section="enflame", schema=EnflameSection, chart=CHART, build=build)
