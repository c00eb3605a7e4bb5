"""A container's slices in the order in which it counts its cards."""

from __future__ import annotations

import pytest

from tessera.node.fleet import Fleet
from tessera.node.modes.base import AllocationRefused, slices_by_card
from tests.support.sharing_modes import A, B, card, claim, fleet, slice_of


def test_slices_stand_in_the_order_of_the_cards_and_not_of_the_annotation() -> None:
    found = slices_by_card(claim(slice_of(B, 4000, 60), slice_of(A, 3000, 50)), fleet(A, B))
    assert [(each.uuid, each.memory, each.cores) for each in found] == [(A, 3000, 50), (B, 4000, 60)]


@pytest.mark.parametrize(("one", "other", "together"), [(20, 30, 50), (20, 0, 0), (0, 30, 0)])
def test_two_slices_of_one_card_are_one_device_with_the_room_of_both(one: int, other: int, together: int) -> None:
    found = slices_by_card(claim(slice_of(A, 1000, one), slice_of(A, 2000, other)), fleet(A))
    assert [(each.uuid, each.memory, each.cores) for each in found] == [(A, 3000, together)]


@pytest.mark.parametrize("uuid", ["GPU-nowhere", "GPU-a[0-1]", "größe\n", "x" * 10_000])
def test_a_card_that_is_not_here_is_refused_by_name(uuid: str) -> None:
    with pytest.raises(AllocationRefused, match="is not among this node's cards") as refusal:
        slices_by_card(claim(slice_of(A), slice_of(uuid)), fleet(A))
    assert len(str(refusal.value)) < 300


def test_a_card_that_is_not_well_is_refused_with_what_it_has() -> None:
    with pytest.raises(AllocationRefused, match=f"card {A} takes no work: XID 79"):
        slices_by_card(claim(slice_of(A)), Fleet((card(A, problem="XID 79"),)))


def test_the_trouble_of_a_card_that_is_not_asked_for_does_not_matter() -> None:
    cards = Fleet((card(A, problem="XID 79"), card(B, 1)))
    assert [each.uuid for each in slices_by_card(claim(slice_of(B)), cards)] == [B]
