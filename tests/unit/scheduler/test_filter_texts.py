"""What people are told of decisions: each with its numbers, a refusal once."""

from __future__ import annotations

from tessera.vendors.node_reader import node_facts
from tests.support.builders import gpu_pod, node, vendors
from tests.support.filtering import one_card, told, world


def test_a_decision_is_told_with_the_nodes_it_was_chosen_from() -> None:
    cluster = world(one_card("n1"), one_card("n2"), one_card("tiny", memory=1))
    cluster.chosen(gpu_pod("p", mem=100), ["n1", "n2", "tiny", "stranger"])
    text = "find fit node(n1), 2 nodes not fit, 2 nodes fit(n2:0.00,n1:0.00)"
    assert told(cluster) == [("p", True, text)]


def test_a_decision_can_be_told_briefly() -> None:
    cluster = world()
    cluster.chosen(gpu_pod("p", mem=1000))
    assert cluster.reports.placed[0].describe_briefly() == "find fit node(n1), score 0.00"


def test_a_refusal_is_told_once_with_its_reasons_and_the_nearest_card() -> None:
    cluster = world(one_card("n1", memory=1000), one_card("n2", memory=3000))
    for _ in range(3):
        cluster.filtered(gpu_pod("p", mem=4000), ["n1", "n2", "stranger"])
    assert told(cluster) == [
        (
            "p",
            False,
            "needs 4000 MiB; the most free on one card is 3000 of 3000 MiB on n2 (n2-0);"
            " 2 of 3 nodes: not enough free memory on the card;"
            " 1 of 3 nodes: no device plugin has registered cards on the node",
        )
    ]


def test_a_refusal_without_a_near_card_is_told_by_its_reasons() -> None:
    cluster = world(node("n1").gpu("n1-0", healthy=False))
    cluster.filtered(gpu_pod("p"), ["n1"])
    assert told(cluster) == [("p", False, "1 of 1 nodes: the card is unhealthy, or its use is uncertain")]


def test_a_refusal_is_told_right_although_nodes_have_come_and_gone_since() -> None:
    cluster = world(one_card("n1", memory=1000), one_card("n2", memory=3000))
    cluster.filtered(gpu_pod("p", mem=4000), ["n1", "n2"])
    cluster.ledger.forget_node("n1")
    cluster.ledger.observe_node(node_facts(node("n0").gpu("n0-0", memory=3500).api(), vendors()))
    ((_, _, text),) = told(cluster)
    assert text.startswith("needs 4000 MiB; the most free on one card is 3000 of 3000 MiB on n2 (n2-0)")


def test_every_refusal_is_reported_and_the_first_of_a_pod_as_that() -> None:
    cluster = world()
    for name in ("a", "a", "b"):
        cluster.filtered(gpu_pod(name, gpu=9), ["n1"])
    cluster.chosen(gpu_pod("c"), ["n1"])
    assert [event.is_first for event in cluster.reports.refused] == [True, False, True]
