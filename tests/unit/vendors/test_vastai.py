from __future__ import annotations

from typing import Any

import pytest

from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import Switches
from tessera.vendors.drafts import Resources
from tessera.vendors.vastai import FAMILY, Vastai
from tests.support.vendor_cases import VendorNode, devices, node

VA = "vastaitech.com/va"


@pytest.fixture
def vendor() -> Vastai:
    (built,) = FAMILY.build(FAMILY.chart, Switches())
    assert isinstance(built, Vastai)
    return built


def die(index: int, aic: Any, *, used: int = 0, slots: int = 1, strategy: str = "die", numa: int = 0) -> Card:
    custom = {"DeviceStrategy": strategy} | ({} if aic is None else {"AIC": aic})
    return Card(Device(f"U{index}", "Vastai", index, slots, 0, 100, numa=numa, custom=custom), used=used)


def two_by_two(**used: int) -> list[Card]:
    """Dies U0 and U1 on card A, U2 and U3 on card B; later ones come first, as the default policy has it."""
    return [die(i, "AABB"[i], used=used.get(f"U{i}", 0)) for i in (3, 2, 1, 0)]


def test_a_request_is_a_number(vendor: Vastai) -> None:
    assert vendor.request(Resources(limits={VA: 1})) == Request("Vastai", 1, percent=100)


def test_registered_dies_keep_what_they_say_about_themselves(vendor: Vastai) -> None:
    text = '[{"id":"U0","count":1,"health":true,"custominfo":{"DeviceStrategy":"die","AIC":"A"}}]'
    (found,) = devices(vendor, node(annotations={"hami.io/node-va-register": text}))
    assert (found.cores, dict(found.custom)) == (100, {"DeviceStrategy": "die", "AIC": "A"})


def test_two_dies_of_four_are_on_one_card(vendor: Vastai) -> None:
    world = VendorNode(vendor, two_by_two())
    text = "U3,Vastai,0,0:U2,Vastai,0,0:;"
    assert world.written(world.grants(**{VA: 2})) == {
        "hami.io/Vastai-devices-to-allocate": text,
        "hami.io/Vastai-devices-allocated": text,
    }


@pytest.mark.parametrize(
    ("cards", "count", "expected"),
    [
        (two_by_two(U3=1), 2, [1, 0]),
        (two_by_two(U3=1), 1, [2]),
        (two_by_two(U3=1), 3, [1, 0, 2]),
        (two_by_two(), 4, [3, 2, 1, 0]),
        ([die(2, "A"), die(1, "B"), die(0, "A")], 2, [2, 0]),
        ([die(2, None), die(1, None), die(0, None)], 2, [2, 1]),
        ([die(2, None), die(1, 7), die(0, 7)], 2, [1, 0]),
        ([die(2, "A", strategy="card"), die(1, "B", strategy="card"), die(0, "A", strategy="card")], 2, [2, 1]),
    ],
)
def test_dies_of_the_card_with_most_of_them_come_first(
    vendor: Vastai, cards: list[Card], count: int, expected: list[int]
) -> None:
    assert VendorNode(vendor, cards).indexes(**{VA: count}) == expected


def test_under_mutex_a_card_with_one_die_in_use_is_taken(vendor: Vastai) -> None:
    assert VendorNode(vendor, two_by_two(U3=1), "mutex").indexes(**{VA: 2}) == [1, 0]
    assert VendorNode(vendor, [die(0, "A", used=1, slots=2), die(1, "A", slots=2)], "mutex").refusal(**{VA: 1}) == (
        "2/2 ExclusiveDeviceAllocateConflict"
    )


def test_numa_binding_holds_for_dies_too(vendor: Vastai) -> None:
    dies = [die(0, "A", numa=0), die(1, "A", numa=1), die(2, "B", numa=1)]
    assert VendorNode(vendor, dies).indexes(**{VA: 2}) == [0, 1]
    assert VendorNode(vendor, dies, numa_bind=True).indexes(**{VA: 2}) == [1, 2]


def test_too_few_dies(vendor: Vastai) -> None:
    assert VendorNode(vendor, two_by_two(U3=1, U1=1, U0=1)).refusal(**{VA: 2}) == (
        "1/4 AllocatedCardsInsufficientRequest, 3/4 CardTimeSlicingExhausted"
    )


def grants(*indexes: int) -> tuple[Grant, ...]:
    return tuple(Grant(f"U{i}", "Vastai", 0, 0, i) for i in indexes)


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([grants(0, 1)], 1.0),
        ([grants(0, 2)], 0.5),
        ([grants(0, 1, 2)], 2 / 3),
        ([grants(0, 1), (), grants(2)], 2.0),
        ([()], 0.0),
    ],
)
def test_a_node_scores_by_dies_that_are_together(
    vendor: Vastai, containers: list[tuple[Grant, ...]], expected: float
) -> None:
    assert VendorNode(vendor, two_by_two()).score(*containers) == pytest.approx(expected)


def test_cards_that_are_not_dies_score_nothing(vendor: Vastai) -> None:
    assert vendor.scores_nodes
    assert VendorNode(vendor, [die(0, "A", strategy="card")]).score(grants(0)) == 0.0
