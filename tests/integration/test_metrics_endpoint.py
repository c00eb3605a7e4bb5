"""The metrics: HAMi's names with the right values, the service's own, and the two that must stay 0."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tessera.core.model.devices import MigPlacement, MigSlot, NodeFacts
from tessera.kube.resources import NODES, PODS, RESOURCE_QUOTAS
from tessera.scheduler import service as module
from tessera.scheduler.certificates.authority import facts_of
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Settings
from tessera.wire import keys
from tessera.wire.pod_devices import MigAllocation, encode_mig_allocations
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import A100, A100_MEMORY, SimulatedNode, gpu_cards
from tests.support.event_loops import on_uvloop
from tests.support.logs import Logs, captured
from tests.support.product import Product, gpu_pod, product
from tests.support.scheduler_process import EXTENDER_ONLY, Caller, calling, running, until

MIB = 2**20
IDLE = [
    *(f"tessera_pods_{what}" for what in ("in_handover", "unfenced", "awaiting_claims")),
    *(f"tessera_{what}_uncertain" for what in ("bindings", "claims")),
    *("tessera_nominations", "tessera_gangs_waiting", "tessera_gangs_planned", "tessera_claims_allocated"),
    *("tessera_gangs_bound_total", "tessera_gang_plans_given_up_total"),
    *("tessera_journal_file_errors_total", "tessera_journal_file_lost_records_total"),
]
"""series of what there is none of in a cluster at rest"""
ZERO = {"tessera_devices_overallocated": 0, "tessera_ledger_drift": 0}
HAMI = {
    "hami_build_info",
    "hami_gpu_memory_limit_bytes",
    "hami_gpu_core_limit_ratio",
    "hami_gpu_memory_allocated_bytes",
    "hami_gpu_shared_count",
    "hami_gpu_core_allocated_ratio",
    "hami_node_gpu_overview",
    "hami_node_gpu_memory_allocated_ratio",
    "hami_node_gpu_mig_instance_info",
    "hami_resource_quota_used",
    "hami_resource_quota_limit",
    "hami_vgpu_memory_allocated_bytes",
    "hami_vgpu_core_allocated_ratio",
}
LEGACY = {
    "GPUDeviceMemoryLimit",
    "GPUDeviceCoreLimit",
    "GPUDeviceMemoryAllocated",
    "GPUDeviceSharedNum",
    "GPUDeviceCoreAllocated",
    "nodeGPUOverview",
    "nodeGPUMemoryPercentage",
    "nodeGPUMigInstance",
    "QuotaUsed",
    "vGPUMemoryAllocated",
    "vGPUCoreAllocated",
    "vGPUPodsDeviceAllocated",
    "vGPUMemoryPercentage",
    "vGPUCorePercentage",
}

Json = dict[str, Any]


class Scrape:
    """The samples of one answer."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples: list[Sample] = [sample for family in families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def values(self, name: str, *labels: str) -> dict[Any, float]:
        """By the values of these labels."""
        found = [sample for sample in self.samples if sample.name == name]
        values = {tuple(sample.labels[label] for label in labels): sample.value for sample in found}
        assert len(values) == len(found), "the labels do not tell the series apart"
        return {key[0] if len(labels) == 1 else key: value for key, value in values.items()}

    def value(self, name: str, **labels: str) -> float:
        [found] = [s.value for s in self.samples if s.name == name and s.labels.items() >= labels.items()]
        return found

    def all(self, names: Iterable[str]) -> dict[str, float]:
        return {name: self.value(name) for name in names}


async def scrape(process: Process) -> Scrape:
    async with calling(process.listeners["metrics"].address) as caller:
        status, text = await caller.get("/metrics")
    assert status == 200
    return Scrape(text)


# -- after the life of some pods


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "500000"}},
}


async def run_pods(cluster: Product) -> list[str]:
    """Two pods that run, one that is refused; the uuid of every pod's card."""
    plane = cluster.plane
    await plane.client.create(RESOURCE_QUOTAS.path("default"), QUOTA)
    for pod in (gpu_pod("a", gpu=1, mem=3000, cores=30), gpu_pod("b", gpu=1, mem=1000, cores=10)):
        await plane.create_pod(pod)
        await cluster.running_pods(pod["metadata"]["name"])
    await plane.create_pod(gpu_pod("huge", gpu=1, mem=A100_MEMORY + 1))
    await cluster.refused("huge")
    nodes = (plane.nodes["n1"].containers[pod["metadata"]["uid"], "main"] for pod in plane.pods()[:2])
    return [seen.env["NVIDIA_VISIBLE_DEVICES"] for seen in nodes]


