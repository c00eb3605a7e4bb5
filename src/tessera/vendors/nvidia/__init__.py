"""NVIDIA: the family."""

from __future__ import annotations

from tessera.vendors.base import Family, Switches, Vendor
from tessera.vendors.nvidia.backend import Nvidia
from tessera.vendors.nvidia.section import CHART, NvidiaSection

__all__ = ["FAMILY", "Nvidia"]


def build(section: NvidiaSection, switches: Switches) -> list[Vendor]:
    return [Nvidia(section)]


FAMILY = Family(section="nvidia", schema=NvidiaSection, chart=CHART, build=build)
