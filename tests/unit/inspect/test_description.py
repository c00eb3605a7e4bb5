from __future__ import annotations

import pytest

from tessera.inspect.description import read_description
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import ClusterState, InspectionError, Setup
from tessera.inspect.usage import card_usage
from tests.support.builders import NOW


def described(text: str) -> ClusterState:
    return read_description(text, file="f.yaml", now=NOW, setup=Setup())


async def test_models_bring_their_memory_and_counts_bring_numbers() -> None:
    cluster = OfflineCluster(
        described("nodes: [{name: n, count: 2, cards: [{model: L4, count: 2}, {model: x, memory: 9}]}]")
    )
    assert [(use.node, use.index, use.model, use.memory_mib.total) for use in card_usage(cluster)] == [
        ("n-1", 0, "NVIDIA L4", 23034),
        ("n-1", 1, "NVIDIA L4", 23034),
        ("n-1", 2, "x", 9),
        ("n-2", 0, "NVIDIA L4", 23034),
        ("n-2", 1, "NVIDIA L4", 23034),
        ("n-2", 2, "x", 9),
    ]


async def test_linked_cards_keep_their_links() -> None:
    cluster = OfflineCluster(described("nodes: [{name: n, cards: [{model: L4, count: 4, linked: 2}]}]"))
    view = cluster.ledger.node("n")
    assert view is not None
    assert [len(card.device.links) for card in view.cards] == [1, 1, 1, 1]


async def test_objects_as_kubectl_prints_them_are_read_too() -> None:
    text = """
kind: List
items:
  - {kind: Node, metadata: {name: n1, annotations: {hami.io/node-nvidia-register: "GPU-1,10,8000,100,T4,0,true:"}}}
  - {kind: Pod, metadata: {name: p, namespace: a}, spec: {containers: [{name: c}]}}
"""
    cluster = OfflineCluster(described(text))
    assert cluster.ledger.node_names() == ("n1",)
    assert list(cluster.pods) == ["a/p"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not valid JSON"),
        ("{}", "describes no nodes"),
        ("nodes: [{name: n, card: []}]", "unknown field `card`"),
        ("nodes: [{name: n, cards: [{model: A100}]}]", "give the memory of A100 in MiB; did you mean"),
        ("kind: Service", "Service is not supported; expected Node, Pod, ResourceQuota"),
    ],
)
def test_a_description_that_cannot_be_meant_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(InspectionError, match="f.yaml: .*" + words.replace("[", r"\[")):
        described(text)
