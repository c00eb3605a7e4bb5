"""HAMi's flags that name resources and defaults, and the key of device-config.yaml that each one overrides.

A v2.4.0 Deployment has no file: its flags are laid over the chart's values. Later Deployments have both; a flag that is
given wins, since somebody wrote it on purpose. Only the table is here; `device_sections` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Value(Enum):
    """What is written behind such a flag."""

    RESOURCE = "resource"
    AMOUNT = "amount"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Override:
    """One flag."""

    flag: str
    section: str
    key: str
    """as the file spells it"""
    value: Value = Value.RESOURCE
    chips: tuple[str, ...] = ()
    """where the section is a list of chips: words of the chip that is meant, the first one found"""

    @property
    def target(self) -> str:
        """What it overrides, in words."""
        return f"{self.key} of {self.chips[0]} in {self.section}" if self.chips else f"{self.section}.{self.key}"


def _names(section: str, stem: str, **keys: str) -> tuple[Override, ...]:
    return tuple(Override(f"{stem}-{ending}", section, key) for ending, key in keys.items())


_COUNT_MEMORY_CORES = {"name": "resourceCountName", "memory": "resourceMemoryName", "cores": "resourceCoreName"}

ASCEND_910 = ("Ascend910B3", "Ascend910B", "Ascend910")
"""v2.4.0 knew one kind of 910, with 64 GiB; files call it by these words"""
ASCEND_310P = ("Ascend310P",)

OVERRIDES: tuple[Override, ...] = (
    Override("resource-name", "nvidia", "resourceCountName"),
    Override("resource-mem", "nvidia", "resourceMemoryName"),
    Override("resource-mem-percentage", "nvidia", "resourceMemoryPercentageName"),
    Override("resource-cores", "nvidia", "resourceCoreName"),
    Override("resource-priority", "nvidia", "resourcePriorityName"),
    Override("default-mem", "nvidia", "defaultMemory", Value.AMOUNT),
    Override("default-cores", "nvidia", "defaultCores", Value.AMOUNT),
    Override("default-gpu", "nvidia", "defaultGPUNum", Value.AMOUNT),
    Override("overwrite-env", "nvidia", "overwriteEnv", Value.SWITCH),
    *_names("cambricon", "cambricon-mlu", **_COUNT_MEMORY_CORES),
    *_names("hygon", "dcu", **_COUNT_MEMORY_CORES),
    *_names("iluvatar", "iluvatar", **_COUNT_MEMORY_CORES),
    *_names("mthreads", "mthreads", **_COUNT_MEMORY_CORES),
    Override("metax-name", "metax", "resourceCountName"),
    Override("metax-vcount", "metax", "resourceVCountName"),
    Override("metax-vmemory", "metax", "resourceVMemoryName"),
    Override("metax-vcore", "metax", "resourceVCoreName"),
    Override("sgpu-topology-aware", "metax", "sgpuTopologyAware", Value.SWITCH),
    Override("enflame-gcu-resource-name", "enflame", "resourceNameGCU"),
    # HAMi v2.10 reads the older flag as another name of the newer one, which wins: it comes later here.
    Override("enflame-vgcu-resource-name", "enflame", "resourceNameDRSGCU"),
    Override("enflame-drs-gcu-resource-name", "enflame", "resourceNameDRSGCU"),
    Override("enflame-gcu-memory-resource-name", "enflame", "resourceNameGCUMemory"),
    Override("enflame-gcu-core-resource-name", "enflame", "resourceNameGCUCore"),
    Override("enflame-vgcu-legacy-resource-name", "enflame", "resourceNameVGCU"),
    Override("enflame-vgcu-percentage-resource-name", "enflame", "resourceNameVGCUPercentage"),
    Override("kunlun-name", "kunlun", "resourceCountName"),
    Override("kunlun-vcount", "kunlun", "resourceVCountName"),
    Override("kunlun-vmemory", "kunlun", "resourceVMemoryName"),
    Override("ascend-name", "vnpus", "resourceName", chips=ASCEND_910),
    Override("ascend-memory", "vnpus", "resourceMemoryName", chips=ASCEND_910),
    Override("ascend310p-name", "vnpus", "resourceName", chips=ASCEND_310P),
    Override("ascend310p-memory", "vnpus", "resourceMemoryName", chips=ASCEND_310P),
)

ASCEND_SECTION = "vnpus"

PRESETS = {
    "iluvatar": {
        "resourceCountName": "iluvatar.ai/vgpu",
        "resourceMemoryName": "iluvatar.ai/vcuda-memory",
        "resourceCoreName": "iluvatar.ai/vcuda-core",
    }
}
"""v2.4's own values of a section that neither file nor chart has; v2.4.0 Deployments give only some of them"""
