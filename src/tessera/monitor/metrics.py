"""The monitor's metrics of cards, containers and MIG instances under HAMi's names and labels, and GPU-seconds used.

Each scrape uses one snapshot, so its values agree. A region's device is shown with all its series, or with none if its
uuid cannot be shown. The names of HAMi up to v2.8 are added on request. Used seconds are the use of SMs that a region
shows, from one round to the next: a container counts only on cards that it was given, and all containers together as
one card at most. What containers without HAMi-core use is not told apart from what is unused.
"""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tessera import __version__
from tessera.monitor.container_dirs import Owner
from tessera.monitor.device_usage import CardUtilization
from tessera.monitor.pods import Cards, SeenPod
from tessera.monitor.regions import DeviceUsage, Region, RegionDevice
from tessera.services.exposition import MetricFamily, info
from tessera.services.gpu_time import CardKey, GpuTime
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations

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


class MonitorMetrics:
    """All metrics of the monitor."""

    def __init__(self, view: Callable[[], ScrapeView], *, legacy: bool = False) -> None:
        self._view = view
        self._legacy = legacy

    def collect(self) -> Iterator[MetricFamily]:
        view = self._view()
        yield _build()
        yield from _of_cards(view, legacy=self._legacy)
        yield from _of_containers(view, legacy=self._legacy)
        yield from _of_mig(view, legacy=self._legacy)


def _gauge(
    name: str, text: str, labels: Sequence[str], series: Iterable[tuple[Iterable[object], float | None]]
) -> MetricFamily:
    """A gauge whose series all have the label `zone`; a series without a value is left out."""
    family = MetricFamily("gauge", name, text, [*labels, "zone"])
    for values, value in series:
        if value is not None:
            family.add(value, [*map(str, values), ZONE])
    return family


def _build() -> MetricFamily:
    facts = {
        "version": __version__,
        "revision": UNKNOWN,
        "build_date": UNKNOWN,
        "go_version": "",
        "compiler": sys.implementation.name,
        "platform": f"{sys.platform}/{platform.machine()}",
    }
    return info("hami_build_info", "What runs.", facts)


def _of_cards(view: ScrapeView, *, legacy: bool) -> Iterator[MetricFamily]:
    # Unlike in registrations, the prefix is added even if the name has it.
    cards = [((view.node, card.index, card.uuid, f"NVIDIA-{card.name}"), card) for card in view.cards]
    memory = [(labels, card.memory_bytes) for labels, card in cards]
    busy = [(labels, card.utilization) for labels, card in cards]
    yield _gauge("hami_host_gpu_memory_used_bytes", "Memory of the card in use.", HOST, memory)
    yield _gauge("hami_host_gpu_utilization_ratio", "Use of the card, 0 to 100.", HOST, busy)
    yield _gauge(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Use of the card's memory controller, 0 to 100.",
        # HAMi has no node label here.
        HOST[1:],
        [(labels[1:], card.memory_utilization) for labels, card in cards],
    )
    if legacy:
        yield _gauge("HostGPUMemoryUsage", "Memory of the card in use.", LEGACY_HOST, memory)
        yield _gauge("HostCoreUtilization", "Use of the card, 0 to 100.", LEGACY_HOST, busy)


def _of_containers(view: ScrapeView, *, legacy: bool) -> Iterator[MetricFamily]:
    devices = list(_devices(view))
    used = [(labels, device.use.total) for labels, _, device in devices]
    limit = [(labels, device.limit) for labels, _, device in devices]
    busy = [(labels, device.use.sm) for labels, _, device in devices]
    elapsed = [(labels, _since_last_kernel(region, view.now)) for labels, region, _ in devices]
    for name, text, series in (
        ("hami_vgpu_memory_used_bytes", "Memory that the container uses.", used),
        ("hami_vgpu_memory_limit_bytes", "Memory that the container may use; 0 = any.", limit),
        ("hami_container_device_memory_bytes", "Memory that the container uses.", used),
        ("hami_container_device_utilization_ratio", "Use by the container, 0 to 100.", busy),
        ("hami_vgpu_memory_context_bytes", "Memory of contexts.", [(at, it.use.context) for at, _, it in devices]),
        ("hami_vgpu_memory_module_bytes", "Memory of modules.", [(at, it.use.module) for at, _, it in devices]),
        ("hami_vgpu_memory_buffer_bytes", "Memory of buffers.", [(at, it.use.data) for at, _, it in devices]),
    ):
        yield _gauge(name, text, CONTAINER, series)
    yield _gauge("hami_container_last_kernel_elapsed_seconds", "Time since the last kernel.", CONTAINER, elapsed)
    if not legacy:
        return
    yield _gauge("vGPU_device_memory_usage_in_bytes", "Memory that the container uses.", LEGACY_CONTAINER, used)
    yield _gauge("vGPU_device_memory_limit_in_bytes", "Memory that the container may use.", LEGACY_CONTAINER, limit)
    yield _gauge("Device_utilization_desc_of_container", "Use by the container, 0 to 100.", LEGACY_CONTAINER, busy)
    yield _gauge("Device_last_kernel_of_container", "Time since the last kernel.", LEGACY_CONTAINER, elapsed)
    by_kind = [((*labels, *_kinds(device.use)), device.use.total) for labels, _, device in devices]
    text = "Memory that the container uses, by kind."
    yield _gauge("Device_memory_desc_of_container", text, LEGACY_MEMORY, by_kind)


