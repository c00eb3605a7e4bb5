"""How much of their cards containers use at this moment, as the monitors on the nodes measure it.

The monitors are pods of the agents' DaemonSet; their metrics are read through the apiserver's proxy, because a person's
machine reaches no pod. That needs `get` on `pods/proxy` in the namespace of the release and nothing else: the chart's
Role `tessera-monitor-reader`. Nothing here fails: what cannot be read in time is unknown, and `note` says why in one
line. Memory is what HAMi-core counts, so slices of cards in other modes have no figures of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_forbidden
from tessera.kube.resources import PODS
from tessera.wire.objects import Pod

SELECTOR = "app.kubernetes.io/component in (tessera-device-plugin,hami-device-plugin)"
CONTAINERS = ("monitor", "vgpu-monitor")
"""names of the monitor's container in Tessera's chart and in HAMi's"""
PORT = 9394
"""where a monitor listens that names no port"""
REQUEST_S = 3.0
"""for one monitor"""
TOTAL_S = 5.0
"""for all of them; the figures of those that have not answered by then are unknown"""
CONCURRENT = 16
"""monitors that are asked at once"""
MIB = 1 << 20

SLICE_MEMORY, SLICE_BUSY = "hami_vgpu_memory_used_bytes", "hami_container_device_utilization_ratio"
CARD_MEMORY, CARD_BUSY = "hami_host_gpu_memory_used_bytes", "hami_host_gpu_utilization_ratio"
FAMILIES = (SLICE_MEMORY, SLICE_BUSY, CARD_MEMORY, CARD_BUSY)


@dataclass(frozen=True, slots=True)
class Utilization:
    """What is used of a card; None is unknown."""

    memory_mib: int | None = None
    percent: int | None = None
    """of the time in which kernels ran"""

    @property
    def is_idle(self) -> bool:
        """Known to hold no memory and to run nothing."""
        return self.memory_mib == 0 and not self.percent


NOT_MEASURED = Utilization()


def sum_utilization(parts: Iterable[Utilization | None]) -> Utilization | None:
    """What is known of them together; None if nothing is."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    memory = [part.memory_mib for part in known if part.memory_mib is not None]
    busy = [part.percent for part in known if part.percent is not None]
    return Utilization(sum(memory) if memory else None, sum(busy) if busy else None)


class SliceKey(NamedTuple):
    """A part of a card that a container has."""

    uid: str
    """of the pod"""
    container: str
    card: str
    """uuid"""


@dataclass(frozen=True)
class MeasuredUse:
    """The figures of all monitors that answered."""

    slices: Mapping[SliceKey, Utilization] = field(default_factory=lambda: MappingProxyType({}))
    cards: Mapping[tuple[str, str], Utilization] = field(default_factory=lambda: MappingProxyType({}))
    """by node and uuid"""
    note: str = ""
    """why some figures are unknown; empty if none is missing"""

    @cached_property
    def pods(self) -> Mapping[tuple[str, str], Utilization]:
        """By uid and card: what all containers of a pod use of it."""
        parts: dict[tuple[str, str], list[Utilization]] = {}
        for key, used in self.slices.items():
            parts.setdefault((key.uid, key.card), []).append(used)
        return {key: sum_utilization(used) or NOT_MEASURED for key, used in parts.items()}

    def of_pods(self, uids: Iterable[str], card: str) -> Utilization | None:
        """What these pods use of a card together; None if nothing is known."""
        return sum_utilization(self.pods.get((uid, card)) for uid in uids)


NOTHING_MEASURED = MeasuredUse()


@dataclass(frozen=True, slots=True)
class MonitorPod:
    namespace: str
    name: str
    node: str
    port: int

    @property
    def path(self) -> str:
        return PODS.path(self.namespace, f"{self.name}:{self.port}", "proxy") + "/metrics"


async def read_use(
    client: KubeClient, pods: Mapping[str, Pod], *, nodes: Collection[str], namespace: str = ""
) -> MeasuredUse:
    """The use on these nodes. `pods` are those of the cluster by namespace/name, `namespace` is that of the release, if
    it is known."""
    if not nodes:
        return NOTHING_MEASURED
    try:
        monitors = await _find_monitors(client, namespace)
    except KubeError as error:
        return MeasuredUse(note=f"use is unknown: the monitors cannot be listed: {error}")
    found = _Figures({key: (pod.metadata.uid, pod.spec.node_name) for key, pod in pods.items()})
    wanted = [monitor for node, monitor in sorted(monitors.items()) if node in nodes]
    await _ask_all(client, wanted, found)
    return MeasuredUse(found.slices, found.cards, _note(found, wanted, missing=sorted(set(nodes) - monitors.keys())))


class _Figures:
    """What the monitors have answered so far."""

    def __init__(self, known: Mapping[str, tuple[str, str]]) -> None:
        self._known = known
        """uid and node of the cluster's pods, by namespace/name"""
        self.slices: dict[SliceKey, Utilization] = {}
        self.cards: dict[tuple[str, str], Utilization] = {}
        self.problems: dict[str, str] = {}
        """by node"""
        self.forbidden = ""
        """the namespace whose monitors may not be asked"""

    def add(self, node: str, text: str) -> None:
        """Raises ValueError if the text is not in Prometheus' format."""
        lines = "\n".join(line for line in text.splitlines() if line.startswith(FAMILIES))
        slices: dict[SliceKey, dict[str, int]] = {}
        cards: dict[str, dict[str, int]] = {}
        for family in text_string_to_metric_families(f"{lines}\n"):
            for sample in family.samples:
                labels, value = sample.labels, int(sample.value)
                card = labels.get("device_uuid", "")
                if sample.name in (CARD_MEMORY, CARD_BUSY):
                    cards.setdefault(card, {})[sample.name] = value
                    continue
                uid, where = self._known.get(f"{labels.get('namespace')}/{labels.get('pod')}", ("", ""))
                if where == node:
                    # A container may hold two slices of one card, as two devices.
                    parts = slices.setdefault(SliceKey(uid, labels.get("container", ""), card), {})
                    parts[sample.name] = parts.get(sample.name, 0) + value
        self.slices |= {key: _utilization(of, SLICE_MEMORY, SLICE_BUSY) for key, of in slices.items()}
        self.cards |= {(node, card): _utilization(of, CARD_MEMORY, CARD_BUSY) for card, of in cards.items()}


