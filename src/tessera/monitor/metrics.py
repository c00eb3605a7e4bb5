"""The monitor's metrics of cards, containers and MIG instances, under HAMi's names and labels.

Each scrape uses one snapshot, so its values agree. A region's device is shown with all its series, or with none if its
uuid cannot be shown. The names of HAMi up to v2.8 are added on request.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tessera import __version__
from tessera.monitor.container_dirs import Owner
from tessera.monitor.device_usage import CardUtilization
from tessera.monitor.pods import SeenPod
from tessera.monitor.regions import Region, RegionDevice
from tessera.wire.errors import WireError
from tessera.wire.mig import MigAllocation, decode_mig_allocations

ZONE = "vGPU"
UNKNOWN = "unknown"

HOST = ("node", "device_index", "device_uuid", "device_type")
CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
MIG = (*CONTAINER, "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
LEGACY_HOST = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
LEGACY_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
LEGACY_MEMORY = (*LEGACY_CONTAINER, "context", "module", "data", "offset")
LEGACY_MIG = (*LEGACY_CONTAINER, "instanceid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeView:
    """The state of the node at one moment."""

    node: str
    now: float
    """seconds since the epoch"""
    pods: Sequence[SeenPod] = ()
    regions: Mapping[Owner, Region] = field(default_factory=dict)
    cards: Sequence[CardUtilization] = ()


class MonitorMetrics(Collector):
    """All metrics of the monitor."""

    def __init__(self, view: Callable[[], ScrapeView], *, legacy: bool = False) -> None:
        self._view = view
        self._legacy = legacy

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: otherwise the registry would collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        yield _build()
        yield from _of_cards(view)
        yield from _of_containers(view)
        yield from _of_mig(view)
        if self._legacy:
            yield from _legacy_of_cards(view)
            yield from _legacy_of_containers(view)
            yield from _legacy_of_mig(view)


class _Family:
    """A gauge whose series all have the label `zone`."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.metric = GaugeMetricFamily(name, text, labels=[*labels, "zone"])

    def add(self, values: Iterable[object], value: float | None) -> None:
        if value is not None:
            self.metric.add_metric([*map(str, values), ZONE], value)


def _build() -> Metric:
    facts = {
        "version": __version__,
        "revision": UNKNOWN,
        "build_date": UNKNOWN,
        "go_version": "",
        "compiler": sys.implementation.name,
        "platform": f"{sys.platform}/{platform.machine()}",
    }
    family = GaugeMetricFamily("hami_build_info", "What runs.", labels=list(facts))
    family.add_metric(list(facts.values()), 1)
    return family


# -- cards


def _of_cards(view: ScrapeView) -> Iterator[Metric]:
    used = _Family("hami_host_gpu_memory_used_bytes", "Memory of the card in use.", HOST)
    busy = _Family("hami_host_gpu_utilization_ratio", "Use of the card, 0 to 100.", HOST)
    # HAMi has no node label here.
    memory_busy = _Family(
        "hami_host_gpu_memory_controller_utilization_ratio", "Use of the card's memory controller, 0 to 100.", HOST[1:]
    )
    for card in view.cards:
        labels = _card_labels(view, card)
        used.add(labels, card.memory_bytes)
        busy.add(labels, card.utilization)
        memory_busy.add(labels[1:], card.memory_utilization)
    yield from (used.metric, busy.metric, memory_busy.metric)


def _legacy_of_cards(view: ScrapeView) -> Iterator[Metric]:
    used = _Family("HostGPUMemoryUsage", "Memory of the card in use.", LEGACY_HOST)
    busy = _Family("HostCoreUtilization", "Use of the card, 0 to 100.", LEGACY_HOST)
    for card in view.cards:
        used.add(_card_labels(view, card), card.memory_bytes)
        busy.add(_card_labels(view, card), card.utilization)
    yield from (used.metric, busy.metric)


def _card_labels(view: ScrapeView, card: CardUtilization) -> tuple[object, ...]:
    # Unlike in registrations, the prefix is added even if the name has it.
    return (view.node, card.index, card.uuid, f"NVIDIA-{card.name}")


# -- containers


