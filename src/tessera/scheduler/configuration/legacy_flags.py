"""HAMi's flags that override keys of device-config.yaml, and those that are accepted without effect.

A v2.4.0 Deployment has no file: its flags are laid over the chart's values. Later Deployments have both; a flag that is
given wins, because it was written on purpose. Only the tables are here; `device_sections` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.services.settings_table import Group, Setting
from tessera.services.value_types import AMOUNT, ANY_SWITCH, DURATION, RESOURCE, SWITCH, TEXT, ValueType


@dataclass(frozen=True, slots=True)
class Override:
    """One flag that overrides one key."""

    flag: str
    section: str
    key: str
    """as the file spells it"""
    type: ValueType[Any] = RESOURCE
    chips: tuple[str, ...] = ()
    """where the section is a list of chips: names of the chip that is meant; the first one found counts"""

    @property
    def setting(self) -> Setting:
        target = f"{self.key} of {self.chips[0]} in {self.section}" if self.chips else f"{self.section}.{self.key}"
        return Setting(self.flag, self.type, None, Group.OVERRIDES, f"Overrides {target}.")


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
    Override("default-mem", "nvidia", "defaultMemory", AMOUNT),
    Override("default-cores", "nvidia", "defaultCores", AMOUNT),
    Override("default-gpu", "nvidia", "defaultGPUNum", AMOUNT),
    Override("overwrite-env", "nvidia", "overwriteEnv", SWITCH),
    *_names("cambricon", "cambricon-mlu", **_COUNT_MEMORY_CORES),
    *_names("hygon", "dcu", **_COUNT_MEMORY_CORES),
    *_names("iluvatar", "iluvatar", **_COUNT_MEMORY_CORES),
    *_names("mthreads", "mthreads", **_COUNT_MEMORY_CORES),
    Override("metax-name", "metax", "resourceCountName"),
    Override("metax-vcount", "metax", "resourceVCountName"),
    Override("metax-vmemory", "metax", "resourceVMemoryName"),
    Override("metax-vcore", "metax", "resourceVCoreName"),
    Override("sgpu-topology-aware", "metax", "sgpuTopologyAware", SWITCH),
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

_KLOG_TEXTS = "log_backtrace_at log_dir log_file log_file_max_size stderrthreshold alsologtostderrthreshold"
_KLOG_SWITCHES = (
    "logtostderr alsologtostderr add_dir_header one_output skip_headers skip_log_headers "
    "legacy_stderr_threshold_behavior"
)


def _ignored(flag: str, type: ValueType[str], help: str) -> Setting:
    return Setting(flag, type, "", Group.IGNORED, help)


def _klog(flag: str, type: ValueType[str]) -> Setting:
    aliases = (flag.replace("_", "-"),) if "_" in flag else ()
    return Setting(flag, type, "", Group.IGNORED, "No effect: logs go to stderr.", aliases=aliases, hidden=True)


IGNORED: tuple[Setting, ...] = (
    _ignored("debug", ANY_SWITCH, "No effect, as in HAMi."),
    _ignored("profiling", ANY_SWITCH, "No effect: there are no Go profiles here."),
    Setting("node-lock-retry-timeout", DURATION, 0.0, Group.IGNORED, "No effect: bind waits instead (--turn-timeout)."),
    _ignored("vmodule", TEXT, "No effect, nor have klog's other flags (--logtostderr, ...): logs go to stderr."),
    *(_klog(flag, TEXT) for flag in _KLOG_TEXTS.split()),
    *(_klog(flag, ANY_SWITCH) for flag in _KLOG_SWITCHES.split()),
)
