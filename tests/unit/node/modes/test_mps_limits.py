"""Limits of clients and the ceiling of a card."""

from __future__ import annotations

import pytest

from tessera.host.cards import CardFacts
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.mps.control import Limits, largest, limits_on
from tessera.wire.integers import INT32_MAX
from tessera.wire.pod_devices import DeviceEntry
from tests.support.fake_mps import A, B, card


def claim(*slices: tuple[str, int, int]) -> Assignment:
    return Assignment(
        ObjectKey("ns", "pod", "uid"), 0, "main", tuple(DeviceEntry(u, "NVIDIA", m, c) for u, m, c in slices)
    )


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([(A, 3000, 30)], Limits(3000, 30)),
        ([(A, 3000, 0)], Limits(3000, 100)),
        ([(A, 3000, 100)], Limits(3000, 100)),
        ([(A, 3000, 250)], Limits(3000, 100)),
        ([(A, 3000, -5)], Limits(3000, 100)),
        ([(A, INT32_MAX, 1)], Limits(81920, 1)),
        ([(A, 3000, 30), (A, 1000, 20)], Limits(4000, 50)),
        ([(A, 3000, 30), (A, 1000, 0)], Limits(4000, 100)),
        ([(B, 500, 50), (A, 3000, 30)], Limits(3000, 30)),
        ([(A, 0, 30)], None),
        ([(A, -1, 30)], None),
        ([(B, 3000, 30)], None),
    ],
)
def test_a_container_may_use_what_it_was_granted_and_never_nothing(
    slices: list[tuple[str, int, int]], expected: Limits | None
) -> None:
    assert limits_on(claim(*slices), card()) == expected


def test_cores_are_not_limited_where_the_node_limits_none() -> None:
    assert limits_on(claim((A, 3000, 30)), card(), limit_cores=False) == Limits(3000, 100)


def test_a_card_that_does_not_say_its_memory_gives_what_was_granted() -> None:
    unknown = CardFacts(uuid=A, index=0, name="NVIDIA H200")
    assert limits_on(claim((A, 3000, 30)), unknown) == Limits(3000, 30)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ([], None),
        ([Limits(1, 10)], Limits(1, 10)),
        ([Limits(1, 10), Limits(5, 2)], Limits(5, 10)),
        ([Limits(5, 2), Limits(1, 10), Limits(3, 3)], Limits(5, 10)),
    ],
)
def test_the_ceiling_is_the_largest_of_each(every: list[Limits], expected: Limits | None) -> None:
    assert largest(every) == expected
