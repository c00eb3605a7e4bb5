from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Role
from tessera.scheduler.metrics.exposition import Exposition, MigInstances
from tests.support.builders import A100, A100_40GB, Cluster, cluster, gpu_pod, node, pod
from tests.support.metric_samples import samples, shown

MIB = 2**20


def busy() -> Cluster:
    """One node with two cards, and one pod of 3000 MiB and 30 % on the first one."""
    world = cluster(node("n1").gpus(2, memory=10_000))
    world.observe(gpu_pod("p").on("n1", "n1-0,NVIDIA,3000,30:;"))
    return world


CARD = {"node": "n1", "device_uuid": "n1-0", "device_index": "0", "zone": "vGPU"}
TYPED = CARD | {"device_type": A100}
SLICE = {
    "namespace": "default",
    "node": "n1",
    "pod": "p",
    "container_index": "0",
    "device_uuid": "n1-0",
    "zone": "vGPU",
}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("hami_gpu_memory_limit_bytes", TYPED, 10_000 * MIB),
        ("hami_gpu_core_limit_ratio", TYPED, 100),
        ("hami_gpu_memory_allocated_bytes", TYPED | {"device_cores": "100"}, 3000 * MIB),
        ("hami_gpu_shared_count", TYPED, 1),
        ("hami_gpu_core_allocated_ratio", TYPED, 30),
        ("hami_node_gpu_overview", TYPED | {"device_cores": "100", "device_memory_limit": "10000"}, 3000 * MIB),
        ("hami_node_gpu_memory_allocated_ratio", TYPED, 0.3),
        ("hami_vgpu_memory_allocated_bytes", SLICE, 3000 * MIB),
        ("hami_vgpu_core_allocated_ratio", SLICE, 30),
    ],
)
async def test_a_card_and_its_slices_are_shown_under_the_names_of_hami(
    name: str, labels: dict[str, str], value: float
) -> None:
    first = next(one for one in await samples(Exposition(busy().ledger)) if one.name == name)
    assert (first.labels, first.value) == (labels, value)


OLD = {"nodeid": "n1", "deviceuuid": "n1-0", "deviceidx": "0", "zone": "vGPU"}
OLD_TYPED = OLD | {"devicetype": A100}
OLD_SLICE = {
    "podnamespace": "default",
    "nodename": "n1",
    "podname": "p",
    "containeridx": "0",
    "deviceuuid": "n1-0",
    "zone": "vGPU",
}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("GPUDeviceMemoryLimit", OLD_TYPED, 10_000 * MIB),
        ("GPUDeviceCoreLimit", OLD_TYPED, 100),
        ("GPUDeviceMemoryAllocated", OLD_TYPED | {"devicecores": "100"}, 3000 * MIB),
        ("GPUDeviceSharedNum", OLD_TYPED, 1),
        ("GPUDeviceCoreAllocated", OLD_TYPED, 30),
        (
            "nodeGPUOverview",
            OLD_TYPED | {"devicecores": "100", "sharedcontainers": "1", "devicememorylimit": "10000"},
            3000 * MIB,
        ),
        ("nodeGPUMemoryPercentage", OLD, 0.3),
        ("vGPUMemoryAllocated", OLD_SLICE, 3000 * MIB),
        ("vGPUCoreAllocated", OLD_SLICE, 30),
        ("vGPUPodsDeviceAllocated", OLD_SLICE | {"deviceusedcore": "30"}, 3000 * MIB),
        ("vGPUMemoryPercentage", OLD_SLICE, 0.3),
        ("vGPUCorePercentage", OLD_SLICE, 30),
    ],
)
async def test_the_old_names_are_shown_once_each_and_only_on_demand(
    name: str, labels: dict[str, str], value: float
) -> None:
    ledger = busy().ledger
    found = [one for one in await samples(Exposition(ledger, legacy=True)) if one.name == name]
    assert (found[0].labels, found[0].value) == (labels, value)
    assert len({json.dumps(one.labels, sort_keys=True) for one in found}) == len(found) <= 2
    assert name not in {one.name for one in await samples(Exposition(ledger))}


async def test_lines_of_a_family_stand_together_behind_one_header() -> None:
    world = cluster(node("n1").gpus(2), node("n2").gpus(1)).observe(gpu_pod("p").on("n2", "n2-0,NVIDIA,1,1:;"))
    world.quota(memory=5)
    lines = (await Exposition(world.ledger, legacy=True).render()).decode().splitlines()
    headers = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(headers) == len(set(headers))
    current = ""
    for line in lines:
        if line.startswith("# HELP"):
            current = line.split()[2]
        elif line.startswith("# TYPE"):
            assert line == f"# TYPE {current} gauge"
        else:
            assert line.partition("{")[0] == current


async def test_an_empty_cluster_has_no_series_and_no_headers() -> None:
    assert await Exposition(cluster().ledger).render() == b""


async def test_label_values_are_escaped() -> None:
    world = cluster()
    strange = 'a"b\\c\nd'
    world.ledger.observe_node(NodeFacts(strange, (Device("u\ud800", "NVIDIA", memory=10, model=strange),)))
    assert await shown(world, "hami_gpu_shared_count", "node", "device_type", "device_uuid") == {
        (strange, strange, "u?"): 0
    }


