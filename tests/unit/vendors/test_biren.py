from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Constraint, Request
from tessera.vendors.base import Switches
from tessera.vendors.biren import FAMILY, Biren
from tessera.vendors.drafts import Resources
from tests.support.vendor_cases import VendorNode, devices, mutated, node, taken

GPU = "birentech.com/gpu"


@pytest.fixture
def vendor() -> Biren:
    (built,) = FAMILY.build(FAMILY.chart, Switches())
    assert isinstance(built, Biren)
    return built


def card(uuid: str, *, used: int = 0, slots: int = 2, numa: int = 0, healthy: bool = True) -> Card:
    index = int(uuid[-1])
    return Card(Device(uuid, "Biren", index, slots, 1000, 100, numa=numa, healthy=healthy), used=used)


def test_the_section_is_read_by_its_keys() -> None:
    section = msgspec.convert({"resourceCountName": "x/y", "unknown": 1}, FAMILY.schema)
    assert FAMILY.build(section, Switches())[0].names.all == ("x/y",)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, Request("Biren", 1, percent=100)),
        ({GPU: "2"}, Request("Biren", 2, percent=100)),
        ({GPU: 0}, None),
        ({}, None),
    ],
)
def test_a_request(vendor: Biren, limits: dict[str, Any], expected: Request | None) -> None:
    assert vendor.request(Resources(limits=limits)) == expected
    assert vendor.request(Resources(requests=limits)) == expected


def test_admission_only_looks_for_the_limit(vendor: Biren) -> None:
    assert mutated(vendor, {GPU: 1})[0] is True
    assert mutated(vendor, {}, {GPU: 1})[0] is False


def test_registered_cards_count_one_hundred_cores(vendor: Biren) -> None:
    text = '[{"id":"B0","count":4,"devmem":32768,"devcore":7,"type":"Biren-106","health":true}]'
    assert devices(vendor, node(annotations={"hami.io/node-biren-register": text})) == (
        Device("B0", "Biren", 0, 4, 32768, 100, "Biren-106"),
    )


def test_lists_of_uuids(vendor: Biren) -> None:
    annotations = {"birentech.com/use-gpuuuid": "B1, B0", "birentech.com/nouse-gpuuuid": "B0"}
    assert vendor.constraint(annotations) == Constraint(use_uuids=("B0", "B1"), avoid_uuids=("B0",))
    cards = [card("B0"), card("B1"), card("B2")]
    assert VendorNode(vendor, cards, annotations=annotations).indexes(**{GPU: 1}) == [1]
    assert VendorNode(vendor, cards, annotations=annotations).refusal(**{GPU: 2}) == (
        "1/3 AllocatedCardsInsufficientRequest, 2/3 CardUuidMismatch"
    )


def test_the_first_cards_win_and_nothing_but_a_slot_is_taken(vendor: Biren) -> None:
    cards = [card("B2"), card("B0"), card("B1")]
    world = VendorNode(vendor, cards)
    grants = world.grants(**{GPU: 2})
    text = "B2,Biren,0,0:B0,Biren,0,0:;"
    assert world.written(grants) == {
        "hami.io/Biren-devices-to-allocate": text,
        "hami.io/Biren-devices-allocated": text,
    }
    assert [(c.used, c.used_memory, c.used_cores) for c in taken(vendor, cards, grants)] == [
        (1, 0, 0),
        (1, 0, 0),
        (0, 0, 0),
    ]


@pytest.mark.parametrize(
    ("cards", "policy", "count", "expected"),
    [
        ([card("B0", healthy=False)], "spread", 1, "1/1 CardNotHealth"),
        ([card("B0", used=2)], "spread", 1, "1/1 CardTimeSlicingExhausted"),
        ([card("B0", used=1)], "mutex", 1, "1/1 ExclusiveDeviceAllocateConflict"),
        ([card("B0")], "spread", 2, "NodeInsufficientDevice"),
    ],
)
def test_refusals(vendor: Biren, cards: list[Card], policy: str, count: int, expected: str) -> None:
    assert VendorNode(vendor, cards, policy).refusal(**{GPU: count}) == expected


def test_numa_binding_takes_the_first_numa_node_that_has_enough(vendor: Biren) -> None:
    cards = [card("B0", numa=0), card("B1", numa=1), card("B2", numa=1)]
    assert VendorNode(vendor, cards).indexes(**{GPU: 2}) == [0, 1]
    assert VendorNode(vendor, cards, numa_bind=True).indexes(**{GPU: 2}) == [1, 2]
    assert VendorNode(vendor, cards, numa_bind=True).refusal(**{GPU: 3}) == (
        "1/3 NumaNotFit, 2/3 AllocatedCardsInsufficientRequest"
    )