@on_uvloop
async def test_hamis_metrics_show_cards_and_slices_under_their_names(tmp_path: Path) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2))], tmp_path) as cluster:
        first, second = await run_pods(cluster)
        found = await scrape(cluster.running)
    assert first != second  # cards are spread by default
    card = {"node": "n1", "device_uuid": first, "device_type": A100, "zone": "vGPU"}
    for name, value in {
        "hami_gpu_memory_limit_bytes": A100_MEMORY * MIB,
        "hami_gpu_core_limit_ratio": 100,
        "hami_gpu_memory_allocated_bytes": 3000 * MIB,
        "hami_gpu_shared_count": 1,
        "hami_gpu_core_allocated_ratio": 30,
        "hami_node_gpu_overview": 3000 * MIB,
        "hami_node_gpu_memory_allocated_ratio": 3000 / A100_MEMORY,
    }.items():
        assert found.value(name, **card) == pytest.approx(value), name
    slices = found.values("hami_vgpu_memory_allocated_bytes", "namespace", "pod", "container_index", "device_uuid")
    assert slices == {("default", "a", "0", first): 3000 * MIB, ("default", "b", "0", second): 1000 * MIB}
    assert found.values("hami_vgpu_core_allocated_ratio", "pod") == {"a": 30, "b": 10}
    assert found.values("hami_resource_quota_used", "quota_name") == {
        "nvidia.com/gpumem": 4000,
        "nvidia.com/gpucores": 40,
    }
    assert found.values("hami_resource_quota_limit", "quota_name") == {"nvidia.com/gpumem": 500000}
    assert found.value("hami_build_info") == 1
    assert {name for name in found.names if name.startswith("hami_")} == HAMI - {"hami_node_gpu_mig_instance_info"}
    assert not found.names & LEGACY


@on_uvloop
async def test_the_old_names_are_there_behind_their_flag(tmp_path: Path) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2))], tmp_path, legacy_metrics=True) as cluster:
        first, _ = await run_pods(cluster)
        found = await scrape(cluster.running)
    assert found.names >= (HAMI | LEGACY) - {"hami_node_gpu_mig_instance_info", "nodeGPUMigInstance"}
    assert found.value("GPUDeviceMemoryAllocated", nodeid="n1", deviceuuid=first) == 3000 * MIB
    assert found.value("vGPUPodsDeviceAllocated", podname="a", nodename="n1") == 3000 * MIB
    assert found.value("QuotaUsed", quotanamespace="default", quotaName="nvidia.com/gpumem") == 4000


@on_uvloop
async def test_the_services_own_metrics_count_what_happened(tmp_path: Path) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2))], tmp_path) as cluster:
        await run_pods(cluster)
        found = await scrape(cluster.running)
        certificate = (tmp_path / "tls.crt").read_bytes()
    assert found.all(f"tessera_{verb}_seconds_count" for verb in ("bind", "webhook")) == {
        "tessera_bind_seconds_count": 2,
        "tessera_webhook_seconds_count": 3,
    }
    assert found.value("tessera_filter_seconds_count") >= 3
    assert found.value("tessera_filter_seconds_bucket", le="+Inf") == found.value("tessera_filter_seconds_count")
    assert found.value("tessera_api_writes_total", verb="bind") == 2
    assert found.value("tessera_refusals_total", reason="CardInsufficientMemory") >= 1
    assert found.all(("tessera_pods_refused", "tessera_reservations", "tessera_pods_awaiting_turn")) == {
        "tessera_pods_refused": 1,
        "tessera_reservations": 0,
        "tessera_pods_awaiting_turn": 0,
    }
    assert found.all(("tessera_leader", "tessera_events_dropped_total")) == {
        "tessera_leader": 1,
        "tessera_events_dropped_total": 0,
    }
    assert set(found.all(IDLE).values()) == {0}
    assert found.values("tessera_claim_writes_total", "result") == {"allocated": 0, "released": 0}
    assert found.value("tessera_journal_bytes") > 0
    assert found.values("tessera_watch_age_seconds", "resource").keys() >= {"pods", "nodes"}
    granted = found.values("tessera_gpu_granted_seconds_total", "namespace", "device_type")
    assert granted.keys() == {("default", A100)}
    assert 0 < granted["default", A100] < found.value("tessera_gpu_idle_seconds_total", device_type=A100)
    assert found.value("tessera_certificate_expiry_timestamp_seconds") == facts_of(certificate).not_after


# -- what must stay 0