def _kinds(use: DeviceUsage) -> tuple[int, int, int, int]:
    return use.context, use.module, use.data, max(0, use.total - use.context - use.module - use.data)


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


def _of_mig(view: ScrapeView, *, legacy: bool) -> Iterator[MetricFamily]:
    instances = list(_instances(view))
    named = [
        ((*labels, mig.mig_uuid, mig.slot.profile, mig.gpu_instance, mig.compute_instance), 1)
        for labels, mig in instances
    ]
    text = "A MIG instance that a container has."
    yield _gauge("hami_mig_device_info", text, MIG, named)
    if legacy:
        yield _gauge("MigInfo", text, LEGACY_MIG, [((*labels, mig.gpu_instance), 1) for labels, mig in instances])


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


MAKER = "NVIDIA"


class UsedTime:
    """The counters of one node. Used from the event loop only."""

    def __init__(self, node: str, time: Callable[[], float]) -> None:
        self._node = node
        self._time = GpuTime(time)
        self._cards: frozenset[str] = frozenset()
        self._counted: frozenset[tuple[str, str]] = frozenset()
        """card and pod of every share"""

    def on_cards(self, cards: Iterable[CardUtilization]) -> None:
        """What the driver shows: cards that it does not show do not count."""
        models = {card.uuid: _model(card) for card in cards}
        for uuid in self._cards - models.keys():
            self._time.drop_card(CardKey(self._node, uuid))
        for uuid, model in models.items():
            self._time.put_card(CardKey(self._node, uuid), model)
        self._cards = frozenset(models)

    def on_round(
        self, pods: Sequence[SeenPod], regions: Mapping[Owner, Region], granted: Mapping[Owner, Cards | None]
    ) -> None:
        """What the containers use from now on; `granted` are their cards."""
        percent: Counter[tuple[str, str]] = Counter()
        for owner, given in granted.items():
            region = regions.get(owner)
            for device in () if region is None else region.devices:
                if device.uuid is not None and (given is None or device.uuid in given):
                    percent[device.uuid, owner.uid] += device.use.sm
        for uuid, uid in self._counted - percent.keys():
            self._time.set_share(CardKey(self._node, uuid), uid, share=0.0)
        workloads = {pod.uid: pod.workload for pod in pods}
        for (uuid, uid), value in percent.items():
            card = CardKey(self._node, uuid)
            self._time.set_share(card, uid, share=value / 100, workload=workloads[uid])
        self._counted = frozenset(percent)

    def collect(self) -> Iterator[MetricFamily]:
        used = MetricFamily(
            "counter",
            "tessera_gpu_used_seconds_total",
            "Seconds of cards that containers used, as HAMi-core measures the use of SMs.",
            ["node", "namespace", "owner_kind", "owner_name", "device_type"],
        )
        for sample in self._time.samples():
            used.add(sample.seconds, [self._node, *sample.key.workload, sample.key.model])
        unused = MetricFamily(
            "counter",
            "tessera_gpu_unused_seconds_total",
            "Seconds of cards that no container with HAMi-core used.",
            ["node", "device_type"],
        )
        for model, seconds in self._time.idle().items():
            unused.add(seconds, [self._node, model])
        yield from (used, unused)


def _model(card: CardUtilization) -> str:
    """As the agent registers it, so that what is used can be compared with what is granted."""
    return card.name if card.name.startswith(MAKER) else f"{MAKER}-{card.name}"