async def test_a_card_without_memory_has_no_memory_ratio() -> None:
    world = cluster()
    world.ledger.observe_node(NodeFacts("n1", (Device("u", "NVIDIA"),)))
    world.ledger.observe_pod(_pod((Grant("u", "NVIDIA", 10, 10),)))
    assert await shown(world, "hami_node_gpu_memory_allocated_ratio", "node") == {}
    assert await shown(world, "nodeGPUMemoryPercentage", "nodeid", legacy=True) == {}
    assert await shown(world, "vGPUMemoryPercentage", "podname", legacy=True) == {}


def _pod(*containers: tuple[Grant, ...], vendor: str = "NVIDIA", uid: str = "u", **other: Any) -> PodFacts:
    spans = other.pop("spans", tuple(Span(Role.APP) for _ in containers))
    return PodFacts(
        uid=uid, namespace="default", name="p", node="n1", spans=spans, grants={vendor: containers}, **other
    )


@pytest.mark.parametrize(
    ("total", "granted", "limit", "use"), [(64, 16, 100, 25), (60, 1, 100, 2), (60, 60, 100, 100), (0, 5, 0, 0)]
)
async def test_compute_units_of_amd_are_shown_as_per_cent_rounded_up(
    total: int, granted: int, limit: float, use: float
) -> None:
    world = cluster()
    world.ledger.observe_node(NodeFacts("n1", (Device("a0", "AMD", cores=total, memory=100, slots=4),)))
    world.ledger.observe_pod(_pod((Grant("a0", "AMD", 10, granted),), vendor="AMD"))
    assert await shown(world, "hami_gpu_core_limit_ratio", "device_uuid") == {"a0": limit}
    assert await shown(world, "hami_gpu_core_allocated_ratio", "device_uuid") == {"a0": use}
    assert await shown(world, "hami_vgpu_core_allocated_ratio", "device_uuid") == {"a0": use}
    assert await shown(world, "vGPUCoreAllocated", "deviceuuid", legacy=True) == {"a0": granted}


async def test_containers_are_numbered_by_their_position_with_init_containers_first() -> None:
    world = cluster(node("n1").gpus(2))
    built = pod("p").init().container().container(gpu=1).container().container(gpu=1)
    world.observe(built.on("n1", ";;n1-0,NVIDIA,100,1:;;n1-1,NVIDIA,200,2:;"))
    assert await shown(world, "hami_vgpu_memory_allocated_bytes", "container_index", "device_uuid") == {
        ("2", "n1-0"): 100 * MIB,
        ("4", "n1-1"): 200 * MIB,
    }


async def test_an_init_container_that_has_ended_holds_nothing_but_its_mig_instance() -> None:
    world = cluster(node("n1").gpus(1))
    built = pod("p").init(gpu=1).container(gpu=1)
    world.observe(built.on("n1", "n1-0,NVIDIA,100,1:;n1-0,NVIDIA,200,2:;"))
    exposition = Exposition(world.ledger)
    family = ("hami_vgpu_memory_allocated_bytes", "container_index")
    assert await shown(exposition, *family) == {"0": 100 * MIB, "1": 200 * MIB}
    world.observe(built.on("n1", "n1-0,NVIDIA,100,1:;n1-0,NVIDIA,200,2:;").after_init("init0"))
    assert await shown(exposition, *family) == {"1": 200 * MIB}


async def test_several_grants_of_a_container_on_one_card_and_pods_of_one_name_are_one_series() -> None:
    world = cluster(node("n1").gpus(1))
    grant = Grant("n1-0", "NVIDIA", 100, 5)
    world.ledger.observe_pod(_pod((grant, grant)))
    world.ledger.observe_pod(_pod((grant,), uid="other"))
    assert await shown(world, "hami_vgpu_memory_allocated_bytes", "container_index") == {"0": 300 * MIB}
    assert await shown(world, "hami_vgpu_core_allocated_ratio", "container_index") == {"0": 15}


async def test_grants_beyond_the_known_containers_are_shown_too() -> None:
    world = cluster(node("n1").gpus(1))
    world.ledger.observe_pod(_pod((Grant("n1-0", "NVIDIA", 100, 5),), spans=()))
    assert await shown(world, "hami_vgpu_memory_allocated_bytes", "container_index") == {"0": 100 * MIB}


async def test_a_slice_is_shown_while_its_node_has_the_card() -> None:
    world = cluster(node("n1").gpus(1))
    exposition = Exposition(world.ledger)
    family = ("hami_vgpu_core_allocated_ratio", "device_uuid")
    world.observe(gpu_pod("p").on("n1", "another,NVIDIA,100,7:;"))
    assert await shown(exposition, *family) == {}
    world.add(node("n1").gpu("another"))
    assert await shown(exposition, *family) == {"another": 7}


# -- MIG

MIG_TEXT = (
    '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"n1-0","profile":"1g.5gb","placement":{"start":2,"size":1}%s}]'
)
RUNTIME = ',"migUUID":"MIG-7","gpuInstanceID":9,"computeInstanceID":0'


