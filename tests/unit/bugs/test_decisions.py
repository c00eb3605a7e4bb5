"""Rules of decisions that HAMi breaks. `test_q<n>…` belongs to row Q<n> of docs/protocol.md."""

from __future__ import annotations

import json

import pytest

from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card, device_scores, node_score
from tessera.core.model.requests import Request, Weights
from tessera.vendors.base import Switches
from tessera.vendors.drafts import ContainerDraft, PodDraft
from tessera.vendors.registry import build_vendors
from tests.support.builders import PAIR_SCORES, PodBuilder, cluster, gpu_pod, node, pod, uuids, vendors


def test_q02_the_score_of_a_card_counts_the_request_whatever_the_cards_model() -> None:
    """HAMi compares the vendor's key with the model string: for real models the request counts nothing."""
    world = cluster(node().gpu("small", memory=1000).gpu("large", memory=80000))
    assert uuids(world.chosen(gpu_pod(mem=900).policy(device="binpack")).placement) == [["small"]]
    assert uuids(world.chosen(gpu_pod(mem=900).policy(device="spread")).placement) == [["large"]]


@pytest.mark.parametrize("policy", ["force", "disable"])
def test_q13_variables_go_to_containers_with_cards_once(policy: str) -> None:
    """HAMi adds them to every container, again at every re-invocation."""
    nvidia = build_vendors({"nvidia": {"resourceCountName": "gpu", "gpuCorePolicy": policy}}, Switches())["NVIDIA"]
    with_card, without = ContainerDraft(limits={"gpu": 1}), ContainerDraft()
    draft = PodDraft(containers=[with_card, without])
    for _ in range(3):
        for container in draft.containers:
            nvidia.mutate(container, draft)
    assert with_card.env == {"GPU_CORE_UTILIZATION_POLICY": policy}
    assert without.env == {}


def test_q14_a_plain_card_is_a_whole_card_and_the_user_is_told() -> None:
    """HAMi makes the request exclusive without a word."""
    draft = ContainerDraft(limits={"nvidia.com/gpu": 1}, name="main")
    told = PodDraft(containers=[draft])
    assert vendors()["NVIDIA"].mutate(draft, told) is True
    assert draft.limits["nvidia.com/gpucores"] == "100"
    assert "whole cards" in told.warnings[0]
    admitted = gpu_pod().admitted()
    assert isinstance(admitted, PodBuilder)
    world = cluster(node().gpu("G"))
    world.start(admitted)
    assert world.refused(gpu_pod("next", mem=1)) == {"n1": "1/1 CardInsufficientMemory"}


@pytest.mark.parametrize("total", [50, 200])
def test_q15_a_pod_that_asks_for_the_whole_card_has_it_alone_with_scaled_cores(total: int) -> None:
    """HAMi looks for exactly 100 cores: with core scaling an exclusive pod shares."""
    world = cluster(node().gpu("G", cores=total))
    world.start(gpu_pod("shared", mem=10))
    assert world.refused(gpu_pod(mem=10, cores=100)) == {"n1": "1/1 ExclusiveDeviceAllocateConflict"}


def test_q17_memory_and_percentage_resolve_to_one_value() -> None:
    """HAMi fits by memory and scores by percentage where both are given."""
    (request,) = gpu_pod(mem=100, percent=90).request().containers[0].requests
    device = Device("G", "NVIDIA", slots=10, memory=1000)
    plain = Request("NVIDIA", 1, memory=100)
    assert device_scores([Card(device)], request, Weights()) == device_scores([Card(device)], plain, Weights())


@pytest.mark.parametrize("policy", ["topology-aware", "topology-aware,binpack", "spread", "binpack"])
def test_q18_q19_every_numa_node_is_considered(policy: str) -> None:
    """HAMi drops what it collected at each change of NUMA node: only the last group is looked at with topology."""
    cards = node().gpus(6, numas=(0, 0, 1, 1, 2, 0))
    asking = gpu_pod(gpu=3, mem=10).numa_bound().policy(device=policy)
    assert sorted(uuids(cluster(cards).chosen(asking).placement)[0]) == ["n1-0", "n1-1", "n1-5"]


