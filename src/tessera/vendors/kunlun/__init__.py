"""Kunlun: whole cards (`whole`) and slices of cards (`vxpu`), both chosen by the links between cards."""

from __future__ import annotations

from tessera.vendors.base import Family, ResourceNames, Section, Switches, Vendor
from tessera.vendors.kunlun.vxpu import Vxpu
from tessera.vendors.kunlun.whole import Kunlun


class KunlunSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_v_count_name: str = ""
    resource_v_memory_name: str = ""


CHART = KunlunSection(
    resource_count_name="kunlunxin.com/xpu",
    resource_v_count_name="kunlunxin.com/vxpu",
    resource_v_memory_name="kunlunxin.com/vxpu-memory",
)


def build(section: KunlunSection, switches: Switches) -> list[Vendor]:
    slices = ResourceNames(count=section.resource_v_count_name, memory=section.resource_v_memory_name)
    return [Kunlun(section.names), Vxpu(slices)]


FAMILY = Family(title="Kunlun", section="kunlun", chart=CHART, build=build)
