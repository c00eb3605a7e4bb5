from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.fleet import physical, preferred
from tests.support.kubelet.cards import uuid

A, B, C, D, E, F, G, H = EIGHT = tuple(uuid(number) for number in range(8))


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
