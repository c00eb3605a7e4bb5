"""In which order cards are tried, and how nodes are ranked."""

from __future__ import annotations

import pytest

from tessera.core import policies
from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card
from tessera.core.model.requests import PodRequest
from tessera.vendors.pod_reader import PolicyDefaults, pod_request
from tests.support.builders import cluster, gpu_pod, node, uuids, vendors


def card(name: str, *, numa: int = 0, score: int = 0, used: int = 0, index: int = 0) -> Card:
    return Card(Device(name, "V", numa=numa, index=index), used=used, used_memory=score)


def order(cards: list[Card], policy: str, *, numa_bind: bool = False) -> str:
    found = policies.device_policy(policy).order(cards, [card.used_memory for card in cards], numa_bind=numa_bind)
    return "".join(card.device.uuid for card in found)


CARDS = [
    card("a", numa=0, score=1, used=3, index=0),
    card("b", numa=0, score=2, used=0, index=1),
    card("c", numa=1, score=1, used=1, index=2),
    card("d", numa=1, score=2, used=0, index=3),
]


def test_a_policy_that_is_named_again_orders_nothing_more() -> None:
    assert len(policies.device_policy("spread," * 2000).keys) == len(policies.device_policy("spread,").keys)


def test_every_policy_says_what_it_is_for() -> None:
    for name, policy in policies.POLICIES.items():
        assert policy.name == name
        assert policy.summary
        assert "\n" not in policy.summary
        assert policy.nodes is not None or policy.cards is not None
    assert [name for name, policy in policies.POLICIES.items() if policy.nodes is not None] == [
        "binpack",
        "spread",
        "fragmentation",
    ]


@pytest.mark.parametrize(
    ("text", "unused_only", "by_links", "forecast"),
    [
        ("spread", False, False, False),
        ("mutex", True, False, False),
        (" mutex ,numa", True, False, False),
        ("topology-aware", False, True, False),
        ("mutex,topology-aware", True, True, False),
        ("fragmentation", False, False, True),
        ("fragmentation,numa", False, False, False),
        ("nonsense", False, False, False),
    ],
)
def test_what_a_device_policy_changes_in_fitting(text: str, unused_only: bool, by_links: bool, forecast: bool) -> None:
    policy = policies.device_policy(text)
    assert (policy.unused_cards_only, policy.chooses_by_links, policy.uses_forecast) == (
        unused_only,
        by_links,
        forecast,
    )
    assert policies.uses_forecast("binpack", text) is forecast


@pytest.mark.parametrize(
    ("policy", "free", "bound"),
    [
        ("spread", "cadb", "cdab"),
        ("", "cadb", "cdab"),
        ("topology-aware", "cadb", "cdab"),
        ("Binpack", "cadb", "cdab"),
        ("nonsense", "cadb", "cdab"),
        ("binpack", "dbca", "badc"),
        ("mutex", "dbca", "dbca"),
        ("numa", "dcba", "dcba"),
        ("numa,binpack", "dcba", "dcba"),
        ("numa,spread", "cdab", "cdab"),
        ("binpack,numa", "dbca", "dcba"),
        ("spread,numa", "cadb", "cdab"),
        (" spread , numa ", "cadb", "cdab"),
        ("mutex,topology-aware", "cadb", "cdab"),
        ("mutex,binpack", "dbca", "dcba"),
        (",", "cadb", "cdab"),
        ("spread,binpack", "cadb", "cdab"),
    ],
)
def test_the_order_of_cards(policy: str, free: str, bound: str) -> None:
    assert order(CARDS, policy) == free
    assert order(CARDS, policy, numa_bind=True) == bound


@pytest.mark.parametrize("policy", ["spread", "binpack", "mutex", "numa,binpack", "unknown"])
def test_of_equal_cards_the_one_registered_last_comes_first(policy: str) -> None:
    assert order([card(name) for name in "abc"], policy) == "cba"


def test_in_a_list_equal_cards_are_ordered_by_index_before_registration() -> None:
    cards = [card("a", index=2), card("b", index=1), card("c", index=1)]
    assert order(cards, "spread,numa") == "acb"
    assert order(cards, "spread") == "cba"


def test_more_cards_than_any_sort_keeps_in_registers_stay_in_order() -> None:
    cards = [card(chr(48 + number)) for number in range(40)]
    assert order(cards, "spread") == "".join(chr(48 + number) for number in reversed(range(40)))


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("binpack", "busy"),
        ("spread", "idle"),
        ("", "busy"),
        ("Spread", "busy"),
        ("mutex", "busy"),
        ("topology-aware", "busy"),
        ("anything", "busy"),
    ],
)
def test_what_is_not_a_node_policy_packs(policy: str, chosen: str) -> None:
    world = cluster(node("idle").gpus(1), node("busy").gpus(1))
    world.start(gpu_pod("old", mem=100), ["busy"])
    assert world.chosen(gpu_pod(mem=10).policy(node=policy)).placement.node == chosen


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_equal_nodes_are_chosen_by_name(policy: str) -> None:
    world = cluster(node("b").gpus(1), node("a").gpus(1), node("c").gpus(1))
    asking = gpu_pod(mem=10).policy(node=policy)
    assert world.start(asking.called("first")).node == "a"
    assert world.chosen(asking.called("next")).placement.node == ("a" if policy == "binpack" else "b")


def test_flags_decide_where_a_pod_says_nothing_and_an_empty_annotation_says_something() -> None:
    flags = PolicyDefaults(node="spread", device="binpack")
    silent = pod_request(gpu_pod().api(), vendors(), flags)
    empty = pod_request(gpu_pod().policy(node="", device="").api(), vendors(), flags)
    assert isinstance(silent, PodRequest)
    assert isinstance(empty, PodRequest)
    assert (silent.node_policy, silent.device_policy) == ("spread", "binpack")
    assert (empty.node_policy, empty.device_policy) == ("", "")


def test_weights_change_which_card_is_fullest() -> None:
    world = cluster(node().gpu("memory", memory=1000).gpu("slots", memory=1000, slots=4)).observe(
        gpu_pod("a").on("n1", "memory,NVIDIA,500,0:;"), gpu_pod("b").on("n1", "slots,NVIDIA,100,0:;")
    )
    asking = gpu_pod(mem=10).policy(device="binpack")
    by_memory = asking.annotate(("hami.io/device-scoring-weights", "slot=0,core=0,memory=1"))
    by_slots = asking.annotate(("hami.io/device-scoring-weights", "slot=1,core=0,memory=0"))
    assert uuids(world.chosen(by_memory).placement) == [["memory"]]
    assert uuids(world.chosen(by_slots).placement) == [["slots"]]
