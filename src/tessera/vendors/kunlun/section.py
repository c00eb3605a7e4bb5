"""The section `kunlun` of device-config.yaml, with the chart's values."""

from __future__ import annotations

from tessera.vendors.base import Section


class KunlunSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_v_count_name: str = ""
    resource_v_memory_name: str = ""


CHART = KunlunSection(
    resource_count_name="kunlunxin.com/xpu",
    resource_v_count_name="kunlunxin.com/vxpu",
    resource_v_memory_name="kunlunxin.com/vxpu-memory",
)
