"""Checks a real cluster by its API objects, its containers and a scrape of the scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from tessera.core.ledger.ledger import Ledger, replay
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS, RESOURCE_SLICES
from tessera.vendors.base import Switches
from tessera.vendors.claims.allocations import claim_facts
from tessera.vendors.claims.pools import pool_devices
from tessera.vendors.node_reader import node_facts, quota_facts
from tessera.vendors.pod_reader import PodReader, claim_parts
from tessera.vendors.registry import build_vendors
from tessera.wire.objects import Node, Pod, ResourceQuota
from tessera.wire.quantity import Whole, read
from tessera.wire.resource_api import ResourceClaim, ResourceSlice
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, slices_of
from tessera_lab.sandbox.nodes.node import A100_MEMORY, SimulatedNode
from tessera_lab.sandbox.objects import containers_of, has_ended, key_of, node_of, uid_of
from tests.support.claim_scheduler import holders
from tests.support.ledger_replay import in_visible_order

MIB = 2**20
RESOURCES = ("gpu", "gpumem", "gpumem-percentage", "gpucores")

CardUse = dict[str, tuple[int, int, int]]
"""uuid -> slots, MiB and cores in use"""

_LIMIT = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_\d+")


async def replayed(client: KubeClient) -> Ledger:
    """The ledger that a scheduler would build from the current API objects."""
    vendors = build_vendors(None, Switches())
    nodes = [node_facts(node, vendors) for node in (await client.list(NODES.path(), Node)).items]
    reader = PodReader(vendors)
    pods = [(reader.facts(pod), claim_parts(pod)) for pod in (await client.list(PODS.path(), Pod)).items]
    found: dict[str, list[ResourceSlice]] = {}
    for each in (await client.list(RESOURCE_SLICES.path(), ResourceSlice)).items:
        found.setdefault(each.spec.pool.name, []).append(each)
    pools = {name: pool_devices(slices) for name, slices in found.items()}
    claims = (await client.list(RESOURCE_CLAIMS.path(), ResourceClaim)).items
    quotas = (await client.list(RESOURCE_QUOTAS.path(), ResourceQuota)).items
    return replay(
        vendors,
        nodes=[node for node in nodes if node.devices or node.problem],
        pods=holders(pods, [claim_facts(claim, pools) for claim in claims]),
        quotas=[quota_facts(quota, vendors) for quota in quotas],
    )


def use_of(ledger: Ledger) -> CardUse:
    views = [view for name in ledger.node_names() if (view := ledger.node(name)) is not None]
    return {card.device.uuid: (card.used, card.used_memory, card.used_cores) for view in views for card in view.cards}


class Scrape:
    """The scheduler's metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str) -> float:
        """The value of a family with one series."""
        (found,) = [sample.value for sample in self._samples if sample.name == name]
        return found

    @property
    def use(self) -> CardUse:
        slots, memory = self._by_card("hami_gpu_shared_count"), self._by_card("hami_gpu_memory_allocated_bytes")
        cores = self._by_card("hami_gpu_core_allocated_ratio")
        return {uuid: (int(slots[uuid]), int(memory[uuid]) // MIB, int(cores[uuid])) for uuid in slots}

    def _by_card(self, name: str) -> dict[str, float]:
        return {sample.labels["device_uuid"]: sample.value for sample in self._samples if sample.name == name}


def wrong_slices(pods: Iterable[Json], nodes: Mapping[str, SimulatedNode]) -> Iterator[str]:
    """Containers of bound pods that do not see exactly what they requested and their pod was granted."""
    for pod in pods:
        node = nodes.get(node_of(pod))
        if node is None or has_ended(pod):
            continue
        granted = dict(slices_of(pod, ALLOCATED))
        for position, container in enumerate(containers_of(pod)):
            slice_ = granted.get(position, ())
            where = f"{key_of(pod)} {container['name']}"
            asked = _asked(container)
            if [(entry.memory, entry.cores) for entry in slice_] != asked:
                yield f"{where}: asked for {asked}, was granted {slice_}"
            view = node.containers.get((uid_of(pod), container["name"]))
            if view is None:
                yield f"{where}: was not started"
                continue
            slice_ = in_visible_order(slice_, view.env.get("NVIDIA_VISIBLE_DEVICES", ""))
            limits = {key: value for key, value in view.env.items() if _LIMIT.fullmatch(key)}
            found = (limits, view.env.get("NVIDIA_VISIBLE_DEVICES", ""), view.env.get("CUDA_DEVICE_SM_LIMIT", ""))
            expected = (
                {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{entry.memory}m" for i, entry in enumerate(slice_)},
                ",".join(entry.uuid for entry in slice_),
                str(slice_[0].cores) if slice_ else "",
            )
            if found != expected:
                yield f"{where}: sees {found}, not {expected}"


def _asked(container: Json) -> list[tuple[int, int]]:
    """Memory and cores of each card; without an amount of memory, the whole card."""
    limits = container.get("resources", {}).get("limits") or {}
    count, memory, share, cores = (_whole(limits.get(f"nvidia.com/{name}", 0)) for name in RESOURCES)
    return [(memory or A100_MEMORY * (share or 100) // 100, cores)] * count


def _whole(text: str | int) -> int:
    found = read(text)
    assert isinstance(found, Whole)
    return found.value
