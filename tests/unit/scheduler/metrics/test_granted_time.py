from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.core.model.devices import Device
from tessera.core.model.grants import Use
from tessera.scheduler.metrics.granted_time import GrantedTime, TenureTime, share_of
from tests.support.builders import A100, Cluster, PodBuilder, cluster, gpu_pod, node, vendors


class World:
    """One node with two cards of 10,000 MiB, and its counters."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_held = True
        self.time = TenureTime(lambda: self.now, lambda: self.is_held)
        self.cluster: Cluster = cluster(node("n1").gpus(2, memory=10_000))
        self.counted = GrantedTime(self.cluster.ledger, self.time)
        self.counted.on_cards("n1")

    def observe(self, pod: PodBuilder) -> None:
        self.cluster.observe(pod)
        api = pod.api()
        self.counted.on_holder(api.metadata.uid, api.workload)

    async def text(self) -> str:
        return b"".join([piece async for piece in self.counted.stream()]).decode()

    async def granted(self) -> dict[str, float]:
        families = text_string_to_metric_families(await self.text())
        found = [sample for family in families for sample in family.samples]
        return {sample.labels.get("namespace", "idle"): sample.value for sample in found}


@pytest.mark.parametrize(
    ("use", "share"),
    [
        (Use(slots=1, memory=2_500, cores=10), 0.25),
        (Use(slots=1, memory=1_000, cores=60), 0.6),
        (Use(slots=1, memory=5_000), 0.5),
        (Use(slots=1), 0.1),
        (Use(slots=1, memory=20_000), 1.0),
        (Use(), 0.0),
    ],
)
def test_a_share_is_the_larger_of_memory_and_cores(use: Use, share: float) -> None:
    assert share_of(use, Device("GPU-0", "NVIDIA", slots=10, memory=10_000)) == pytest.approx(share)


def test_core_ids_are_counted() -> None:
    [masks] = [rules for rules in vendors().values() if rules.core_masks]
    device = Device("0", masks.key, cores=0b11)
    assert share_of(Use(slots=1, cores=0b10), device, masks) == 0.5


async def test_a_pod_counts_by_its_larger_share_until_it_is_gone() -> None:
    world = World()
    world.observe(gpu_pod("p").on("n1", "n1-0,NVIDIA,3000,10:;"))
    world.now = 10.0
    assert await world.granted() == pytest.approx({"default": 3.0, "idle": 17.0})
    world.cluster.ledger.release("uid-p")
    world.counted.on_holder("uid-p", None)
    world.now = 20.0
    assert await world.granted() == pytest.approx({"default": 3.0, "idle": 37.0})


async def test_a_pod_counts_on_the_cards_that_its_node_registers_later_or_again() -> None:
    world = World()
    world.observe(gpu_pod("p").on("n2", "n2-0,NVIDIA,5000,10:;"))
    world.now = 10.0
    world.cluster.add(node("n2").gpus(1, memory=10_000))
    world.counted.on_cards("n2")
    world.now = 20.0
    assert (await world.granted())["default"] == pytest.approx(5.0)
    world.cluster.add(node("n2").gpus(1, memory=20_000))
    world.counted.on_cards("n2")
    world.now = 30.0
    assert (await world.granted())["default"] == pytest.approx(7.5)


async def test_a_pod_that_the_api_shows_elsewhere_counts_there_alone() -> None:
    world = World()
    world.cluster.add(node("n2").gpus(1, memory=10_000))
    world.counted.on_cards("n2")
    world.observe(gpu_pod("p").on("n1", "n1-0,NVIDIA,5000,10:;"))
    world.observe(gpu_pod("p").on("n2", "n2-0,NVIDIA,2500,10:;"))
    world.now = 10.0
    assert await world.granted() == pytest.approx({"default": 2.5, "idle": 27.5})


async def test_only_a_replica_that_decides_counts() -> None:
    world = World()
    world.observe(gpu_pod("p").on("n1", "n1-0,NVIDIA,5000,10:;"))
    world.now = 10.0
    assert await world.granted() == pytest.approx({"default": 5.0, "idle": 15.0})
    world.is_held, world.now = False, 100.0
    assert await world.granted() == pytest.approx({"default": 5.0, "idle": 15.0})
    world.is_held, world.now = True, 200.0
    world.time.begin()
    world.now = 210.0
    assert await world.granted() == pytest.approx({"default": 10.0, "idle": 30.0})


async def test_a_process_that_was_frozen_does_not_count_the_time_of_its_successor() -> None:
    world = World()
    world.observe(gpu_pod("p").on("n1", "n1-0,NVIDIA,5000,10:;"))
    world.now = 10.0
    await world.granted()
    world.now, world.is_held = 600.0, False
    world.cluster.ledger.release("uid-p")
    world.counted.on_holder("uid-p", None)
    assert await world.granted() == pytest.approx({"default": 5.0, "idle": 15.0})


async def test_the_series_are_counters_and_name_workload_and_model() -> None:
    world = World()
    world.observe(gpu_pod("p").on("n1", "n1-0,NVIDIA,5000,10:;"))
    world.now = 2.0
    text = await world.text()
    labels = f'namespace="default",owner_kind="",owner_name="",device_type="{A100}"'
    assert f"\ntessera_gpu_granted_seconds_total{{{labels}}} 1.0\n" in text
    assert f'\ntessera_gpu_idle_seconds_total{{device_type="{A100}"}} 3.0\n' in text
    assert text.count(" counter\n") == 2