def _of_containers(view: ScrapeView) -> Iterator[Metric]:
    families: list[tuple[_Family, Callable[[RegionDevice], int]]] = [
        (_Family(name, text, CONTAINER), value)
        for name, text, value in (
            ("hami_vgpu_memory_used_bytes", "Memory that the container uses.", lambda it: it.use.total),
            ("hami_vgpu_memory_limit_bytes", "Memory that the container may use; 0 = any.", lambda it: it.limit),
            ("hami_container_device_memory_bytes", "Memory that the container uses.", lambda it: it.use.total),
            ("hami_container_device_utilization_ratio", "Use by the container, 0 to 100.", lambda it: it.use.sm),
            ("hami_vgpu_memory_context_bytes", "Memory of contexts.", lambda it: it.use.context),
            ("hami_vgpu_memory_module_bytes", "Memory of modules.", lambda it: it.use.module),
            ("hami_vgpu_memory_buffer_bytes", "Memory of buffers.", lambda it: it.use.data),
        )
    ]
    elapsed = _Family("hami_container_last_kernel_elapsed_seconds", "Time since the last kernel.", CONTAINER)
    for labels, region, device in _devices(view):
        for family, value in families:
            family.add(labels, value(device))
        elapsed.add(labels, _since_last_kernel(region, view.now))
    yield from (family.metric for family, _ in families)
    yield elapsed.metric


def _legacy_of_containers(view: ScrapeView) -> Iterator[Metric]:
    used = _Family("vGPU_device_memory_usage_in_bytes", "Memory that the container uses.", LEGACY_CONTAINER)
    limit = _Family("vGPU_device_memory_limit_in_bytes", "Memory that the container may use.", LEGACY_CONTAINER)
    busy = _Family("Device_utilization_desc_of_container", "Use by the container, 0 to 100.", LEGACY_CONTAINER)
    elapsed = _Family("Device_last_kernel_of_container", "Time since the last kernel.", LEGACY_CONTAINER)
    memory = _Family("Device_memory_desc_of_container", "Memory that the container uses, by kind.", LEGACY_MEMORY)
    for labels, region, device in _devices(view):
        use = device.use
        used.add(labels, use.total)
        limit.add(labels, device.limit)
        busy.add(labels, use.sm)
        elapsed.add(labels, _since_last_kernel(region, view.now))
        rest = max(0, use.total - use.context - use.module - use.data)
        memory.add((*labels, use.context, use.module, use.data, rest), use.total)
    yield from (each.metric for each in (used, limit, busy, elapsed, memory))


def _devices(view: ScrapeView) -> Iterator[tuple[tuple[object, ...], Region, RegionDevice]]:
    for pod in view.pods:
        for owner in dict.fromkeys(pod.owners):
            region = view.regions.get(owner)
            for device in () if region is None else region.devices:
                if region is not None and device.uuid is not None:
                    labels = (pod.namespace, pod.name, owner.container, device.index, device.uuid)
                    yield labels, region, device


def _since_last_kernel(region: Region, now: float) -> float | None:
    last = region.last_kernel_time or 0
    return max(0, int(now) - last) if last > 0 else None


# -- MIG instances


def _of_mig(view: ScrapeView) -> Iterator[Metric]:
    family = _Family("hami_mig_device_info", "A MIG instance that a container has.", MIG)
    for labels, mig in _instances(view):
        family.add((*labels, mig.mig_uuid, mig.slot.profile, mig.gpu_instance, mig.compute_instance), 1)
    yield family.metric


def _legacy_of_mig(view: ScrapeView) -> Iterator[Metric]:
    family = _Family("MigInfo", "A MIG instance that a container has.", LEGACY_MIG)
    for labels, mig in _instances(view):
        family.add((*labels, mig.gpu_instance), 1)
    yield family.metric


def _instances(view: ScrapeView) -> Iterator[tuple[tuple[object, ...], MigAllocation]]:
    """Yields reservations whose instances exist."""
    for pod in view.pods:
        try:
            allocations = decode_mig_allocations(pod.mig)
        except WireError:
            # The agent reports it.
            continue
        for mig in allocations:
            if mig.mig_uuid is not None and 0 <= mig.container < len(pod.containers):
                container = pod.containers[mig.container]
                yield (pod.namespace, pod.name, container, mig.device, mig.uuid), mig
