""""""

from __future__ import annotations

from operator import itemgetter

import pytest

from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.lines import TableColumn, bar, count_of, join_names, table
from tessera.inspect.render.usage import age_text, cards_table, nodes_table, overview_lines, pods_table
from tessera.inspect.state import InspectionError, Setup
from tessera.inspect.usage import (
    Amount,
    UsageFilter,
    card_usage,
    node_usage,
    pending_pods,
    pod_usage,
    require_known,
    sort_usage,
    sum_usage,
    unread_nodes,
)
from tessera.inspect.utilization import MeasuredUse, SliceKey, Utilization
from tests.support.builders import NOW, REGISTER, NodeBuilder, gpu_pod, node, pod
from tests.support.cluster_states import state_of


def cluster() -> OfflineCluster:
    nodes = [node("n1").gpus(2), node("n2").gpus(1, memory=23034, model="NVIDIA L4").cordon("n2-0")]
    pods = [
        gpu_pod("a", mem=40000, cores=50).on("n1", "n1-0,NVIDIA,40000,50:;"),
        gpu_pod(mem=9000).called("b", namespace="team", uid="uid-b").on("n1", "n1-0,NVIDIA,9000,0:;"),
    ]
    return OfflineCluster(state_of(nodes, pods))


async def test_cards_show_what_is_granted_and_to_whom() -> None:
    first, second, third = card_usage(cluster())
    assert (first.memory_mib.used, first.cores.used, first.slots.used) == (49000, 50, 2)
    assert [(pod.namespace, pod.name, pod.memory_mib) for pod in first.pods] == [
        ("default", "a", 40000),
        ("team", "b", 9000),
    ]
    assert second.pods == ()
    assert third.state == "cordoned"


async def test_nodes_are_the_sums_of_their_cards() -> None:
    one = cluster()
    first, second = node_usage(one, card_usage(one))
    assert (first.cards, first.memory_mib.used, first.memory_mib.total, first.pods) == (2, 49000, 163840, 2)
    assert second.state == "1 of 1 cards closed"


@pytest.mark.parametrize(
    ("wanted", "cards", "pods"),
    [
        (UsageFilter(nodes=frozenset({"n2"})), ["n2-0"], []),
        (UsageFilter(model="l4"), ["n2-0"], []),
        (UsageFilter(vendors=frozenset({"nvidia"})), ["n1-0", "n1-1", "n2-0"], ["a", "b"]),
        (UsageFilter(namespace="team"), ["n1-0"], ["b"]),
    ],
)
async def test_what_is_wanted_is_shown(wanted: UsageFilter, cards: list[str], pods: list[str]) -> None:
    one = cluster()
    assert [use.card for use in card_usage(one, wanted)] == cards
    assert [use.name for use in pod_usage(one, wanted)] == pods


async def test_orders_put_the_fullest_or_the_freest_first() -> None:
    one = cluster()
    assert [use.card for use in sort_usage(card_usage(one), "memory")] == ["n1-0", "n1-1", "n2-0"]
    assert [use.card for use in sort_usage(card_usage(one), "free")] == ["n1-1", "n1-0", "n2-0"]
    assert [use.name for use in sort_usage(pod_usage(one), "memory")] == ["a", "b"]


async def test_tables_have_bars_and_say_who() -> None:
    one = cluster()
    lines = [line.text for line in cards_table(card_usage(one), width=None, wide=False, ascii_only=True)]
    assert lines[0].split() == ["NODE", "CARD", "MODEL", "MODE", "MEMORY", "MIB", "CORES", "SLOTS", "PODS"]
    assert "######...." in lines[1]
    assert lines[1].endswith("default/a 40000, team/b 9000")
    assert lines[3].endswith("(cordoned)")
    assert len(nodes_table(node_usage(one, card_usage(one)), width=None, ascii_only=False)) == 3
    assert pods_table(pod_usage(one), width=None)[1].text.endswith("c0: card 0 40000 MiB")


async def test_a_wide_table_of_cards_has_their_ids() -> None:
    lines = [line.text for line in cards_table(card_usage(cluster()), width=None, wide=True, ascii_only=True)]
    assert lines[0].split()[:4] == ["NODE", "CARD", "UUID", "MODEL"]
    assert lines[1].split()[2] == "n1-0"


async def test_a_table_fits_a_terminal_by_cutting_its_last_column() -> None:
    lines = cards_table(card_usage(cluster()), width=80, wide=False, ascii_only=False)
    assert all(len(line.text) <= 80 for line in lines)
    assert lines[1].text.endswith("...")


def test_small_pieces() -> None:
    assert bar(0.001, cells=4, ascii_only=True) == "#..."
    assert bar(2.0, cells=4, ascii_only=True) == "####"
    assert join_names(["a", "b", "c"], 2) == "a, b and 1 more"
    assert (count_of(1, "node"), count_of(2, "node")) == ("1 node", "2 nodes")
    assert [
        line.text
        for line in table([TableColumn("A", itemgetter(0)), TableColumn("B", itemgetter(1), right=True)], [("x", 1)])
    ] == [
        "A  B",
        "x  1",
    ]


MEASURED = MeasuredUse(
    {
        SliceKey("uid-a", "c0", "n1-0"): Utilization(12000, 30),
        SliceKey("uid-b", "c0", "n1-0"): Utilization(500, None),
    },
    {("n1", "n1-0"): Utilization(12700, 45), ("n1", "n1-1"): Utilization(300, 5)},
)


async def test_use_stands_beside_what_is_granted() -> None:
    one = cluster()
    cards = card_usage(one, use=MEASURED)
    assert [use.measured for use in cards] == [Utilization(12700, 45), Utilization(300, 5), None]
    assert [pod.measured for pod in cards[0].pods] == [Utilization(12000, 30), Utilization(500, None)]
    first, second = node_usage(one, cards)
    assert (first.measured, second.measured) == (Utilization(13000, 25), None)
    held, other = pod_usage(one, use=MEASURED)
    assert (held.measured, held.slices[0].measured) == (Utilization(12000, 30), Utilization(12000, 30))
    assert other.measured == Utilization(500, None)
    lines = [line.text for line in cards_table(cards, width=None, wide=False, ascii_only=True)]
    assert lines[0].split()[-3:] == ["USED", "BUSY", "PODS"]
    assert "12700   45%  default/a 40000 (uses 12000), team/b 9000 (uses 500)" in lines[1]
    assert "?     ?  (cordoned)" in lines[3]


async def test_a_narrow_terminal_gets_no_bars() -> None:
    lines = cards_table(card_usage(cluster()), width=90, wide=False, ascii_only=True)
    assert "MEMORY" not in lines[0].text
    assert "MODE" in lines[0].text


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
