"""Kunlun: whole cards (`whole`) and slices of cards (`vxpu`), both chosen by the links between cards."""

from __future__ import annotations

from tessera.vendors.base import Family, Switches, Vendor
from tessera.vendors.kunlun.section import CHART, KunlunSection
from tessera.vendors.kunlun.vxpu import Vxpu
from tessera.vendors.kunlun.whole import Kunlun

__all__ = ["FAMILY", "Kunlun", "Vxpu"]


def build(section: KunlunSection, switches: Switches) -> list[Vendor]:
    return [Kunlun(section), Vxpu(section)]


FAMILY = Family(section="kunlun", schema=KunlunSection, chart=CHART, build=build)
