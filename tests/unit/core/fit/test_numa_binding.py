"""Pods that want all cards of a container on one NUMA node."""

from __future__ import annotations

import pytest

from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tests.support.builders import NodeBuilder, cluster, gpu_pod, node, pod, uuids


def numa_nodes(*sizes: int, slots: int = 10) -> NodeBuilder:
    """Cards by NUMA node: `numa_nodes(2, 3)` has n1-0 and n1-1 on the first, n1-2 to n1-4 on the second."""
    built = node()
    for number, size in enumerate(sizes):
        for _ in range(size):
            built = built.gpu(f"n1-{len(built.cards)}", numa=number, slots=slots)
    return built


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_the_wish_is_a_go_boolean(word: str) -> None:
    assert gpu_pod().annotate(("nvidia.com/numa-bind", word)).request().numa_bind


@pytest.mark.parametrize("word", ["0", "false", "yes", "tRuE", ""])
def test_anything_else_is_no_wish(word: str) -> None:
    assert not gpu_pod().annotate(("nvidia.com/numa-bind", word)).request().numa_bind


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [("spread", ["n1-4", "n1-3"]), ("binpack", ["n1-1", "n1-0"]), ("numa", ["n1-4", "n1-3"])],
)
def test_the_policy_decides_which_numa_node_is_tried_first(policy: str, chosen: list[str]) -> None:
    world = cluster(numa_nodes(2, 3))
    assert uuids(world.chosen(gpu_pod(gpu=2, mem=10).numa_bound().policy(device=policy)).placement) == [chosen]


@pytest.mark.parametrize("policy", ["spread", "binpack", "mutex", "topology-aware", "numa,spread", "spread,numa"])
@pytest.mark.parametrize("large", [0, 1, 2])
def test_every_numa_node_is_tried(policy: str, large: int) -> None:
    sizes = [2, 2, 2]
    sizes[large] = 3
    world = cluster(numa_nodes(*sizes))
    placement = world.chosen(gpu_pod(gpu=3, mem=10).numa_bound().policy(device=policy)).placement
    first = 2 * large
    assert sorted(uuids(placement)[0]) == [f"n1-{first + i}" for i in range(3)]


def test_cards_whose_scores_interleave_still_form_groups() -> None:
    cards = node().gpu("a0", numa=0).gpu("b0", numa=1).gpu("a1", numa=0).gpu("b1", numa=1)
    world = cluster(cards).observe(
        gpu_pod("w").on("n1", "a0,NVIDIA,100,0:;"),
        gpu_pod("x").on("n1", "b0,NVIDIA,200,0:;"),
        gpu_pod("y").on("n1", "a1,NVIDIA,300,0:;"),
        gpu_pod("z").on("n1", "b1,NVIDIA,400,0:;"),
    )
    for policy in ("spread", "binpack", "spread,binpack", "binpack,spread"):
        asking = gpu_pod(gpu=2, mem=10).numa_bound().policy(device=policy)
        groups = {uuid[0] for uuid in uuids(world.chosen(asking).placement)[0]}
        assert len(groups) == 1, policy


def test_full_cards_do_not_count_for_their_numa_node() -> None:
    world = cluster(numa_nodes(2, 2, slots=1)).observe(gpu_pod("old").on("n1", "n1-3,NVIDIA,10,0:;"))
    assert sorted(uuids(world.chosen(gpu_pod(gpu=2, mem=10).numa_bound()).placement)[0]) == ["n1-0", "n1-1"]


def test_a_pod_that_no_numa_node_can_hold_is_told_how_many_cards_were_apart() -> None:
    world = cluster(numa_nodes(2, 3, 1))
    asking = gpu_pod(gpu=4, mem=10).numa_bound()
    assert world.refused(asking) == {"n1": "3/6 AllocatedCardsInsufficientRequest, 3/6 NumaNotFit"}
    answer = world.fit(asking)
    assert isinstance(answer, Misfit)
    assert set(answer.cards) == {
        CardMisfit("n1-0", Reason.NUMA_NOT_FIT, asked=4, free=2),
        CardMisfit("n1-1", Reason.NUMA_NOT_FIT, asked=4, free=2),
        CardMisfit("n1-5", Reason.NUMA_NOT_FIT, asked=4, free=1),
    }


def test_cards_refused_for_other_reasons_keep_them_beside_numa() -> None:
    cards = node().gpu("a", numa=0).gpu("b", numa=1).gpu("c", numa=1, healthy=False)
    assert cluster(cards).refused(gpu_pod(gpu=2, mem=10).numa_bound()) == {
        "n1": "1/3 AllocatedCardsInsufficientRequest, 1/3 CardNotHealth, 1/3 NumaNotFit"
    }


def test_too_few_cards_at_all_is_no_matter_of_numa() -> None:
    cards = node().gpu("a", numa=0).gpu("b", numa=1, healthy=False)
    assert cluster(cards).refused(gpu_pod(gpu=2, mem=10).numa_bound()) == {
        "n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardNotHealth"
    }


def test_each_container_is_bound_by_itself() -> None:
    world = cluster(numa_nodes(2, 2, slots=1))
    two = pod().container(gpu=2, mem=10).container(gpu=2, mem=10).numa_bound()
    assert [sorted(cards) for cards in uuids(world.chosen(two).placement)] == [["n1-2", "n1-3"], ["n1-0", "n1-1"]]


def test_the_best_linked_numa_node_wins_with_topology() -> None:
    cards = numa_nodes(3, 3).linked({("n1-0", "n1-2"): 400, ("n1-3", "n1-4"): 100, ("n1-2", "n1-3"): 900})
    asking = gpu_pod(gpu=2, mem=10).numa_bound().policy(device="topology-aware")
    assert sorted(uuids(cluster(cards).chosen(asking).placement)[0]) == ["n1-0", "n1-2"]


def test_a_quota_for_cheap_cards_does_not_hide_the_numa_node_that_has_them() -> None:
    cards = (
        node()
        .gpu("large0", numa=1, memory=8000)
        .gpu("large1", numa=1, memory=8000)
        .gpu("small0", numa=0, memory=4000)
        .gpu("small1", numa=0, memory=4000)
    )
    world = cluster(cards).quota(memory=5000)
    asking = gpu_pod(gpu=2, percent=50, cores=1).numa_bound()
    assert sorted(uuids(world.chosen(asking).placement)[0]) == ["small0", "small1"]
