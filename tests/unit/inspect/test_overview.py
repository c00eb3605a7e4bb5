from __future__ import annotations

import pytest

from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.usage import age_text, overview_lines
from tessera.inspect.state import InspectionError, Setup
from tessera.inspect.usage import Amount, UsageFilter, card_usage, pending_pods, require_known, sum_usage, unread_nodes
from tests.support.builders import NOW, REGISTER, NodeBuilder, gpu_pod, node, pod
from tests.support.cluster_states import state_of

HANDSHAKE = "hami.io/node-handshake"


def unread(*nodes: NodeBuilder, **flags: str) -> dict[str, str]:
    cluster = OfflineCluster(state_of(nodes, setup=Setup(flags=dict(flags) or None)))
    return {one.node: one.reason for one in unread_nodes(cluster)}


async def test_a_node_that_can_be_read_or_has_no_cards_is_not_listed() -> None:
    assert unread(node("n1").gpus(1), node("plain")) == {}


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (node("n1").annotate((REGISTER, "{broken")), "NVIDIA: "),
        (node("n1").annotate((HANDSHAKE, "Reported 2023.11.14 22:13:20")), "registers no cards of NVIDIA"),
        (
            node("n1").gpus(1).annotate((HANDSHAKE, "Requesting_2020.01.01 00:00:00")),
            "the plugin of NVIDIA is gone",
        ),
        (node("n1").capacity(**{"nvidia.com/gpu": 8}), "offers 8 nvidia.com/gpu, but no plugin of Tessera or HAMi"),
    ],
)
async def test_a_node_whose_cards_are_unknown_is_listed_with_the_reason(one: NodeBuilder, words: str) -> None:
    found = unread(one, node("good").gpus(1))
    assert list(found) == ["n1"]
    assert words in found["n1"]
    assert not found["n1"].startswith("n1")


async def test_a_node_outside_the_schedulers_selector_is_listed() -> None:
    found = unread(node("n1").gpus(1).capacity(**{"nvidia.com/gpu": 10}), **{"node-label-selector": "gpu=on"})
    assert found == {"n1": "it is outside the scheduler's --node-label-selector"}


async def test_an_allocation_that_cannot_be_read_is_the_reason_of_its_node() -> None:
    state = state_of([node("n1").gpus(1), node("n2").gpus(1)], [gpu_pod("p").on("n1", "G,NVIDIA:;")])
    [found] = unread_nodes(OfflineCluster(state))
    assert "the allocation of pod default/p cannot be read" in found.reason
    assert unread_nodes(OfflineCluster(state), UsageFilter(nodes=frozenset({"n2"}))) == []


async def test_pending_device_pods_are_listed_the_oldest_first() -> None:
    waiting = [
        gpu_pod("a", mem=90000), gpu_pod("b", mem=100), pod("no-devices").container(),
        gpu_pod("held", mem=1).on("n1", "n1-0,NVIDIA,1,0:;"), gpu_pod("ended").ended(), gpu_pod("ending").terminating(),
    ]  # fmt: skip
    state = state_of([node("n1").gpus(1)], waiting)
    for document, created in zip(state.pods, ("2023-11-14T22:10:00Z", "2023-11-14T20:00:00Z"), strict=False):
        document["metadata"]["creationTimestamp"] = created
    cluster = OfflineCluster(state)
    found = pending_pods(cluster)
    assert [one.name for one in found] == ["b", "a"]
    assert found[1].asks == ("container c0: 1 NVIDIA card with 90000 MiB",)
    assert pending_pods(cluster, UsageFilter(namespace="other")) == []
    lines = [line.text for line in overview_lines(None, [], found, note="", now=NOW)]
    assert lines[1:] == [
        "2 device pods pending (tessera explain says why)",
        "  default/b for 2h: container c0: 1 NVIDIA card with 100 MiB",
        "  default/a for 3m: container c0: 1 NVIDIA card with 90000 MiB",
    ]


async def test_totals_are_those_of_the_cards_shown() -> None:
    nodes = [node("n1").gpus(2), node("n2").gpus(1).cordon("n2-0")]
    cluster = OfflineCluster(state_of(nodes, [gpu_pod("a").on("n1", "n1-0,NVIDIA,40000,50:;")]))
    found = sum_usage(card_usage(cluster))
    assert (found.nodes, found.cards, found.closed_cards, found.pods) == (2, 3, 1, 1)
    assert found.memory_mib == Amount(40000, 245760)
    [_, line, note] = [line.text for line in overview_lines(found, [], [], note="use is unknown", now=NOW)]
    assert (
        line
        == "total: 3 cards (1 closed) on 2 nodes, 40000/245760 MiB (16%) granted to 1 pod, cores 50/300, slots 1/30"
    )
    assert note == "use is unknown"


async def test_a_node_that_does_not_exist_is_an_error_with_the_names_that_do() -> None:
    cluster = OfflineCluster(state_of([node(f"n{number}") for number in range(25)]))
    require_known(cluster, UsageFilter(nodes=frozenset({"n3"})))
    with pytest.raises(InspectionError, match=r"no node is called x; the cluster has n0, n1, n10, .* and 5 more"):
        require_known(cluster, UsageFilter(nodes=frozenset({"x", "n3"})))


def test_ages_have_one_unit() -> None:
    assert [age_text(seconds) for seconds in (-1, 5, 119, 120, 7199, 7200, 172800)] == [
        "0s", "5s", "119s", "2m", "119m", "2h", "2d"
    ]  # fmt: skip
