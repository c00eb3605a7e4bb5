"""HAMi's metrics of cards, of the slices that containers hold, and of namespace quotas.

Names, labels and units are HAMi's. Misleading values are corrected: `container_index` is the container's position
(init containers first), a container that has ended holds nothing, and no series occurs twice. Use and limit of a quota
are in one unit, the one that the user wrote. The label `limit` is HAMi's and stays, although a changed limit starts a
new series (Prometheus ends the old one at the next scrape); `hami_resource_quota_limit` is the one to calculate with.
Where nothing is limited the label is empty, since 0 is a limit. Pure: from one state to samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from tessera.core.fit.device_rules import Rules
from tessera.core.fit.quota import QuotaBook, QuotaFacts
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Span, Use
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import Role
from tessera.services.exposition import Series, escaped
from tessera.vendors.amd import Amd
from tessera.wire.pod_devices import MigAllocation

MIB = 2**20
"""bytes"""
ZONE = 'zone="vGPU"'
"""on every series about cards, as HAMi has it"""
CLAIM_INDEX = "claim"
"""instead of a container's position, for what a ResourceClaim gives to a pod"""
COMPUTE_UNITS = frozenset({Amd.key})
"""vendors that count cores in the card's own units; ratios convert them to per cent"""


@dataclass(frozen=True, slots=True)
class CardSample:
    """A card with the label texts that its series share."""

    card: Card
    place: str
    """labels that say which card, in HAMi's present names"""
    old_place: str
    """the same in the names up to v2.8"""
    model: str
    core_limit: int
    core_use: int


@dataclass(frozen=True, slots=True)
class SliceSample:
    """What one container holds of one card."""

    place: str
    old_place: str
    memory: int
    """MiB"""
    cores: int
    """as the grant has them"""
    core_ratio: int
    card_memory: int
    """MiB"""


@dataclass(frozen=True, slots=True)
class InstanceSample:
    """A MIG instance that exists."""

    instance: MigAllocation
    place: str
    old_place: str


