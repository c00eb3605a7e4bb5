from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.fleet import MAX_DEVICES, Fleet, physical, preferred, replicas
from tessera.wire.node_config import Mode, NodeSettings
from tests.support.kubelet import card, fleet, uuid

A, B, C, D, E, F, G, H = EIGHT = tuple(uuid(number) for number in range(8))


def test_every_card_is_listed_as_often_as_pods_may_share_it() -> None:
    listed = replicas(fleet(2), NodeSettings(split_count=3))
    assert [each.id for each in listed] == [f"{uuid(number)}-{i}" for number in (0, 1) for i in range(3)]
    assert all(each.healthy for each in listed)
    assert {each.numa for each in listed} == {None}


def test_numa_nodes_are_told_where_they_are_wanted_and_known() -> None:
    cards = Fleet((card(0), card(1, numa=1), card(2, numa=0)))
    listed = replicas(cards, NodeSettings(split_count=3, numa_topology=True))
    assert [each.numa for each in listed] == [None] * 3 + [1] * 3 + [0] * 3


def test_numa_nodes_are_not_told_unasked() -> None:
    assert [each.numa for each in replicas(Fleet((card(1, numa=1),)), NodeSettings(split_count=1))] == [None]


def test_all_replicas_of_a_sick_card_are_sick_and_no_others() -> None:
    listed = replicas(fleet(3, sick={1}), NodeSettings(split_count=2))
    assert [each.healthy for each in listed] == [True, True, False, False, True, True]


@pytest.mark.parametrize(
    ("mode", "split", "instances", "times"),
    [
        ("hami-core", 10, 0, 10),
        ("hami-core", 3, 7, 3),
        ("mps", 4, 0, 4),
        ("none", 10, 0, 1),
        ("none", 0, 0, 1),
        ("mig", 10, 7, 10),
        ("mig", 3, 7, 7),
        ("mig", 3, 0, 3),
        ("hami-core", 0, 0, 0),
        ("hami-core", -1, 0, 0),
        ("mig", -1, 0, 0),
    ],
)
def test_the_number_of_replicas_follows_the_mode(mode: Mode, split: int, instances: int, times: int) -> None:
    listed = replicas(Fleet((card(0, instances=instances),)), NodeSettings(split_count=split, mode=mode))
    assert len(listed) == times


def test_an_absurd_split_count_still_gives_a_list_that_kubelet_can_read() -> None:
    listed = replicas(fleet(8), NodeSettings(split_count=10**12))
    assert len(listed) == MAX_DEVICES
    assert len({each.id for each in listed}) == MAX_DEVICES


def test_a_node_without_cards_has_no_devices() -> None:
    assert replicas(Fleet(problem="no driver"), NodeSettings()) == ()


@pytest.mark.parametrize(
    ("device_id", "card_id"),
    [
        (f"{uuid(1)}-10", uuid(1)),
        (f"{uuid(1)}-0", uuid(1)),
        (f"{uuid(1)}::replica-1", uuid(1)),
        (f"{uuid(1)}-3::1", f"{uuid(1)}-3"),
        (uuid(1), uuid(1)),
        ("MIG-03f69c50-207a-2038-9b45-23cac89cb67a-4", "MIG-03f69c50-207a-2038-9b45-23cac89cb67a"),
        (f"{uuid(1)}-x", f"{uuid(1)}-x"),
        (f"{uuid(1)}-", f"{uuid(1)}-"),
        (f"{uuid(1)}-1-2", f"{uuid(1)}-1-2"),
        (f"{uuid(1)}-\u0663", f"{uuid(1)}-\u0663"),
        (f"{uuid(1)}-1\n", f"{uuid(1)}-1\n"),
        ("gpu-9", "gpu-9"),
        ("", ""),
        ("::", ""),
    ],
)
def test_the_card_of_a_device(device_id: str, card_id: str) -> None:
    assert physical(device_id) == card_id


@pytest.mark.parametrize("number", [0, 7, 39_999])
def test_every_listed_replica_leads_back_to_its_card(number: int) -> None:
    listed = replicas(fleet(1), NodeSettings(split_count=MAX_DEVICES))
    assert physical(listed[number].id) == uuid(0)


def ids(card: str, *numbers: int) -> list[str]:
    return [f"{card}-{number}" for number in numbers]


def test_what_kubelet_must_include_serves_its_own_card_and_the_others_give_their_first_free_replica() -> None:
    available = [f"{card}-{number}" for card in EIGHT for number in (3, 1, 2)]
    chosen = preferred(EIGHT, available=available, must_include=ids(D, 2), count=8)
    assert chosen == (*ids(D, 2), *(f"{card}-3" for card in EIGHT if card != D))


@pytest.mark.parametrize(
    ("wanted", "available", "must_include", "count", "chosen"),
    [
        pytest.param([A], [*ids(B, 0), *ids(A, 4, 1)], [], 1, ids(A, 4), id="the planned card"),
        pytest.param([A, A], ids(A, 1, 2, 3), [], 2, ids(A, 1, 2), id="two slices of one card"),
        pytest.param([A, B], [*ids(A, 0), *ids(B, 0)], ids(A, 0), 2, [*ids(A, 0), *ids(B, 0)], id="also available"),
        pytest.param([A, B], ids(A, 0, 1), [], 1, ids(A, 0), id="more planned than asked for"),
        pytest.param([A, A], ids(A, 1, 1), [], 2, [], id="the same replica twice is one"),
        pytest.param([A], ids(B, 0, 1), [], 1, [], id="the planned card is not available"),
        pytest.param([A, B], ids(A, 0, 1), [], 2, [], id="one of the planned cards is not available"),
        pytest.param([A], ids(A, 0), [], 2, [], id="fewer planned than asked for"),
        pytest.param([A], ids(A, 0), ids(B, 0), 1, [], id="kubelet insists on another card"),
        pytest.param([A, B], ids(B, 0), ids(A, 0, 1), 2, [], id="kubelet insists on too many of a card"),
        pytest.param(None, ids(A, 0), [], 1, [], id="nobody knows"),
        pytest.param([], ids(A, 0), [], 1, [], id="nothing planned"),
        pytest.param([A], ids(A, 0), [], 0, [], id="nothing asked for"),
        pytest.param([A], ids(A, 0), [], -5, [], id="less than nothing asked for"),
        pytest.param([A], [], [], 1, [], id="nothing available"),
        pytest.param([A], [f"{A}::replica-1"], [], 1, [f"{A}::replica-1"], id="the other form of ids"),
    ],
)
def test_a_preference(
    wanted: list[str] | None, available: list[str], must_include: list[str], count: int, chosen: list[str]
) -> None:
    found = preferred(wanted, available=available, must_include=must_include, count=count)
    assert list(found) == chosen


REPLICAS = st.builds(lambda card, number: f"{card}-{number}", st.sampled_from(EIGHT[:3]), st.integers(0, 3))


@given(
    wanted=st.none() | st.lists(st.sampled_from(EIGHT[:3]), max_size=4),
    available=st.lists(REPLICAS, max_size=12),
    must_include=st.lists(REPLICAS, max_size=3),
    count=st.integers(-1, 5),
)
def test_a_preference_is_complete_or_none(
    wanted: list[str] | None, available: list[str], must_include: list[str], count: int
) -> None:
    chosen = preferred(wanted, available=available, must_include=must_include, count=count)
    if chosen:
        assert wanted is not None
        assert len(set(chosen)) == len(chosen) == count
        assert set(must_include) <= set(chosen) <= {*available, *must_include}
        assert Counter(map(physical, chosen)) == Counter(wanted[:count])
