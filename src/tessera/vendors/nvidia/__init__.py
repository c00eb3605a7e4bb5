"""NVIDIA: the family."""

from __future__ import annotations

from tessera.vendors.base import Family
from tessera.vendors.nvidia.backend import CHART, Nvidia

__all__ = ["FAMILY", "Nvidia"]


FAMILY = Family(title="NVIDIA", section="nvidia", chart=CHART, build=lambda section, _: [Nvidia(section)])
