from __future__ import annotations

from itertools import combinations

import pytest

from tessera.core.model.devices import Device
from tessera.vendors import kunlun as layout

LEFT, RIGHT = {0, 1, 2, 3}, {4, 5, 6, 7}
LINKS = [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
GROUPS = [set(map(int, text)) for text in ("0145", "2367", "0246", "1357", "0347", "1256")]


def by_the_book(count: int, free: set[int]) -> set[int] | None:
    """The protocol's sentences, one after the other."""
    if count == 8:
        return free if free == LEFT | RIGHT else None
    if count not in (1, 2, 4):
        return None
    left, right = sorted(free & LEFT), sorted(free & RIGHT)
    if len(left) >= count or len(right) >= count:
        for slots in range(count, 5):
            number = [1, 3, 2, 4][slots - 1] if count % 2 else slots
            if len(left) == number:
                return set(left[:count])
            if len(right) == number:
                return set(right[:count])
    if count == 2:
        return next((pair for pair in LINKS if pair <= free), None)
    contained = [group for group in GROUPS if group <= free]
    if count == 4 and len(free) in (4, 5):
        return contained[0] if contained else None
    if count == 4 and len(free) == 6 and contained:
        for group in contained:
            rest = free - group
            if rest in LINKS or rest <= LEFT or rest <= RIGHT:
                return group
        return contained[-1]
    return None


FREE_SETS = [set(chosen) for size in range(9) for chosen in combinations(range(8), size)]


@pytest.mark.parametrize("count", range(10))
def test_every_state_of_a_board_is_decided_by_the_book(count: int) -> None:
    for free in FREE_SETS:
        expected = by_the_book(count, free)
        assert layout.choose(count, sorted(free)) == (None if expected is None else tuple(sorted(expected))), free


@pytest.mark.parametrize("count", layout.COUNTS)
def test_a_choice_has_the_right_size_and_is_free(count: int) -> None:
    for free in FREE_SETS:
        chosen = layout.choose(count, sorted(free))
        assert chosen is None or (len(chosen) == count and set(chosen) <= free)


def test_six_free_cards_leave_two_that_are_linked() -> None:
    assert layout.choose(4, [0, 1, 2, 4, 5, 6]) == (0, 1, 4, 5)
    assert layout.choose(4, [0, 1, 2, 5, 6, 7]) == (1, 2, 5, 6)


def test_preference_decides_inside_a_wing_only() -> None:
    assert layout.choose(2, [3, 1, 0]) == (1, 3)
    assert layout.choose(1, [7, 6, 0]) == (0,)


@pytest.mark.parametrize(
    ("count", "free", "expected"),
    [
        (2, [0, 1], (0, 1)),
        (4, [0, 1, 2, 3], (0, 1, 2, 3)),
        (8, [0, 1, 2, 3], None),
        (2, [0, 12], None),
        (2, [4, 12, 13], (12, 13)),
        (2, [0, 4, 12, 13], (0, 4)),
        (8, list(range(1, 16)), (8, 9, 10, 11, 12, 13, 14, 15)),
        (1, [], None),
        (1, [2**31 - 1], (2**31 - 1,)),
    ],
)
def test_nodes_with_fewer_or_more_than_eight_cards(
    count: int, free: list[int], expected: tuple[int, ...] | None
) -> None:
    assert layout.choose(count, free) == expected


def device(uuid: str, index: int) -> Device:
    return Device(uuid, "XPU", index)


def test_a_seat_is_the_index() -> None:
    assert layout.seats([device("b", 5), device("a", 0)]) == {"a": 0, "b": 5}


def test_cards_with_equal_indexes_are_seated_by_rank() -> None:
    assert layout.seats([device("b", 0), device("c", 9), device("a", 0)]) == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (set(), 1),
        ({0}, 3),
        ({0, 1}, 2),
        ({0, 1, 2, 3}, 1),
        ({0, 1, 2, 3, 4}, 2),
        ({0, 4}, 4),
        ({0, 1, 2, 3, 4, 5, 6, 7}, 0),
        ({8, 9, 10, 11}, 1),
    ],
)
def test_how_ragged_the_use_of_a_board_is(used: set[int], expected: int) -> None:
    assert layout.bubbles(frozenset(used)) == expected