def _utilization(figures: Mapping[str, int], memory: str, busy: str) -> Utilization:
    used = figures.get(memory)
    return Utilization(None if used is None else used // MIB, figures.get(busy))


async def _find_monitors(client: KubeClient, namespace: str) -> dict[str, MonitorPod]:
    """The monitors' pods, by node."""
    listing = await client.list(PODS.path(namespace or None), dict[str, Any], label_selector=SELECTOR)
    monitors = (_monitor(pod) for pod in listing.items)
    return {monitor.node: monitor for monitor in monitors if monitor is not None}


def _monitor(pod: Json) -> MonitorPod | None:
    """None if the pod has no monitor, or none that runs."""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    container = next((each for each in spec.get("containers") or () if each.get("name") in CONTAINERS), None)
    if container is None or (pod.get("status") or {}).get("phase") != "Running" or not spec.get("nodeName"):
        return None
    port = next((int(each["containerPort"]) for each in container.get("ports") or () if "containerPort" in each), PORT)
    return MonitorPod(metadata["namespace"], metadata["name"], spec["nodeName"], port)


async def _ask_all(client: KubeClient, monitors: Collection[MonitorPod], found: _Figures) -> None:
    turns = asyncio.Semaphore(CONCURRENT)

    async def ask(monitor: MonitorPod) -> None:
        async with turns:
            if not found.forbidden:
                await _ask(client, monitor, found)

    tasks = {asyncio.create_task(ask(monitor)): monitor for monitor in monitors}
    if not tasks:
        return
    try:
        _, late = await asyncio.wait(tasks, timeout=TOTAL_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    found.problems |= {tasks[task].node: "no answer in time" for task in late}


async def _ask(client: KubeClient, monitor: MonitorPod, found: _Figures) -> None:
    try:
        text = await client.get_raw(monitor.path, timeout=REQUEST_S)
        found.add(monitor.node, text.decode())
    except ApiError as error:
        if is_forbidden(error):
            found.forbidden = monitor.namespace
        found.problems[monitor.node] = error.message
    except (KubeError, ValueError, OverflowError) as error:
        found.problems[monitor.node] = str(error)


def _note(found: _Figures, asked: Collection[MonitorPod], *, missing: Collection[str]) -> str:
    if found.forbidden:
        return (
            f"use is unknown: you may not read the monitors (get pods/proxy in namespace {found.forbidden};"
            " the chart's Role tessera-monitor-reader allows it)"
        )
    if not asked:
        return "use is unknown: no monitor runs on these nodes"
    problems = dict.fromkeys(missing, "no monitor runs there") | found.problems
    if not problems:
        return ""
    node, reason = min(problems.items())
    more = f", and of {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"the use of node {node}{more} is unknown: {reason}"
