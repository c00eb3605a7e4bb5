"""Who may share a card with whom, and which cards a pod accepts at all."""

from __future__ import annotations

import json

import pytest

from tests.support.builders import cluster, gpu_pod, node, pod, uuids

USE_TYPE, AVOID_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, AVOID_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
MODE = "nvidia.com/vgpu-mode"


# -- the whole card


@pytest.mark.parametrize("total", [50, 100, 200])
@pytest.mark.parametrize("asked", [100, 150, 2**31 - 1])
def test_a_pod_that_asks_for_all_cores_has_the_card_alone_whatever_its_total(total: int, asked: int) -> None:
    world = cluster(node().gpu("G", cores=total))
    alone = world.start(gpu_pod("alone", mem=1000, cores=asked))
    assert world.cards() == {"G": (1, 1000, total)}
    assert alone.annotations["hami.io/vgpu-devices-allocated"] == "G,NVIDIA,1000,100:;"
    assert world.refused(gpu_pod(mem=1000)) == {"n1": "1/1 CardComputeUnitsExhausted"}
    assert world.refused(gpu_pod(mem=1000, cores=1)) == {"n1": "1/1 CardInsufficientCore"}


@pytest.mark.parametrize("total", [50, 100, 200])
def test_a_card_in_use_is_nobodys_whole_card(total: int) -> None:
    world = cluster(node().gpu("G", cores=total))
    world.start(gpu_pod("small", mem=1000))
    assert world.refused(gpu_pod(mem=1000, cores=100)) == {"n1": "1/1 ExclusiveDeviceAllocateConflict"}


@pytest.mark.parametrize("asked", [50, 60, 99])
def test_on_a_card_of_half_the_cores_half_the_cores_are_all(asked: int) -> None:
    world = cluster(node().gpu("G", cores=50))
    world.start(gpu_pod("alone", mem=1000, cores=asked))
    assert world.cards() == {"G": (1, 1000, 50)}
    assert world.refused(gpu_pod(mem=1000)) == {"n1": "1/1 CardComputeUnitsExhausted"}


def test_on_a_card_of_double_cores_two_pods_take_ninety_nine_each() -> None:
    world = cluster(node().gpu("G", cores=200))
    for name in ("a", "b"):
        world.start(gpu_pod(name, mem=1000, cores=99))
    assert world.cards() == {"G": (2, 2000, 198)}


def test_a_card_without_cores_is_shared_by_memory_alone() -> None:
    world = cluster(node().gpu("G", cores=0))
    world.start(gpu_pod("a", mem=1000))
    world.start(gpu_pod("b", mem=1000))
    assert world.cards() == {"G": (2, 2000, 0)}
    assert world.refused(gpu_pod(mem=1000, cores=1)) == {"n1": "1/1 CardInsufficientCore"}
    assert world.refused(gpu_pod(mem=1000, cores=100)) == {"n1": "1/1 CardInsufficientCore"}


def test_pods_without_cores_share_a_card_until_its_slots_are_gone() -> None:
    world = cluster(node().gpu("G", slots=3))
    for number in range(3):
        world.start(gpu_pod(f"p{number}", mem=100))
    assert world.refused(gpu_pod(mem=100)) == {"n1": "1/1 CardTimeSlicingExhausted"}


# -- mutex


@pytest.mark.parametrize("policy", ["mutex", "numa,mutex", " mutex , binpack"])
def test_a_mutex_pod_takes_only_a_card_that_nobody_uses(policy: str) -> None:
    world = cluster(node().gpu("a").gpu("b"))
    world.start(gpu_pod("other", mem=100).annotate((USE_UUID, "b")))
    asking = gpu_pod(mem=100).policy(device=policy)
    assert uuids(world.chosen(asking).placement) == [["a"]]
    world.start(gpu_pod("another", mem=100).annotate((USE_UUID, "a")))
    assert world.refused(asking) == {"n1": "2/2 ExclusiveDeviceAllocateConflict"}


def test_a_mutex_pod_does_not_keep_others_away_afterwards() -> None:
    world = cluster(node().gpu("a"))
    world.start(gpu_pod("first", mem=100).policy(device="mutex"))
    assert world.chosen(gpu_pod(mem=100)).placement.node == "n1"


def test_two_containers_of_a_mutex_pod_take_different_cards() -> None:
    world = cluster(node().gpu("a").gpu("b"))
    two = pod().container(gpu=1, mem=10).container(gpu=1, mem=10).policy(device="mutex")
    assert uuids(world.chosen(two).placement) == [["b"], ["a"]]


