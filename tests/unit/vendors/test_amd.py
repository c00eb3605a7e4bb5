from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.amd import CHART, FAMILY, Amd, compute_units
from tessera.vendors.base import NodeProblem, Switches
from tessera.vendors.drafts import BadRequest, Denied, Resources
from tessera.wire.pod_devices import decode_pod_devices
from tests.support.vendor_cases import VendorNode, devices, mutated, node, taken, warnings

GPU, MEM, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
REGISTER = "hami.io/node-amd-register"
MODEL = "AMD Instinct MI300X"


@pytest.fixture
def vendor() -> Amd:
    return Amd(CHART.names)


def card(index: int, *, units: int = 304, model: str = MODEL, healthy: bool = True, **use: Any) -> Card:
    return Card(Device(f"G{index}", "AMD", index, 4, 196608, units, model, healthy=healthy), **use)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, Request("AMD", 1, percent=100, cores=100)),
        ({GPU: 2, MEM: 4000, CORES: 25}, Request("AMD", 2, memory=4000, cores=25)),
        ({GPU: 0, CORES: 500}, None),
        ({MEM: 4000}, None),
    ],
)
def test_a_request(vendor: Amd, limits: dict[str, Any], expected: Request | None) -> None:
    assert vendor.request(Resources(limits=limits)) == expected
    assert vendor.request(Resources(requests=limits)) is None


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        ({GPU: -1}, "whole number"),
        ({GPU: 1, MEM: "2Gi"}, "such as 2048"),
        ({GPU: 1, CORES: 0}, "whole number of per cent from 1 to 100"),
        ({GPU: 1, CORES: 101}, "whole number of per cent from 1 to 100"),
    ],
)
def test_an_amount_that_cannot_be_honoured(vendor: Amd, limits: dict[str, Any], advice: str) -> None:
    answer = vendor.request(Resources(limits=limits))
    assert isinstance(answer, BadRequest)
    assert advice in answer.text


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, True),
        ({GPU: 1, CORES: 100}, True),
        ({GPU: 1, CORES: 0}, Denied(f"{CORES} must be an integer percentage between 1 and 100")),
        ({GPU: 1, CORES: "1500m"}, Denied(f"{CORES} must be an integer percentage between 1 and 100")),
        ({CORES: 0}, False),
        ({}, False),
    ],
)
def test_admission(vendor: Amd, limits: dict[str, Any], expected: bool | Denied) -> None:
    answer, draft = mutated(vendor, limits)
    assert answer == expected
    assert draft.limits == limits


@pytest.mark.parametrize("name", [MEM, CORES])
def test_an_amount_without_a_card_is_said_to_leave_the_pod_pending(vendor: Amd, name: str) -> None:
    [warning] = warnings(vendor, {name: 50})
    assert warning == (
        f"{name} without {GPU} gives no slice, and the default scheduler leaves the pod pending unless a node offers "
        f"{name} itself: add {GPU}"
    )


def registration() -> dict[str, str]:
    text = f'[{{"id":"G0","index":3,"count":4,"devmem":196608,"devcore":304,"type":"{MODEL}","health":true}}]'
    return {REGISTER: text}


@pytest.mark.parametrize("capacity", [None, {GPU: "0"}])
def test_cards_whose_plugin_is_gone_do_not_count(vendor: Amd, capacity: dict[str, Any] | None) -> None:
    assert devices(vendor, node(capacity=capacity, annotations=registration())) == ()


def test_registered_cards(vendor: Amd) -> None:
    expected = (Device("G0", "AMD", 3, 4, 196608, 304, MODEL),)
    assert devices(vendor, node(capacity={GPU: 8}, annotations=registration())) == expected
    nameless = FAMILY.build(msgspec.convert({}, FAMILY.schema), Switches())[0]
    assert devices(nameless, node(annotations=registration())) == expected


@pytest.mark.parametrize(
    "broken", [node(capacity={GPU: "x"}), node(capacity={GPU: 1}, annotations={REGISTER: "nonsense"})]
)
def test_what_cannot_be_read_is_a_problem(vendor: Amd, broken: Any) -> None:
    assert isinstance(vendor.devices(broken), NodeProblem)


@pytest.mark.parametrize(
    ("total", "percent", "expected"),
    [(304, 100, 304), (304, 50, 152), (304, 1, 3), (60, 1, 1), (0, 100, 1), (100, 150, 100)],
)
def test_compute_units(total: int, percent: int, expected: int) -> None:
    assert compute_units(total, percent) == expected


