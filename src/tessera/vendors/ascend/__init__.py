"""Huawei Ascend: the family."""

from __future__ import annotations

from tessera.vendors.ascend.backend import Ascend
from tessera.vendors.ascend.templates import CHART, AscendSection
from tessera.vendors.base import Family, Switches, Vendor

__all__ = ["FAMILY", "Ascend"]


def build(section: AscendSection, switches: Switches) -> list[Vendor]:
    if not switches.ascend:
        return []
    return [Ascend(chip, soft_split=section.hami_vnpu_core) for chip in section.configs]


FAMILY = Family(title="Huawei Ascend", section="vnpus", chart=CHART, build=build, list_key="configs")
