"""The section `enflame` of device-config.yaml, with the chart's values."""

from __future__ import annotations

from msgspec import field

from tessera.vendors.base import Section

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