@pytest.mark.parametrize(
    ("limits", "model", "expected"),
    [
        ({GPU: 1}, MODEL, f"G0,{MODEL},196608,304:;"),
        ({GPU: 1, MEM: 1000, CORES: 50}, MODEL, f"G0,{MODEL},1000,152:;"),
        ({GPU: 1, MEM: 1000}, "", "G0,AMD,1000,304:;"),
        ({GPU: 1, MEM: 1000}, "AMD", "G0,AMD,1000,304:;"),
        ({GPU: 1, MEM: 1000}, "AMD, the best; one:", "G0,AMD,1000,304:;"),
    ],
)
def test_the_model_and_compute_units_are_written_down(
    vendor: Amd, limits: dict[str, Any], model: str, expected: str
) -> None:
    world = VendorNode(vendor, [card(0, model=model)])
    grants = world.grants(**limits)
    written = world.written(grants)
    assert written == {"hami.io/amd-devices-to-allocate": expected, "hami.io/amd-devices-allocated": expected}
    (entry,) = decode_pod_devices(expected)[0]
    assert vendor.decode(entry).word == grants[0].word


def test_a_replay_charges_what_was_granted(vendor: Amd) -> None:
    cards = [card(0)]
    (after,) = taken(vendor, cards, VendorNode(vendor, cards).grants(**{GPU: 1, MEM: 1000, CORES: 50}))
    assert (after.used, after.used_memory, after.used_cores) == (1, 1000, 152)


@pytest.mark.parametrize(
    ("cards", "limits", "expected"),
    [
        ([card(0, healthy=False)], {GPU: 1}, "1/1 CardNotHealth"),
        ([card(0, used=4)], {GPU: 1}, "1/1 CardTimeSlicingExhausted"),
        ([card(0, used=1, used_memory=1, used_cores=1)], {GPU: 1}, "1/1 CardInsufficientMemory"),
        ([card(0, used=1, used_cores=153)], {GPU: 1, MEM: 1, CORES: 50}, "1/1 CardInsufficientCore"),
        ([card(0, used=1)], {GPU: 1, MEM: 1}, "1/1 ExclusiveDeviceAllocateConflict"),
        ([card(0, units=0)], {GPU: 1}, "1/1 CardInsufficientCore"),
    ],
)
def test_refusals(vendor: Amd, cards: list[Card], limits: dict[str, Any], expected: str) -> None:
    assert VendorNode(vendor, cards).refusal(**limits) == expected


def test_lists_of_models_and_uuids(vendor: Amd) -> None:
    cards = [card(0), card(1, model="Radeon"), card(2)]
    wishes = {"amd.com/use-gputype": "mi300", "amd.com/nouse-gpu-uuid": "G2"}
    assert VendorNode(vendor, cards, annotations=wishes).refusal(**{GPU: 2}) == (
        "1/3 AllocatedCardsInsufficientRequest, 1/3 CardTypeMismatch, 1/3 CardUuidMismatch"
    )


def test_the_mutex_policy_wants_unused_cards(vendor: Amd) -> None:
    world = VendorNode(vendor, [card(0, used=1, used_cores=1)], "mutex")
    assert world.refusal(**{GPU: 1, MEM: 1, CORES: 1}) == "1/1 ExclusiveDeviceAllocateConflict"


@pytest.mark.parametrize(
    ("room", "numa_bind", "count", "expected"),
    [
        (QuotaRoom(memory=999), False, 1, "2/2 ResourceQuotaNotFit"),
        (QuotaRoom(memory=1999), False, 2, "1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"),
        (QuotaRoom(cores=5), False, 2, "2/2 ResourceQuotaNotFit"),
    ],
)
def test_quotas(vendor: Amd, room: QuotaRoom, numa_bind: bool, count: int, expected: str) -> None:
    world = VendorNode(vendor, [card(0), card(1)], numa_bind=numa_bind, room=room)
    assert world.refusal(**{GPU: count, MEM: 1000, CORES: 5}) == expected


def test_a_quota_for_one_card_is_used_on_a_card_that_it_pays(vendor: Amd) -> None:
    large, small = card(0), Card(Device("G1", "AMD", 1, 4, 1000, 304))
    assert VendorNode(vendor, [large, small], room=QuotaRoom(memory=2000)).indexes(**{GPU: 1}) == [1]