@dataclass
class Watched:
    """A scheduler whose accounts are checked all the time, with one pod on the one card of its one node."""

    plane: ControlPlane
    process: Process
    caller: Caller
    logs: Logs

    async def shows(self, **wanted: float) -> None:
        """Wait until the gauges say so."""
        for _ in range(1000):
            found = await scrape(self.process)
            if found.all(wanted) == wanted:
                return
        raise AssertionError(f"it shows {found.all(wanted)}, not {wanted}")

    @property
    def node(self) -> SimulatedNode:
        return self.plane.nodes["n1"]


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(module, "AUDIT_PERIOD", 0.001)
    with captured() as logs:
        async with (
            ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 1))]) as plane,
            running(plane, Settings(listeners=EXTENDER_ONLY)) as process,
            calling(process.listeners["extender"].address) as caller,
        ):
            pod = await plane.create_pod(gpu_pod("p", gpu=1, mem=3000))
            await caller.filter(pod, ["n1"])
            assert await caller.bind(pod, "n1") == {"Error": ""}
            yield Watched(plane, process, caller, logs)


@on_uvloop
async def test_a_card_that_shrinks_below_what_is_granted_is_counted_until_it_is_whole_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watched(monkeypatch) as world:
        await world.shows(**ZERO)
        [card] = world.node.cards
        await world.node.set_cards([replace(card, memory=2000)])
        await world.logs.until("audit")
        await world.shows(tessera_devices_overallocated=1, tessera_ledger_drift=0)
        await world.node.set_cards([card])
        await world.shows(**ZERO)
    [finding] = world.logs.of("audit")  # it is reported once, however often it is found
    assert (finding["node"], finding["card"], finding["kind"]) == ("n1", card.uuid, "overcommitted")


@on_uvloop
async def test_what_was_found_on_a_node_goes_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as world:
        [card] = world.node.cards
        await world.node.set_cards([replace(card, memory=2000)])
        await world.shows(tessera_devices_overallocated=1)
        await world.plane.client.delete(NODES.path(name="n1"))
        await until(lambda: world.process.service.ledger.node_names() == ())
        assert (await scrape(world.process)).all(ZERO) == ZERO


@on_uvloop
async def test_a_fault_of_the_accounts_shows_as_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as world:
        view = world.process.service.ledger.node("n1")
        assert view is not None
        view.cards[0].used_memory += 1
        fault = await world.logs.until("audit")
        assert fault["kind"] == "broken"
        assert (await scrape(world.process)).value("tessera_ledger_drift") > 0


@on_uvloop
async def test_events_that_were_given_up_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as world:
        world.process.service.events.dropped += 3
        for _ in range(2):
            assert (await scrape(world.process)).value("tessera_events_dropped_total") == 3


@on_uvloop
async def test_a_mig_instance_of_a_pod_is_shown_until_the_pod_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as world:
        assert "hami_node_gpu_mig_instance_info" not in (await scrape(world.process)).names
        slot = MigSlot("1g.10gb", MigPlacement(0, 1))
        instance = MigAllocation(0, 0, world.node.cards[0].uuid, slot, "MIG-1", gpu_instance=7, compute_instance=0)
        patch = {"metadata": {"annotations": {keys.MIG_ALLOCATIONS: encode_mig_allocations([instance])}}}
        await world.plane.client.patch(PODS.path("default", "p"), patch)
        await world.shows(hami_node_gpu_mig_instance_info=1)
        await world.plane.delete_pod("default", "p", grace_s=0)
        await until(lambda: not world.process.service.ledger.pods())
        assert "hami_node_gpu_mig_instance_info" not in (await scrape(world.process)).names


# -- size


@on_uvloop
async def test_five_hundred_nodes_are_streamed_while_the_service_goes_on() -> None:
    async with (
        ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 1))]) as plane,
        running(plane, Settings(listeners=EXTENDER_ONLY)) as process,
        calling(process.listeners["extender"].address) as caller,
    ):
        for number in range(500):
            name = f"large-{number}"
            process.service.ledger.observe_node(NodeFacts(name, gpu_cards(name, 8)))
        async with calling(process.listeners["metrics"].address) as prometheus:
            pieces = []
            async for piece in prometheus.stream("/metrics"):
                pieces.append(piece)
                assert await caller.get("/healthz") == (200, "")
    found = Scrape(b"".join(pieces).decode())
    assert len(pieces) > 10
    assert len(found.values("hami_gpu_memory_limit_bytes", "device_uuid")) == 500 * 8 + 1
    assert sum(found.values("hami_gpu_shared_count", "device_uuid").values()) == 0