async def test_a_mig_instance_is_shown_once_the_agent_has_named_it() -> None:
    world = cluster(node("n1").gpus(1, mode="mig", profiles=A100_40GB))
    exposition = Exposition(world.ledger, legacy=True)
    instances = exposition.instances
    instances.put("u", node="n1", text=MIG_TEXT % "")
    name = "hami_node_gpu_mig_instance_info"
    assert await shown(exposition, name, "mig_uuid") == {}
    instances.put("u", node="n1", text=MIG_TEXT % RUNTIME)
    found = [one for one in await samples(exposition) if one.name == name]
    assert [(one.labels, one.value) for one in found] == [
        (
            CARD
            | {
                "mig_uuid": "MIG-7",
                "profile": "1g.5gb",
                "gpu_instance_id": "9",
                "compute_instance_id": "0",
                "placement_start": "2",
                "placement_size": "1",
            },
            1,
        )
    ]
    assert await shown(exposition, "nodeGPUMigInstance", "migname") == {"1g.5gb-9": 1}
    instances.drop("u")
    assert await shown(exposition, name, "mig_uuid") == {}


def test_mig_instances_of_pods_come_and_go() -> None:
    changed: list[str] = []
    instances = MigInstances(changed.append)
    for uid in ("b", "a"):
        instances.put(uid, node="n1", text=MIG_TEXT % RUNTIME)
    instances.put("a", node="n1", text=MIG_TEXT % RUNTIME)
    instances.put("c", node="n1", text="")
    instances.put("d", node="n1", text="not JSON")
    instances.drop("unknown")
    assert (len(instances.on("n1")), changed) == (2, ["n1", "n1"])
    instances.put("a", node="n1", text="")
    instances.drop("b")
    instances.drop("d")
    assert (instances.on("n1"), changed) == ([], ["n1"] * 4)


async def test_mig_instances_on_unknown_nodes_and_cards_are_not_shown() -> None:
    world = cluster(node("n1").gpu("other"))
    exposition = Exposition(world.ledger)
    instances = exposition.instances
    instances.put("u", node="n1", text=MIG_TEXT % RUNTIME)
    instances.put("v", node="n2", text=MIG_TEXT % RUNTIME)
    assert await shown(exposition, "hami_node_gpu_mig_instance_info", "mig_uuid") == {}


# -- quotas


async def test_quota_use_is_in_the_unit_of_its_limit() -> None:
    world = cluster()
    rules = world.ledger.rules
    scaled = next(one for one in rules.values() if one.quota_factor > 1 and one.quota_memory)
    device = Device("d0", scaled.key, memory=10**6, slots=10)
    world.ledger.observe_node(NodeFacts("n1", (device,)))
    grant = Grant("d0", scaled.key, 3 * scaled.quota_factor, 5)
    world.ledger.observe_pod(_pod((grant,), vendor=scaled.key))
    hard: dict[str, Any] = {f"limits.{scaled.quota_memory}": 4}
    world.quota(**hard)
    assert await shown(world, "hami_resource_quota_used", "namespace", "quota_name", "limit") == {
        ("default", scaled.quota_memory, "4"): 3
    } | ({("default", scaled.quota_cores, ""): 5} if scaled.quota_cores else {})
    odd = Grant("d0", scaled.key, scaled.quota_factor // 2, 0)
    world.ledger.observe_pod(_pod((grant,), (odd,), vendor=scaled.key))
    used = await shown(world, "hami_resource_quota_used", "quota_name")
    assert used[scaled.quota_memory] == 3 + (scaled.quota_factor // 2) / scaled.quota_factor


async def test_quotas_are_shown_with_their_strictest_limit_and_only_where_there_is_one() -> None:
    world = busy().quota("a", memory=9000, cores=0).quota("b", memory=5000)
    assert await shown(world, "hami_resource_quota_limit", "quota_name") == {
        "nvidia.com/gpumem": 5000,
        "nvidia.com/gpucores": 0,
    }
    assert await shown(world, "hami_resource_quota_used", "quota_name", "limit") == {
        ("nvidia.com/gpumem", "5000"): 3000,
        ("nvidia.com/gpucores", "0"): 30,
    }
    assert await shown(world, "QuotaUsed", "quotanamespace", "quotaName", "limit", legacy=True) == {
        ("default", "nvidia.com/gpumem", "5000"): 3000,
        ("default", "nvidia.com/gpucores", "0"): 30,
    }


async def test_use_without_a_limit_is_shown_with_an_empty_one() -> None:
    world = busy()
    assert await shown(world, "hami_resource_quota_used", "quota_name", "limit") == {
        ("nvidia.com/gpumem", ""): 3000,
        ("nvidia.com/gpucores", ""): 30,
    }
    assert await shown(world, "hami_resource_quota_limit", "quota_name") == {}


async def test_use_of_an_unknown_vendor_counts_in_no_quota() -> None:
    world = cluster(node("n1").gpus(1))
    world.ledger.observe_pod(_pod((Grant("x", "Strange", 10, 10),), vendor="Strange"))
    assert await shown(world, "hami_resource_quota_used", "quota_name") == {}