def per_cent(cores: int, device: Device) -> int:
    """Cores as core ratios show them."""
    if device.vendor not in COMPUTE_UNITS:
        return cores
    return -(-cores * 100 // device.cores) if device.cores > 0 else 0


def card_samples(view: NodeInfo) -> list[CardSample]:
    node = escaped(view.name)
    return [_card_sample(node, card) for card in view.cards]


def _card_sample(node: str, card: Card) -> CardSample:
    device = card.device
    uuid = escaped(device.uuid)
    return CardSample(
        card=card,
        place=f'node="{node}",device_uuid="{uuid}",device_index="{device.index}"',
        old_place=f'nodeid="{node}",deviceuuid="{uuid}",deviceidx="{device.index}"',
        model=escaped(device.model),
        core_limit=per_cent(device.cores, device),
        core_use=per_cent(card.used_cores, device),
    )


def slice_samples(view: NodeInfo, pods: Iterable[PodFacts]) -> list[SliceSample]:
    """One sample per container and card of this node; grants of one container on one card are added, and so are those
    of a pod's claims."""
    devices = {card.device.uuid: card.device for card in view.cards}
    found: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    for pod in pods:
        for position, grant in _held(pod):
            if grant.uuid not in devices:
                continue
            # Two pods of one name overlap for a moment when one replaces the other; a series must be there only once.
            is_claim = position < len(pod.spans) and pod.spans[position].role is Role.CLAIM
            key = (pod.namespace, pod.name, CLAIM_INDEX if is_claim else str(position), grant.uuid)
            memory, cores = found.get(key, (0, 0))
            found[key] = (memory + grant.memory, cores + grant.cores)
    node = escaped(view.name)
    return [
        _slice_sample(node, key, memory=memory, cores=cores, device=devices[key[3]])
        for key, (memory, cores) in found.items()
    ]


def _held(pod: PodFacts) -> Iterator[tuple[int, Grant]]:
    for containers in pod.grants.values():
        for position, grants in enumerate(containers):
            span = pod.spans[position] if position < len(pod.spans) else Span(Role.APP)
            over = span.finished and span.role is Role.INIT
            for grant in grants:
                # A MIG instance stays until the pod ends.
                if not over or grant.mig is not None:
                    yield position, grant


def _slice_sample(node: str, key: tuple[str, str, str, str], *, memory: int, cores: int, device: Device) -> SliceSample:
    namespace, pod, position, uuid = escaped(key[0]), escaped(key[1]), key[2], escaped(key[3])
    return SliceSample(
        place=f'namespace="{namespace}",node="{node}",pod="{pod}",container_index="{position}",device_uuid="{uuid}"',
        old_place=(
            f'podnamespace="{namespace}",nodename="{node}",podname="{pod}",'
            f'containeridx="{position}",deviceuuid="{uuid}"'
        ),
        memory=memory,
        cores=cores,
        core_ratio=per_cent(cores, device),
        card_memory=device.memory,
    )


def instance_samples(cards: Iterable[CardSample], instances: Iterable[MigAllocation]) -> list[InstanceSample]:
    """Instances on cards that the node has, each once."""
    by_uuid = {sample.card.device.uuid: sample for sample in cards}
    unique = {(one.uuid, one.mig_uuid, one.slot): one for one in instances if one.mig_uuid is not None}
    return [
        InstanceSample(one, by_uuid[one.uuid].place, by_uuid[one.uuid].old_place)
        for one in unique.values()
        if one.uuid in by_uuid
    ]


def _memory_share(sample: CardSample) -> str:
    total = sample.card.device.memory
    if total <= 0:
        return ""
    return f'{{{sample.place},device_type="{sample.model}",{ZONE}}} {sample.card.used_memory / total}'


def _instance(sample: InstanceSample) -> str:
    one = sample.instance
    return (
        f'{{{sample.place},mig_uuid="{escaped(one.mig_uuid or "")}",profile="{escaped(one.slot.profile)}",'
        f'gpu_instance_id="{one.gpu_instance}",compute_instance_id="{one.compute_instance}",'
        f'placement_start="{one.slot.placement.start}",placement_size="{one.slot.placement.size}",{ZONE}}} 1'
    )


CARDS: tuple[Series[CardSample], ...] = (
    Series(
        "hami_gpu_memory_limit_bytes",
        "Memory of the card that can be granted.",
        lambda s: f'{{{s.place},device_type="{s.model}",{ZONE}}} {s.card.device.memory * MIB}',
    ),
    Series(
        "hami_gpu_core_limit_ratio",
        "Cores of the card that can be granted, 100 for a whole card unless the node scales them.",
        lambda s: f'{{{s.place},device_type="{s.model}",{ZONE}}} {s.core_limit}',
    ),
    Series(
        "hami_gpu_memory_allocated_bytes",
        "Memory of the card that is granted.",
        lambda s: (
            f'{{{s.place},device_cores="{s.card.device.cores}",device_type="{s.model}",{ZONE}}}'
            f" {s.card.used_memory * MIB}"
        ),
    ),
    Series(
        "hami_gpu_shared_count",
        "Slots of the card that are taken.",
        lambda s: f'{{{s.place},device_type="{s.model}",{ZONE}}} {s.card.used}',
    ),
    Series(
        "hami_gpu_core_allocated_ratio",
        "Cores of the card that are granted.",
        lambda s: f'{{{s.place},device_type="{s.model}",{ZONE}}} {s.core_use}',
    ),
    Series(
        "hami_node_gpu_overview",
        "The card at a glance; the value is the granted memory in bytes, device_memory_limit is in MiB.",
        lambda s: (
            f'{{{s.place},device_cores="{s.card.device.cores}",device_memory_limit="{s.card.device.memory}",'
            f'device_type="{s.model}",{ZONE}}} {s.card.used_memory * MIB}'
        ),
    ),
    Series(
        "hami_node_gpu_memory_allocated_ratio", "Fraction of the card's memory that is granted, 0 to 1.", _memory_share
    ),
)

INSTANCES: tuple[Series[InstanceSample], ...] = (
    Series("hami_node_gpu_mig_instance_info", "A MIG instance that exists, with its place on the card.", _instance),
)

SLICES: tuple[Series[SliceSample], ...] = (
    Series(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of one card granted to one container.",
        lambda s: f"{{{s.place},{ZONE}}} {s.memory * MIB}",
    ),
    Series(
        "hami_vgpu_core_allocated_ratio",
        "Cores of one card granted to one container.",
        lambda s: f"{{{s.place},{ZONE}}} {s.core_ratio}",
    ),
)

# -- the names up to HAMi v2.8, for dashboards that still ask for them
#
# The labels of v2.4 and of v2.5 to v2.8 differ; a second set of lines under one name would count everything twice. So
# every name is written once with the labels of both; where they contradict each other, `devicecores` is the card's
# total. Cores are what the grants have, not per cent, also where the present names normalise them.


def _legacy_memory_share(sample: CardSample) -> str:
    total = sample.card.device.memory
    return f"{{{sample.old_place},{ZONE}}} {sample.card.used_memory / total}" if total > 0 else ""


def _legacy_slice_share(sample: SliceSample) -> str:
    if sample.card_memory <= 0:
        return ""
    return f"{{{sample.old_place},{ZONE}}} {sample.memory / sample.card_memory}"


LEGACY_CARDS: tuple[Series[CardSample], ...] = (
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
    Series("nodeGPUMemoryPercentage", "Old name of hami_node_gpu_memory_allocated_ratio.", _legacy_memory_share),
)

LEGACY_INSTANCES: tuple[Series[InstanceSample], ...] = (
    Series(
        "nodeGPUMigInstance",
        "Old name of hami_node_gpu_mig_instance_info.",
        lambda s: f'{{{s.old_place},migname="{escaped(s.instance.slot.profile)}-{s.instance.gpu_instance}",{ZONE}}} 1',
    ),
)

LEGACY_SLICES: tuple[Series[SliceSample], ...] = (
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
    Series("vGPUMemoryPercentage", "Part of the card's memory granted to one container, 0 to 1.", _legacy_slice_share),
    Series(
        "vGPUCorePercentage",
        "Cores of one card granted to one container.",
        lambda s: f"{{{s.old_place},{ZONE}}} {s.cores}",
    ),
)


@dataclass(frozen=True, slots=True)
class QuotaSample:
    """One resource in one namespace."""

    namespace: str
    resource: str
    used: int | float
    limit: int | None


def quota_samples(book: QuotaBook, rules: Mapping[str, Rules]) -> list[QuotaSample]:
    """Every resource that is limited or used, sorted."""
    objects, uses = cast("tuple[dict[tuple[str, str], QuotaFacts], dict[tuple[str, str], Use]]", book.state())
    used: dict[tuple[str, str], float] = defaultdict(int)
    for facts in objects.values():
        for resource in facts.limits:
            used[facts.namespace, resource] += 0
    for (namespace, vendor), use in uses.items():
        rule = rules.get(vendor)
        if rule is None:
            continue
        if rule.quota_memory:
            used[namespace, rule.quota_memory] += in_units(use.memory, rule.quota_factor)
        if rule.quota_cores:
            used[namespace, rule.quota_cores] += use.cores
    return [
        QuotaSample(escaped(namespace), escaped(resource), amount, book.limit(namespace, resource))
        for (namespace, resource), amount in sorted(used.items())
    ]


def in_units(memory: int, factor: int) -> int | float:
    """MiB in the quota's unit, of `factor` MiB each."""
    if factor <= 1:
        return memory
    return memory // factor if memory % factor == 0 else memory / factor


def _limit(sample: QuotaSample) -> str:
    return "" if sample.limit is None else str(sample.limit)


QUOTAS: tuple[Series[QuotaSample], ...] = (
    Series(
        "hami_resource_quota_used",
        "Granted in the namespace, in the unit of the quota.",
        lambda s: f'{{namespace="{s.namespace}",quota_name="{s.resource}",limit="{_limit(s)}",{ZONE}}} {s.used}',
    ),
    Series(
        "hami_resource_quota_limit",
        "The strictest limit in the namespace.",
        lambda s: (
            "" if s.limit is None else f'{{namespace="{s.namespace}",quota_name="{s.resource}",{ZONE}}} {s.limit}'
        ),
    ),
)

LEGACY_QUOTAS: tuple[Series[QuotaSample], ...] = (
    Series(
        "QuotaUsed",
        "Old name of hami_resource_quota_used.",
        lambda s: f'{{quotanamespace="{s.namespace}",quotaName="{s.resource}",limit="{_limit(s)}",{ZONE}}} {s.used}',
    ),
)
