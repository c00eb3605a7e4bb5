"""The section `vnpus` of device-config.yaml: Ascend chips, the templates that cut them, and the chart's tables.

A chip can only be cut along its templates, so a memory request is rounded up to the smallest template that holds it
(`Chip.template`). Soft-split pods are not cut: they get exactly what they ask for.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from tessera.vendors.base import Amount, Section

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=32)]
"""becomes a part of annotation keys"""


class Template(Section, frozen=True, kw_only=True):
    """A way to cut a part from a chip; without a name it stands for the whole chip."""

    name: str = ""
    memory: Amount = 0
    """MiB"""
    ai_core: Amount = 0
    ai_cpu: Amount = field(default=0, name="aiCPU")


class Chip(Section, frozen=True, kw_only=True):
    common_word: Word
    """the backend's key"""
    chip_name: str = ""
    resource_name: str = ""
    resource_memory_name: str = ""
    resource_core_name: str = ""
    memory_allocatable: Amount = 0
    """MiB that a whole chip gives"""
    memory_capacity: Amount = 0
    """MiB that may be asked for; the chip keeps the difference"""
    memory_factor: Amount = 0
    """MiB per unit of memory in pods and quotas; 0 means 1"""
    ai_core: Amount = 0
    ai_cpu: Amount = field(default=0, name="aiCPU")
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """hide all chips from containers that ask for none"""
    super_pod: bool = False
    templates: tuple[Template, ...] = ()

    def template(self, memory: int) -> Template | None:
        """The template or whole chip that serves a request for `memory` MiB; None if no chip has that much."""
        for template in sorted(self.templates, key=lambda t: (t.memory, t.name)):
            if 0 < template.memory >= memory:
                return template
        whole = Template(memory=self.memory_allocatable)
        return whole if whole.memory > 0 and memory <= self.memory_capacity else None


class AscendSection(Section, frozen=True, kw_only=True):
    hami_vnpu_core: bool = False
    """nodes take soft-split pods unless they say otherwise"""
    configs: tuple[Chip, ...] = ()
    """HAMi up to v2.8 had this list as the section"""


Cut = tuple[str, int, int, int]
"""name, memory in MiB, AI cores, AI CPUs"""


def _chip(
    word: str, chip_name: str, *, memory: int, ai_core: int, ai_cpu: int, cuts: tuple[Cut, ...], **other: Any
) -> Chip:
    return Chip(
        common_word=word,
        chip_name=chip_name,
        resource_name=f"huawei.com/{word}",
        resource_memory_name=f"huawei.com/{word}-memory",
        resource_core_name=f"huawei.com/{word}-core",
        memory_allocatable=memory,
        memory_factor=1,
        ai_core=ai_core,
        ai_cpu=ai_cpu,
        templates=tuple(Template(name=n, memory=m, ai_core=core, ai_cpu=cpu) for n, m, core, cpu in cuts),
        **{"memory_capacity": memory, **other},
    )


CUTS_64G_20 = (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))
"""of chips with 64 GiB and 20 AI cores"""

CHART = AscendSection(
    configs=(
        _chip(
            "Ascend910A",
            "910A",
            memory=32768,
            ai_core=30,
            ai_cpu=0,
            cuts=(("vir02", 2184, 2, 0), ("vir04", 4369, 4, 0), ("vir08", 8738, 8, 0), ("vir16", 17476, 16, 0)),
        ),
        _chip(
            "Ascend910B2",
            "910B2",
            memory=65536,
            ai_core=24,
            ai_cpu=6,
            cuts=(("vir03_1c_8g", 8192, 3, 1), ("vir06_1c_16g", 16384, 6, 1), ("vir12_3c_32g", 32768, 12, 3)),
        ),
        _chip("Ascend910B3", "910B3", memory=65536, ai_core=20, ai_cpu=7, cuts=CUTS_64G_20),
        _chip("Ascend910B4-1", "910B4-1", memory=65536, ai_core=20, ai_cpu=7, cuts=CUTS_64G_20),
        _chip(
            "Ascend910B4",
            "910B4",
            memory=32768,
            ai_core=20,
            ai_cpu=7,
            cuts=(("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3)),
        ),
        _chip(
            "Ascend310P",
            "310P3",
            memory=21527,
            memory_capacity=24576,
            ai_core=8,
            ai_cpu=7,
            cuts=(("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4)),
        ),
        _chip("Ascend910C", "Ascend910", memory=65536, ai_core=20, ai_cpu=7, cuts=CUTS_64G_20, super_pod=True),
    )
)
