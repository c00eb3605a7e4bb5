"""What a scrape shows: golden case 35, every name and label, and pods that cannot be shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.monitor.container_dirs import Owner
from tessera.monitor.device_usage import CardUtilization
from tessera.monitor.metrics import MonitorMetrics, ScrapeView, UsedTime
from tessera.monitor.pods import Cards, SeenPod
from tessera.monitor.regions import Region
from tessera.services.exposition import Registry
from tessera.wire.objects import Workload
from tests.unit.monitor.builders import GPU_A, GPU_B, Slot, good, region

NOW = 1_700_000_000
POD = SeenPod("uid-a", "team", "job", ("prepare", "main"))
MAIN = Owner("uid-a", "main")
IN_MAIN = {"namespace": "team", "pod": "job", "container": "main", "zone": "vGPU"}
LEGACY_IN_MAIN = {"podnamespace": "team", "podname": "job", "ctrname": "main", "zone": "vGPU"}
CARD = CardUtilization(0, GPU_A, "NVIDIA A100", 500, 70, 30)
MIG = (
    '[{"containerIndex":1,"deviceIndex":0,"gpuUUID":"GPU-x","profile":"1g.10gb","placement":{"start":0,"size":1},'
    '"migUUID":"MIG-y","gpuInstanceID":7,"computeInstanceID":0}'
)
PENDING = '{"containerIndex":0,"gpuUUID":"GPU-x","profile":"1g.10gb","placement":{"start":1,"size":1}}'

Labels = dict[str, str]


def shown(seen: ScrapeView, *, legacy: bool = False) -> dict[str, list[tuple[Labels, float]]]:
    registry = Registry()
    registry.register(MonitorMetrics(lambda: seen, legacy=legacy).collect)
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(registry.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def seen(
    regions: dict[Owner, Region] | None = None,
    *,
    pods: Sequence[SeenPod] = (POD,),
    cards: Sequence[CardUtilization] = (),
) -> ScrapeView:
    return ScrapeView(node="n1", now=NOW + 0.9, pods=pods, regions=regions or {}, cards=cards)


USED = good(
    region(
        uuids=(GPU_A, GPU_B),
        limits=(3000, 2**64 - 1),
        slots=[Slot({0: (1, 2, 3, 10, 40)})],
        last_kernel_time=NOW - 60,
    )
)
FIRST = {"vdevice_index": "0", "device_uuid": GPU_A}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hami_vgpu_memory_used_bytes", 10),
        ("hami_vgpu_memory_limit_bytes", 3000),
        ("hami_container_device_memory_bytes", 10),
        ("hami_container_device_utilization_ratio", 40),
        ("hami_vgpu_memory_context_bytes", 1),
        ("hami_vgpu_memory_module_bytes", 2),
        ("hami_vgpu_memory_buffer_bytes", 3),
        ("hami_container_last_kernel_elapsed_seconds", 60),
    ],
)
def test_every_device_of_a_container_has_its_series(name: str, value: float) -> None:
    first, second = shown(seen({MAIN: USED}))[name]
    assert first == ({**IN_MAIN, **FIRST}, value)
    assert second[0] == {**IN_MAIN, "vdevice_index": "1", "device_uuid": GPU_B}


@pytest.mark.parametrize(
    ("last", "expected"), [(NOW - 60, [60]), (0, []), (-5, []), (NOW + 100, [0])], ids=["60 s", "none", "bad", "ahead"]
)
def test_case_35_the_time_since_the_last_kernel_is_there_where_there_was_one(last: int, expected: list[float]) -> None:
    found = shown(seen({MAIN: good(region(last_kernel_time=last))}))
    assert [value for _, value in found.get("hami_container_last_kernel_elapsed_seconds", [])] == expected
    assert found["hami_vgpu_memory_used_bytes"]


def test_a_region_of_the_oldest_layout_has_no_time_of_the_last_kernel() -> None:
    found = shown(seen({MAIN: good(region("v0"))}), legacy=True)
    assert "hami_container_last_kernel_elapsed_seconds" not in found
    assert "Device_last_kernel_of_container" not in found


def test_bug_12_init_containers_and_pods_without_labels_are_shown() -> None:
    found = shown(seen({Owner("uid-a", "prepare"): USED}))
    assert {labels["container"] for labels, _ in found["hami_vgpu_memory_used_bytes"]} == {"prepare"}


def test_regions_of_containers_that_no_pod_has_are_not_shown() -> None:
    found = shown(seen({Owner("uid-x", "main"): USED, Owner("uid-a", "other"): USED}))
    assert list(found) == ["hami_build_info"]


def test_a_device_whose_uuid_cannot_be_shown_has_no_series_and_its_neighbour_has_all() -> None:
    found = shown(seen({MAIN: good(region(uuids=(b"\xff", GPU_B)))}), legacy=True)
    for name in ("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"):
        assert len(found[name]) == 1


def test_cards_are_shown_with_the_word_in_front_of_their_name() -> None:
    found = shown(seen(cards=[CARD, CardUtilization(1, GPU_B, "Tesla V100", None, 5, None)]))
    first = {"device_index": "0", "device_uuid": GPU_A, "device_type": "NVIDIA-NVIDIA A100", "zone": "vGPU"}
    assert found["hami_host_gpu_memory_used_bytes"] == [({"node": "n1", **first}, 500)]
    assert found["hami_host_gpu_utilization_ratio"][0] == ({"node": "n1", **first}, 70)
    assert found["hami_host_gpu_utilization_ratio"][1][1] == 5
    assert found["hami_host_gpu_memory_controller_utilization_ratio"] == [(first, 30)]


def test_the_build_is_shown_without_a_zone() -> None:
    ((labels, value),) = shown(seen())["hami_build_info"]
    assert set(labels) == {"version", "revision", "build_date", "go_version", "compiler", "platform"}
    assert value == 1


def test_mig_instances_are_shown_when_they_exist() -> None:
    pod = SeenPod("uid-a", "team", "job", ("prepare", "main"), mig=f"{MIG},{PENDING}]")
    found = shown(seen(pods=[pod]), legacy=True)
    device = {"vdevice_index": "0", "device_uuid": "GPU-x"}
    identity = {"mig_uuid": "MIG-y", "profile": "1g.10gb", "gpu_instance_id": "7", "compute_instance_id": "0"}
    assert found["hami_mig_device_info"] == [({**IN_MAIN, **device, **identity}, 1)]
    legacy = {"vdeviceid": "0", "deviceuuid": "GPU-x", "instanceid": "7"}
    assert found["MigInfo"] == [({**LEGACY_IN_MAIN, **legacy}, 1)]


@pytest.mark.parametrize("text", ["[", "nonsense", f"{MIG}]".replace('"containerIndex":1', '"containerIndex":9')])
def test_a_bad_mig_annotation_costs_its_pod_the_series_and_nobody_else(text: str) -> None:
    bad, other = SeenPod("uid-b", "team", "bad", ("main",), mig=text), SeenPod("uid-a", "team", "job", ("a", "main"))
    found = shown(seen({MAIN: USED}, pods=[bad, other]), legacy=True)
    assert "hami_mig_device_info" not in found
    assert found["hami_vgpu_memory_used_bytes"]


def test_legacy_names_come_only_when_they_are_asked_for() -> None:
    everything = seen({MAIN: USED}, cards=[CARD])
    assert all(name.startswith("hami_") for name in shown(everything))
    found = shown(everything, legacy=True)
    device = {**LEGACY_IN_MAIN, "vdeviceid": "0", "deviceuuid": GPU_A}
    card = {"nodeid": "n1", "deviceidx": "0", "deviceuuid": GPU_A, "devicetype": "NVIDIA-NVIDIA A100", "zone": "vGPU"}
    kinds = {"context": "1", "module": "2", "data": "3", "offset": "4"}
    assert {name: samples[0] for name, samples in found.items() if not name.startswith("hami_")} == {
        "HostGPUMemoryUsage": (card, 500),
        "HostCoreUtilization": (card, 70),
        "vGPU_device_memory_usage_in_bytes": (device, 10),
        "vGPU_device_memory_limit_in_bytes": (device, 3000),
        "Device_utilization_desc_of_container": (device, 40),
        "Device_last_kernel_of_container": (device, 60),
        "Device_memory_desc_of_container": ({**device, **kinds}, 10),
    }


TIMED = CardUtilization(0, GPU_A, "A100")
WEB = Workload("shop", "Deployment", "web")


def pod(name: str, *cards: str | None) -> SeenPod:
    """With one container; None: its cards are not known."""
    given = None if None in cards else (Cards(filter(None, cards)),)
    return SeenPod(name, "shop", name, ("main",), cards=given, workload=WEB)


def using(*percents: int) -> Region:
    """Of GPU_A, by one process each."""
    return good(region(uuids=(GPU_A,), slots=[Slot({0: (0, 0, 0, 0, percent)}) for percent in percents]))


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.time = UsedTime("n1", lambda: self.now)
        self.time.on_cards([TIMED])
        self.registry = Registry()
        self.registry.register(self.time.collect)

    def round(self, *shown: tuple[SeenPod, Region], seconds: float = 10.0) -> None:
        pods, regions = [each for each, _ in shown], {Owner(each.uid, "main"): seen for each, seen in shown}
        self.time.on_round(pods, regions, {owner: cards for each in pods for owner, cards in each.granted.items()})
        self.now += seconds

    def text(self) -> str:
        return self.registry.render().decode()

    def seconds(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.text())
        return {family.name: sum(s.value for s in family.samples) for family in families if family.samples}


def together(used: float, unused: float) -> dict[str, float]:
    return {"tessera_gpu_used_seconds": used, "tessera_gpu_unused_seconds": unused}


def test_use_and_the_rest_add_up_to_the_time_of_the_card() -> None:
    world = World()
    world.round((pod("a", GPU_A), using(20, 10)), (pod("b", GPU_A), using(40)))
    assert world.seconds() == pytest.approx(together(7.0, 3.0))
    world.round((pod("a", GPU_A), using(20, 10)))
    assert world.seconds() == pytest.approx(together(10.0, 10.0))
    world.round()
    assert world.seconds() == pytest.approx(together(10.0, 20.0))


@pytest.mark.parametrize(
    ("given", "used"), [(GPU_A, 10.0), (GPU_B, 0.0), (None, 10.0)], ids=["its card", "another one's", "not known"]
)
def test_a_container_counts_as_one_card_at_most_and_only_on_its_own(given: str | None, used: float) -> None:
    world = World()
    world.round((pod("a", given), using(2**63)))
    assert world.seconds().get("tessera_gpu_used_seconds", 0.0) == used


def test_cards_that_the_driver_does_not_show_do_not_count() -> None:
    world = World()
    world.round((pod("a", GPU_A), using(50)))
    world.time.on_cards([])
    world.round((pod("a", GPU_A), using(50)))
    assert world.seconds() == pytest.approx(together(5.0, 5.0))


def test_the_series_name_node_workload_and_the_model_as_registered() -> None:
    world = World()
    world.round((pod("a", GPU_A), using(50)))
    card = 'device_type="NVIDIA-A100"'
    labels = f'{card},namespace="shop",node="n1",owner_kind="Deployment",owner_name="web"'
    text = "".join(sorted(world.text().splitlines(keepends=True)))
    shown = [",".join(sorted(line.split("{")[1].split("}")[0].split(","))) for line in text.splitlines() if "{" in line]
    assert sorted(shown) == sorted([labels, f'{card},node="n1"'])
