"""The names that HAMi's metrics had up to v2.8, for dashboards that still ask for them.

The labels of v2.4 and of v2.5 to v2.8 differ; a second set of lines under one name would count everything twice. So
every name is written once with the labels of both; where they contradict each other, `devicecores` is the card's total.
Cores are what the grants have, not per cent, also where the present names normalise them.
"""

from __future__ import annotations

from tessera.scheduler.metrics.card_series import MIB, ZONE, CardSample, InstanceSample, SliceSample
from tessera.services.exposition import Series, escaped


def _memory_share(sample: CardSample) -> str:
    total = sample.card.device.memory
    return f"{{{sample.old_place},{ZONE}}} {sample.card.used_memory / total}" if total > 0 else ""


def _slice_share(sample: SliceSample) -> str:
    if sample.card_memory <= 0:
        return ""
    return f"{{{sample.old_place},{ZONE}}} {sample.memory / sample.card_memory}"


CARDS: tuple[Series[CardSample], ...] = (
    Series(
        "GPUDeviceMemoryLimit",
        "Old name of hami_gpu_memory_limit_bytes.",
        lambda s: f'{{{s.old_place},devicetype="{s.model}",{ZONE}}} {s.card.device.memory * MIB}',
    ),
    Series(
        "GPUDeviceCoreLimit",
        "Old name of hami_gpu_core_limit_ratio, in the card's own units.",
        lambda s: f'{{{s.old_place},devicetype="{s.model}",{ZONE}}} {s.card.device.cores}',
    ),
    Series(
        "GPUDeviceMemoryAllocated",
        "Old name of hami_gpu_memory_allocated_bytes.",
        lambda s: (
            f'{{{s.old_place},devicecores="{s.card.device.cores}",devicetype="{s.model}",{ZONE}}}'
            f" {s.card.used_memory * MIB}"
        ),
    ),
    Series(
        "GPUDeviceSharedNum",
        "Old name of hami_gpu_shared_count.",
        lambda s: f'{{{s.old_place},devicetype="{s.model}",{ZONE}}} {s.card.used}',
    ),
    Series(
        "GPUDeviceCoreAllocated",
        "Old name of hami_gpu_core_allocated_ratio, in the card's own units.",
        lambda s: f'{{{s.old_place},devicetype="{s.model}",{ZONE}}} {s.card.used_cores}',
    ),
    Series(
        "nodeGPUOverview",
        "Old name of hami_node_gpu_overview.",
        lambda s: (
            f'{{{s.old_place},devicecores="{s.card.device.cores}",sharedcontainers="{s.card.used}",'
            f'devicememorylimit="{s.card.device.memory}",devicetype="{s.model}",{ZONE}}} {s.card.used_memory * MIB}'
        ),
    ),
    Series("nodeGPUMemoryPercentage", "Old name of hami_node_gpu_memory_allocated_ratio.", _memory_share),
)

INSTANCES: tuple[Series[InstanceSample], ...] = (
    Series(
        "nodeGPUMigInstance",
        "Old name of hami_node_gpu_mig_instance_info.",
        lambda s: f'{{{s.old_place},migname="{escaped(s.instance.slot.profile)}-{s.instance.gpu_instance}",{ZONE}}} 1',
    ),
)

SLICES: tuple[Series[SliceSample], ...] = (
    Series(
        "vGPUMemoryAllocated",
        "Old name of hami_vgpu_memory_allocated_bytes.",
        lambda s: f"{{{s.old_place},{ZONE}}} {s.memory * MIB}",
    ),
    Series(
        "vGPUCoreAllocated",
        "Old name of hami_vgpu_core_allocated_ratio, in the card's own units.",
        lambda s: f"{{{s.old_place},{ZONE}}} {s.cores}",
    ),
    Series(
        "vGPUPodsDeviceAllocated",
        "Memory of one card granted to one container, with its cores as a label.",
        lambda s: f'{{{s.old_place},deviceusedcore="{s.cores}",{ZONE}}} {s.memory * MIB}',
    ),
    Series("vGPUMemoryPercentage", "Part of the card's memory granted to one container, 0 to 1.", _slice_share),
    Series(
        "vGPUCorePercentage",
        "Cores of one card granted to one container.",
        lambda s: f"{{{s.old_place},{ZONE}}} {s.cores}",
    ),
)
