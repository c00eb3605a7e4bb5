"""Which MIG instance a request gets, and how instances of several containers share a card."""

from __future__ import annotations

import pytest

from tessera.core.model import mig
from tessera.core.model.devices import Device, MigPlacement, MigProfile, MigSlot
from tests.support.builders import A100_40GB, NodeBuilder, cluster, gpu_pod, mig_profile, node, pod

DEVICE_POLICY = "hami.io/gpu-scheduler-policy"


def profile(raw: dict[str, object]) -> MigProfile:
    places = tuple(MigPlacement(place["start"], place["size"]) for place in raw["placements"])  # type: ignore[attr-defined]
    return MigProfile(str(raw["name"]), raw["memoryMB"], raw["core"], raw["sliceCount"], places)  # type: ignore[arg-type]


DEVICE = Device("G", "NVIDIA", mode="mig", memory=40960, mig_profiles=tuple(profile(raw) for raw in A100_40GB))


def taken(*places: tuple[int, int]) -> list[MigSlot]:
    return [MigSlot("any", MigPlacement(start, size)) for start, size in places]


def chosen(memory: int, *places: tuple[int, int], device: Device = DEVICE) -> tuple[str, int, int] | None:
    found = mig.choose(device, taken(*places), memory)
    return None if found is None else (found[0].name, found[1].placement.start, found[1].placement.size)


@pytest.mark.parametrize(
    ("memory", "name"),
    [(0, "1g.5gb"), (4864, "1g.5gb"), (4865, "2g.10gb"), (9856, "2g.10gb"), (15000, "3g.20gb"), (40320, "7g.40gb")],
)
def test_the_smallest_profile_that_holds_the_memory_is_chosen(memory: int, name: str) -> None:
    found = mig.choose(DEVICE, [], memory)
    assert found is not None
    assert found[0].name == found[1].profile == name


def test_memory_that_no_profile_holds_has_no_instance() -> None:
    assert chosen(40321) is None


@pytest.mark.parametrize(
    ("memory", "places", "expected"),
    [
        (4000, [], ("1g.5gb", 6, 1)),
        (4000, [(6, 1)], ("1g.5gb", 5, 1)),
        (8000, [], ("2g.10gb", 0, 2)),
        (8000, [(0, 2)], ("2g.10gb", 2, 2)),
        (8000, [(1, 1)], ("2g.10gb", 2, 2)),
        (15000, [], ("3g.20gb", 4, 4)),
        (15000, [(4, 4)], ("3g.20gb", 0, 4)),
        (15000, [(6, 1)], ("3g.20gb", 0, 4)),
        (8000, [(0, 2), (2, 2), (4, 2)], None),
        (8000, [(0, 1), (2, 1), (4, 1)], None),
        (30000, [], ("7g.40gb", 0, 8)),
        (30000, [(6, 1)], None),
    ],
)
def test_places_are_taken_from_the_end_or_the_start(
    memory: int, places: list[tuple[int, int]], expected: tuple[str, int, int] | None
) -> None:
    assert chosen(memory, *places) == expected


def test_a_larger_profile_stands_in_where_the_smaller_has_no_place() -> None:
    assert chosen(8000, (0, 1), (3, 1)) == ("2g.10gb", 4, 2)
    assert chosen(8000, (0, 2), (3, 1), (5, 1)) is None
    assert chosen(4000, *((start, 1) for start in range(1, 7))) == ("1g.5gb", 0, 1)
    split = Device("G", "V", mig_profiles=(profile(mig_profile("1g.5gb", 5, 1, 1, 6)), DEVICE.mig_profiles[1]))
    assert chosen(5, (6, 1), device=split) == ("2g.10gb", 0, 2)


def test_of_profiles_with_equal_memory_the_one_with_fewer_slices_is_chosen() -> None:
    profiles = (profile(mig_profile("2g.x", 10, 29, 2, 0)), profile(mig_profile("1g.x", 10, 14, 1, 0)))
    assert chosen(10, device=Device("G", "V", mig_profiles=profiles)) == ("1g.x", 0, 1)


def test_a_card_without_profiles_has_no_instance() -> None:
    assert chosen(1, device=Device("G", "V", mode="mig")) is None


# -- pods


def mig_node(slots: int = 7) -> NodeBuilder:
    return node().gpu("M", memory=40960, mode="mig", slots=slots, profiles=A100_40GB)


def starts(annotation: str) -> list[int]:
    return [int(part.split(",")[0].split("}")[0]) for part in annotation.split('"start":')[1:]]