# -- which cards


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (USE_TYPE, "a100", ["a100"]),
        (USE_TYPE, "A100,t4", ["a100", "t4"]),
        (USE_TYPE, " t4 , ", ["t4"]),
        (USE_TYPE, "", ["a100", "t4"]),
        (USE_TYPE, " ,,", ["a100", "t4"]),
        (USE_TYPE, "V100", []),
        (AVOID_TYPE, "a100", ["t4"]),
        (AVOID_TYPE, "nvidia", []),
        (AVOID_TYPE, "", ["a100", "t4"]),
        (USE_UUID, "t4", ["t4"]),
        (USE_UUID, " t4 ,a100", ["a100", "t4"]),
        (USE_UUID, "T4", []),
        (USE_UUID, "", ["a100", "t4"]),
        (AVOID_UUID, "t4", ["a100"]),
        (AVOID_UUID, "elsewhere", ["a100", "t4"]),
    ],
)
def test_pods_name_the_cards_that_they_want_or_do_not_want(key: str, value: str, expected: list[str]) -> None:
    world = cluster(node().gpu("a100").gpu("t4", model="NVIDIA Tesla T4"))
    asking = gpu_pod(gpu=2, mem=10).annotate((key, value))
    if len(expected) == 2:
        assert sorted(uuids(world.chosen(asking).placement)[0]) == expected
        return
    reason = "CardTypeMismatch" if "type" in key else "CardUuidMismatch"
    parts = [f"{2 - len(expected)}/2 {reason}"]
    if expected:
        parts.insert(0, "1/2 AllocatedCardsInsufficientRequest")
        assert uuids(world.chosen(gpu_pod(mem=10).annotate((key, value))).placement) == [expected]
    assert world.refused(asking) == {"n1": ", ".join(parts)}


def test_wanted_and_unwanted_lists_both_apply() -> None:
    world = cluster(node().gpu("a").gpu("b").gpu("c", model="NVIDIA Tesla T4"))
    asking = gpu_pod(gpu=2, mem=10).annotate(
        (USE_TYPE, "a100"), (AVOID_TYPE, "t4"), (USE_UUID, "a,b"), (AVOID_UUID, "b")
    )
    assert world.refused(asking) == {
        "n1": "1/3 AllocatedCardsInsufficientRequest, 1/3 CardTypeMismatch, 1/3 CardUuidMismatch"
    }


@pytest.mark.parametrize(
    ("asked", "mode", "fits"),
    [
        ("mps", "mps", True),
        ("hami-core,mps", "mps", True),
        ("hami-core", "mps", False),
        ("mig", "hami-core", False),
        ("", "hami-core", False),
        ("hami-core", "", True),
    ],
)
def test_a_pod_may_insist_on_a_mode(asked: str, mode: str, fits: bool) -> None:
    world = cluster(node().gpu("G", mode=mode))
    asking = gpu_pod(mem=10).annotate((MODE, asked))
    if fits:
        assert world.chosen(asking).placement.node == "n1"
    else:
        assert world.refused(asking) == {"n1": "1/1 CardTypeMismatch"}


def test_a_cordoned_card_keeps_its_pods_and_takes_no_more() -> None:
    world = cluster(node().gpu("a").gpu("b"))
    world.start(gpu_pod("old", mem=100).annotate((USE_UUID, "a")))
    world.add(node().gpu("a").gpu("b").cordon("a", "unknown"))
    assert world.cards()["a"] == (1, 100, 0)
    assert world.refused(gpu_pod(gpu=2, mem=10)) == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardCordoned"}


def test_only_vendors_that_know_cordons_honour_them() -> None:
    world = cluster(
        node().annotate(("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:"), ("hami.io/device-cordon", "D"))
    )
    asking = pod().container(limits={"hygon.com/dcunum": 1, "hygon.com/dcumem": 10, "hygon.com/dcucores": 1})
    assert world.chosen(asking).placement.node == "n1"


def test_a_card_that_falls_ill_keeps_its_pods_and_takes_no_more() -> None:
    world = cluster(node().gpu("a"))
    world.start(gpu_pod("old", mem=100))
    world.add(node().gpu("a", healthy=False))
    assert world.cards() == {"a": (1, 100, 0)}
    assert world.refused(gpu_pod(mem=10)) == {"n1": "1/1 CardNotHealth"}


def test_a_percentage_is_of_each_cards_own_memory_rounded_down() -> None:
    world = cluster(node().gpu("small", memory=1001).gpu("large", memory=8000))
    placement = world.chosen(gpu_pod(gpu=2, percent=50)).placement
    assert {g.uuid: g.memory for g in placement.grants["NVIDIA"][0]} == {"small": 500, "large": 4000}


def test_memory_beats_a_percentage_beside_it_in_fit_and_score() -> None:
    (request,) = gpu_pod(mem=100, percent=50).request().containers[0].requests
    assert (request.memory, request.percent, request.memory_on(8000)) == (100, 0, 100)


def test_a_vendors_rules_see_the_settings_of_the_pods_on_a_card() -> None:
    card = {"uuid": "M", "totalDevCount": 4, "totalCompute": 100, "totalVRam": 4096, "healthy": True}
    world = cluster(node().annotate(("metax-tech.com/node-gpu-devices", json.dumps([card]))))
    limits = {"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 1, "metax-tech.com/vcore": 10}
    qos = "metax-tech.com/sgpu-qos-policy"
    world.start(pod("first").container(limits=limits).annotate((qos, "fixed-share")))
    asking = pod().container(limits=limits)
    assert world.refused(asking.annotate((qos, "burst-share"))) == {"n1": "1/1 CardQosPolicyMismatch"}
    assert world.chosen(asking.annotate((qos, "fixed-share"))).placement.node == "n1"
