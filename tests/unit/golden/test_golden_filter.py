"""Responses of HAMi v2.10 to filter calls, recorded from a running HAMi: nodes, cards, scores, texts."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.core.search import advice
from tessera.core.search.selection import Refused
from tests.support.builders import Cluster, PodBuilder, cluster, gpu_pod, node, pod, texts, uuids

MODELS = ("NVIDIA", "NVIDIA A100-SXM4-80GB")
NAMES = ("node1", "node2", "nodeX")


def two_nodes(model: str = MODELS[0]) -> Cluster:
    """Four cards of 8000 MiB; a quarter of device1 and three quarters of device4 are taken."""
    card: dict[str, Any] = {"memory": 8000, "model": model}
    return cluster(
        node("node1").gpu("device1", **card).gpu("device2", **card),
        node("node2").gpu("device3", **card).gpu("device4", **card),
    ).observe(
        gpu_pod("small").on("node1", "device1,NVIDIA,2000,25:;"),
        gpu_pod("large").on("node2", "device4,NVIDIA,6000,75:;"),
    )


def asking(node_policy: str, device_policy: str) -> PodBuilder:
    return gpu_pod(mem=1000, cores=20).policy(node=node_policy, device=device_policy)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("node_policy", "device_policy", "chosen", "device", "fits"),
    [
        ("binpack", "binpack", "node2", "device4", "node1:3.00,node2:8.00"),
        ("binpack", "spread", "node2", "device3", "node1:3.00,node2:8.00"),
        ("spread", "binpack", "node1", "device1", "node2:8.00,node1:3.00"),
        ("spread", "spread", "node1", "device2", "node2:8.00,node1:3.00"),
    ],
)
def test_policies_choose_node_and_card(
    model: str, node_policy: str, device_policy: str, chosen: str, device: str, fits: str
) -> None:
    answer = two_nodes(model).chosen(asking(node_policy, device_policy), NAMES)
    assert (answer.placement.node, uuids(answer.placement)) == (chosen, [[device]])
    assert advice.success_text(answer) == f"find fit node({chosen}), 1 nodes not fit, 2 nodes fit({fits})"


def test_the_scores_of_nodes_are_their_use_before_placing() -> None:
    answer = two_nodes().chosen(asking("binpack", "binpack"))
    assert dict(answer.fits) == pytest.approx({"node1": 3.0, "node2": 8.0})
    assert answer.placement.score == pytest.approx(8.0)


def test_an_init_container_and_an_app_container_take_the_same_card() -> None:
    both = pod().init(gpu=1, mem=5000).container(gpu=1, mem=4000).policy(node="binpack", device="binpack")
    answer = two_nodes().chosen(both, NAMES)
    assert (answer.placement.node, uuids(answer.placement)) == ("node2", [["device3"], ["device3"]])


def test_a_refusal_names_a_reason_for_every_node() -> None:
    small_and_large = cluster(node("n1").gpus(2), node("n2").gpus(4))
    answer = small_and_large.select(gpu_pod(gpu=3, mem=90000), ["n1", "n2", "nX"])
    assert isinstance(answer, Refused)
    assert texts(answer) == {
        "n1": "NodeInsufficientDevice",
        "n2": "4/4 CardInsufficientMemory",
        "nX": "node unregistered",
    }
    assert advice.failure_texts(answer) == [
        "1 nodes CardInsufficientMemory(n2)",
        "no available node, 3 nodes do not meet",
    ]


def test_a_quota_that_pays_for_some_of_the_cards_says_how_many() -> None:
    world = cluster(node("n1").gpus(4)).quota(memory=5000)
    assert world.refused(gpu_pod(gpu=2, mem=4000)) == {
        "n1": "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"
    }