def test_one_container_takes_several_instances_of_one_card() -> None:
    world = cluster(mig_node())
    running = world.start(gpu_pod(gpu=3, mem=8000))
    assert starts(running.annotations["hami.io/vgpu-mig-allocations"]) == [0, 2, 4]
    assert world.cards() == {"M": (3, 3 * 9856, 3 * 29)}


def test_more_instances_than_the_card_has_places_are_refused() -> None:
    assert cluster(mig_node()).refused(gpu_pod(gpu=4, mem=8000)) == {
        "n1": "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest"
    }


def test_a_huge_number_of_instances_is_refused_at_once() -> None:
    text = cluster(mig_node()).refused(gpu_pod(gpu=2**31 - 1, mem=8000))["n1"]
    assert text == "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest"


def test_slots_end_before_places_do() -> None:
    text = cluster(mig_node(slots=2)).refused(gpu_pod(gpu=3, mem=8000))["n1"]
    assert text == "1/1 CardTimeSlicingExhausted, 2/1 AllocatedCardsInsufficientRequest"


def test_instances_of_init_containers_stay_for_the_life_of_the_pod() -> None:
    world = cluster(mig_node())
    three = pod().init(gpu=1, mem=8000).init(gpu=1, mem=8000).container(gpu=1, mem=8000)
    running = world.start(three)
    assert starts(running.annotations["hami.io/vgpu-mig-allocations"]) == [0, 2, 4]
    world.observe(running.after_init("init0", "init1"))
    assert world.cards() == {"M": (3, 3 * 9856, 3 * 29)}
    assert world.refused(gpu_pod("next", mem=8000)) == {"n1": "1/1 CardMigTopologyInfeasible"}


def test_a_pod_with_one_instance_too_many_over_all_its_containers_is_refused() -> None:
    four = pod().init(gpu=2, mem=8000).container(gpu=2, mem=8000)
    assert cluster(mig_node()).refused(four) == {
        "n1": "1/1 AllocatedCardsInsufficientRequest, 1/1 CardMigTopologyInfeasible"
    }


def test_instances_of_other_pods_are_respected_and_freed() -> None:
    world = cluster(mig_node())
    first = world.start(gpu_pod("first", mem=20000))
    second = world.start(gpu_pod("second", mem=4000))
    places = [p.annotations["hami.io/vgpu-mig-allocations"] for p in (first, second)]
    assert [starts(text) for text in places] == [[4], [3]]
    assert world.refused(gpu_pod("third", mem=16000)) == {"n1": "1/1 CardMigTopologyInfeasible"}
    world.observe(second.ended())
    assert starts(world.start(gpu_pod("third", mem=16000)).annotations["hami.io/vgpu-mig-allocations"]) == [0]


def test_a_mode_annotation_keeps_a_pod_from_mig_cards() -> None:
    world = cluster(mig_node().gpu("plain"))
    asking = gpu_pod(gpu=2, mem=1000).annotate(("nvidia.com/vgpu-mode", "hami-core"))
    assert world.refused(asking) == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTypeMismatch"}


def test_one_container_gets_no_mix_of_shares_and_instances() -> None:
    world = cluster(mig_node().gpu("plain"))
    assert world.refused(gpu_pod(gpu=4, mem=8000)) == {
        "n1": "1/2 CardMigTopologyInfeasible, 4/2 AllocatedCardsInsufficientRequest"
    }
    world.start(gpu_pod(gpu=3, mem=8000))
    assert world.cards() == {"M": (3, 3 * 9856, 3 * 29), "plain": (0, 0, 0)}


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology-aware"])
@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpumem": 10**6}])
def test_the_cards_of_one_container_are_shared_in_one_mode(policy: str, limits: dict[str, int]) -> None:
    """Whatever is preferred, and also where quotas are counted."""
    world = cluster(
        node()
        .gpu("whole", mode="none", slots=1)
        .gpu("mps", mode="mps")
        .gpu("a", mode="hami-core")
        .gpu("b", mode="hami-core")
    )
    if limits:
        world.quota(hard=limits)
    asking = gpu_pod(gpu=2, mem=8000).annotate((DEVICE_POLICY, policy))
    assert {grant.uuid for grant in world.chosen(asking).placement.grants["NVIDIA"][0]} == {"a", "b"}
    assert world.refused(gpu_pod(gpu=3, mem=8000).annotate((DEVICE_POLICY, policy))) == {
        "n1": "4/4 AllocatedCardsInsufficientRequest"
    }