def test_q22_a_card_without_memory_is_scored_by_what_it_has() -> None:
    """HAMi scores it 0, so that neither packing nor spreading works."""
    device = Device("D", "V", slots=4, memory=0, cores=3)
    assert device_scores([Card(device, used=1)], Request("V", 1), Weights()) == pytest.approx([5.0])
    assert node_score([Card(device, used=1, used_cores=1)]) == pytest.approx(10 * (1 / 4 + 1 / 3))


def test_q24_the_seats_of_kunlun_cards_are_their_indexes() -> None:
    """HAMi takes positions in a list that is sorted by score."""
    world = cluster(node().capacity(**{"kunlunxin.com/xpu": 8}))
    asking = pod().container(limits={"kunlunxin.com/xpu": 2})
    seen = [sorted(uuids(world.place(asking.called(f"p{i}")), "kunlun")[0]) for i in range(2)]
    assert seen == [["n1-kunlun-0", "n1-kunlun-1"], ["n1-kunlun-2", "n1-kunlun-3"]]


def test_q26_an_odd_number_of_paired_chips_is_refused_with_advice() -> None:
    """HAMi leaves such a pod pending for ever where the webhook did not see it."""
    fault = pod().container(limits={"huawei.com/Ascend910C": 3}).fault()
    assert "write 1 or an even number" in fault.text


@pytest.mark.parametrize("scores", ["{", "[1]", '[{"uuid":"n1-0","score":{"n1-1":-5}}]', "9" * 100])
def test_q28_unreadable_pair_scores_cost_no_cards(scores: str) -> None:
    """HAMi drops every GPU of the node."""
    world = cluster(node().gpus(2).annotate((PAIR_SCORES, scores)))
    assert world.chosen(gpu_pod(gpu=2, mem=10).policy(device="topology-aware")).placement.node == "n1"


def test_q31_a_filter_without_candidates_is_answered() -> None:
    """HAMi dereferences nil and closes the connection."""
    assert cluster(node().gpus(1)).refused(gpu_pod(mem=1), []) == {}


def test_q33_the_same_question_has_the_same_answer_whatever_came_first() -> None:
    """HAMi walks over maps in random order: vendors, cards of several vendors, nodes of equal score."""
    dcu = ("hami.io/node-dcu-register", "D0,10,1000,100,DCU-K100,0,true:D1,10,1000,100,DCU-K100,0,true:")
    nodes = [node(name).gpus(3).annotate(dcu) for name in ("a", "b", "c")]
    limits = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 10, "hygon.com/dcucores": 1}
    asking = pod().container(gpu=2, mem=10, limits=limits).container(gpu=1, mem=5)
    first = cluster(*nodes).chosen(asking).placement
    again = cluster(*reversed(nodes)).chosen(asking, ["c", "b", "a"]).placement
    assert first == again
    assert list(first.grants) == ["DCU", "NVIDIA"]


def test_q36_numa_does_not_come_first_without_a_wish_for_it() -> None:
    """HAMi v2.4 filled the highest NUMA node when spreading and passed fuller cards by when packing."""
    world = cluster(node().gpu("g0", numa=0).gpu("g1", numa=1)).observe(gpu_pod("x").on("n1", "g1,NVIDIA,5000,0:;"))
    assert uuids(world.chosen(gpu_pod(mem=10).policy(device="spread")).placement) == [["g0"]]
    assert uuids(world.chosen(gpu_pod(mem=10).policy(device="binpack")).placement) == [["g1"]]


def test_q01_the_instance_of_a_container_behind_one_without_is_found_by_its_position() -> None:
    """HAMi looks for the MIG reservation of another container and holds the card for ever."""
    place = {"name": "1g.5gb", "memoryMB": 4864, "core": 14, "sliceCount": 1, "placements": [{"start": 0, "size": 1}]}
    world = cluster(node().gpu("M", memory=40960, mode="mig", slots=7, profiles=[place]))
    running = world.start(pod().init().container(gpu=1, mem=10))
    (reservation,) = json.loads(running.annotations["hami.io/vgpu-mig-allocations"])
    assert reservation["containerIndex"] == 1
    assert running.facts().stray_mig == ()
