from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Use
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import NodeProblem, ResourceNames, Switches
from tessera.vendors.drafts import BadRequest, Denied, Resources
from tessera.vendors.enflame import (
    CAPACITY,
    CHART,
    CORES_NAME,
    DRS_NAME,
    FAMILY,
    MEMORY_NAME,
    Drs,
    DrsRequest,
    Gcu,
    profiles_of,
)
from tests.support.vendor_cases import NOW_NS, VendorNode, devices, mutated, node, taken

GCU, DRS, MEM, CORES = "enflame.com/gcu", DRS_NAME, MEMORY_NAME, CORES_NAME
PROFILES = {"1g.8gb": "0", "3g.24gb": "2", "6g.48gb": "5"}


@pytest.fixture
def gcu() -> Gcu:
    return Gcu(ResourceNames(count=GCU))


@pytest.fixture
def drs() -> Drs:
    return Drs(ResourceNames(count=DRS, memory=MEM, cores=CORES))


def offering(count: int = 1, **changes: Any) -> Any:
    cards = [{"index": str(i), "minor": str(7 + i), "capacity": 6} for i in range(count)]
    return node(annotations={CAPACITY: json.dumps({"devices": cards, "profiles": PROFILES} | changes)})


def cards(count: int = 1, **use: Any) -> list[Card]:
    """Cards of six slices; the use is that of the first."""
    vendor = Drs(ResourceNames(count=DRS, memory=MEM, cores=CORES))
    first, *rest = devices(vendor, offering(count))
    return [Card(first, **use), *map(Card, rest)]


# -- configuration


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ({}, [(), ()]),
        ({"resourceNameGCUMemory": MEM}, [(), (DRS, MEM, CORES)]),
        ({"resourceNameVGCU": "enflame.com/vgcu"}, [(), ("enflame.com/vgcu", MEM, CORES)]),
        (
            {
                "resourceNameGCU": "a/gcu",
                "resourceNameDRSGCU": "a/drs",
                "resourceNameVGCU": "a/vgcu",
                "resourceNameVGCUPercentage": "a/percent",
                "resourceNameGCUMemory": "a/mem",
                "resourceNameGCUCore": "a/core",
            },
            [("a/gcu",), ("a/drs", "a/mem", "a/core")],
        ),
    ],
)
def test_names_fall_back(section: dict[str, str], names: list[tuple[str, ...]]) -> None:
    built = FAMILY.build(msgspec.convert(section, FAMILY.schema), Switches())
    assert [vendor.names.all for vendor in built] == names
    assert [vendor.key for vendor in built] == ["GCU", "Enflame"]


def test_the_chart_names_everything() -> None:
    assert [vendor.names.all for vendor in FAMILY.build(CHART, Switches())] == [(GCU,), (DRS, MEM, CORES)]


# -- whole cards


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({GCU: 1}, Request("GCU", 1, memory=100, percent=100, cores=100)), ({GCU: 0}, None), ({}, None)],
)
def test_a_request_for_whole_cards(gcu: Gcu, limits: dict[str, Any], expected: Request | None) -> None:
    assert gcu.request(Resources(limits=limits)) == expected
    assert mutated(gcu, limits)[0] is (GCU in limits)


def test_whole_cards_follow_from_the_capacity(gcu: Gcu) -> None:
    assert devices(gcu, node(capacity={GCU: "2"})) == tuple(
        Device(f"n1-GCU-{i}", "GCU", i, 1, 100, 100, "GCU") for i in range(2)
    )
    assert devices(gcu, node(capacity={GCU: 0})) == ()
    assert isinstance(gcu.devices(node(capacity={GCU: "1Ti"})), NodeProblem)
    assert isinstance(gcu.request(Resources(limits={GCU: "1m"})), BadRequest)


def test_only_unused_cards_are_given_whole(gcu: Gcu) -> None:
    found = devices(gcu, node(capacity={GCU: 3}))
    world = VendorNode(gcu, [Card(found[0], used=1), Card(found[1]), Card(found[2])])
    text = "n1-GCU-1,GCU,100,100:n1-GCU-2,GCU,100,100:;"
    assert world.written(world.grants(**{GCU: 2})) == {
        "hami.io/enflame-gcu-devices-to-allocate": text,
        "hami.io/enflame-gcu-devices-allocated": text,
    }
    assert world.refusal(**{GCU: 3}) == "1/3 ExclusiveDeviceAllocateConflict, 2/3 AllocatedCardsInsufficientRequest"


# -- partitions: requests


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({DRS: 3}, DrsRequest("Enflame", 1, size=3)),
        ({DRS: 3, MEM: 8}, DrsRequest("Enflame", 1, size=3)),
        ({MEM: 8}, DrsRequest("Enflame", 1, memory=8)),
        ({CORES: 50}, DrsRequest("Enflame", 1, cores=50)),
        ({MEM: 8192, CORES: 17}, DrsRequest("Enflame", 1, memory=8192, cores=17)),
        ({}, None),
    ],
)
def test_a_request_for_a_partition(drs: Drs, limits: dict[str, Any], expected: Request | None) -> None:
    for resources in (Resources(limits=limits), Resources(requests=limits)):
        assert drs.request(resources) == expected
    answer, draft = mutated(drs, {}, limits)
    assert answer is (expected is not None)
    counted = {name: value for name, value in limits.items() if DRS not in limits or name == DRS}
    assert draft.limits == counted
    assert mutated(drs, limits)[1].requests == counted


@pytest.mark.parametrize(
    ("limits", "denied"),
    [
        ({DRS: 0}, f"{DRS} must be greater than 0"),
        ({DRS: -1}, f"{DRS} must be greater than 0"),
        ({MEM: 0}, f"{MEM} must be greater than 0"),
        ({CORES: 0}, f"{CORES} must be in range (0,100]"),
        ({MEM: 8, CORES: 101}, f"{CORES} must be in range (0,100]"),
        ({DRS: "500m"}, None),
        ({MEM: "24Gi"}, None),
        ({CORES: "1500m"}, None),
    ],
)
def test_amounts_that_cannot_be_honoured(drs: Drs, limits: dict[str, Any], denied: str | None) -> None:
    assert mutated(drs, limits)[0] == (True if denied is None else Denied(denied))
    assert isinstance(drs.request(Resources(limits=limits)), BadRequest)


def test_the_advice_for_memory_with_a_unit_is_a_number_that_works(drs: Drs) -> None:
    answer = drs.request(Resources(limits={MEM: "24Gi"}))
    assert isinstance(answer, BadRequest)
    assert "such as 24576" in answer.text


# -- partitions: nodes


def test_cards_offer_what_the_annotation_says(drs: Drs) -> None:
    (found,) = devices(drs, offering())
    assert (found.uuid, found.index, found.slots, found.memory, found.cores) == (
        "n1-enflame-drs-0", 0, 6, 49152, 100,
    )  # fmt: skip
    assert [profile.name for profile in profiles_of(found)] == ["1g.8gb", "3g.24gb", "6g.48gb"]
    assert (found.custom["minor"], found.custom["index"]) == ("7", "0")


@pytest.mark.parametrize("capacity", [6, "6", " 6 ", 6.0])
def test_a_capacity_may_be_written_as_text(drs: Drs, capacity: Any) -> None:
    (found,) = devices(drs, offering(devices=[{"index": 4, "capacity": capacity}]))
    assert (found.slots, found.index, found.custom["minor"]) == (6, 4, "4")


def test_a_card_without_a_readable_index_has_its_position(drs: Drs) -> None:
    found = devices(drs, offering(devices=[{"index": "0", "capacity": 1}, {"index": "x", "capacity": 1}]))
    assert [device.index for device in found] == [0, 1]


def test_names_that_are_no_profiles_are_left_out(drs: Drs) -> None:
    odd = {"": "1", "3g": "2", "0g.8gb": "3", "1g.0gb": "4", "101g.8gb": "5", "1g.8gb.me": "6", " 2G.16GB ": 7}
    (found,) = devices(drs, offering(profiles=odd))
    assert [(p.size, p.memory, p.id) for p in profiles_of(found)] == [(2, 16384, "7")]


@pytest.mark.parametrize("text", ["", "  ", '{"devices":[]}', "{}"])
def test_no_offer_is_no_card(drs: Drs, text: str) -> None:
    assert devices(drs, node(annotations={CAPACITY: text})) == ()
    assert devices(drs, node()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "nonsense",
        '{"devices":' + "[" * 100_000,
        '{"devices":[{"index":"0","capacity":6}]}',
        '{"devices":[{"index":"0","capacity":0}],"profiles":{"1g.8gb":"0"}}',
        '{"devices":[{"index":"0"}],"profiles":{"1g.8gb":"0"}}',
        '{"devices":[{"index":"0","capacity":1.5}],"profiles":{"1g.8gb":"0"}}',
        '{"devices":[{"index":"0","capacity":-6}],"profiles":{"1g.8gb":"0"}}',
        '{"devices":[{"index":"0","capacity":1e300}],"profiles":{"1g.8gb":"0"}}',
        '{"devices":[{"index":"0","capacity":"²"}],"profiles":{"1g.8gb":"0"}}',
        '{"devices":[{"index":"0","capacity":1},{"index":"0","capacity":1}],"profiles":{"1g.8gb":"0"}}',
        json.dumps({"devices": [{"index": i, "capacity": 1} for i in range(1025)], "profiles": {"1g.8gb": "0"}}),
    ],
    ids=range(13),
)
def test_an_offer_that_cannot_be_read_is_a_problem(drs: Drs, text: str) -> None:
    found = drs.devices(node(annotations={CAPACITY: text}))
    assert isinstance(found, NodeProblem)
    assert CAPACITY in found.text
    assert len(found.text) < 500


# -- partitions: fitting


@pytest.mark.parametrize(
    ("limits", "slots", "memory", "cores"),
    [
        ({DRS: 1}, 1, 8192, 17),
        ({DRS: 3}, 3, 24576, 50),
        ({DRS: 6}, 6, 49152, 100),
        ({MEM: 8}, 1, 8192, 17),
        ({MEM: 9}, 3, 24576, 50),
        ({MEM: 48}, 6, 49152, 100),
        ({MEM: 8192}, 1, 8192, 17),
        ({MEM: 97}, 1, 8192, 17),
        ({MEM: 8193}, 3, 24576, 50),
        ({CORES: 17}, 1, 8192, 17),
        ({CORES: 18}, 3, 24576, 50),
        ({MEM: 8, CORES: 51}, 6, 49152, 100),
    ],
)
def test_the_smallest_profile_that_does(drs: Drs, limits: dict[str, Any], slots: int, memory: int, cores: int) -> None:
    world = VendorNode(drs, cards())
    (grant,) = world.grants(**limits)
    assert (grant.slots, grant.memory, grant.cores) == (slots, memory, cores)
    (after,) = taken(drs, world.cards, (grant,))
    assert (after.used, after.used_memory, after.used_cores) == (slots, memory, cores)


@pytest.mark.parametrize("limits", [{DRS: 2}, {MEM: 49}, {MEM: 49153}, {DRS: 2**31 - 1}])
def test_no_profile_does(drs: Drs, limits: dict[str, Any]) -> None:
    assert VendorNode(drs, cards(2)).refusal(**limits) == "2/2 ModeNotFit"


@pytest.mark.parametrize(
    ("use", "policy", "limits", "expected"),
    [
        ({"used": 4}, "spread", {DRS: 3}, "1/1 CardTimeSlicingExhausted"),
        ({"used": 1}, "mutex", {DRS: 1}, "1/1 ExclusiveDeviceAllocateConflict"),
        ({"used_memory": 49152}, "spread", {DRS: 1}, "1/1 CardInsufficientMemory"),
        ({"used_cores": 84}, "spread", {DRS: 1}, "1/1 CardInsufficientCore"),
    ],
)
def test_refusals(drs: Drs, use: dict[str, int], policy: str, limits: dict[str, Any], expected: str) -> None:
    assert VendorNode(drs, cards(**use), policy).refusal(**limits) == expected


def test_two_halves_fill_a_card(drs: Drs) -> None:
    world = VendorNode(drs, cards())
    half = taken(drs, world.cards, world.grants(**{DRS: 3}))
    full = taken(drs, half, VendorNode(drs, half).grants(**{DRS: 3}))
    assert [card.used for card in full] == [6]
    assert VendorNode(drs, full).refusal(**{DRS: 1}) == "1/1 CardTimeSlicingExhausted"


def test_lists_of_uuids_and_quotas(drs: Drs) -> None:
    wishes = {"enflame.com/nouse-gpuuuid": "n1-enflame-drs-0"}
    assert VendorNode(drs, cards(2), annotations=wishes).indexes(**{DRS: 1}) == [1]
    assert VendorNode(drs, cards(), room=QuotaRoom(memory=8191)).refusal(**{DRS: 1}) == "1/1 ResourceQuotaNotFit"
    assert (drs.quota_memory, drs.quota_cores) == (MEM, CORES)


@pytest.mark.parametrize(
    ("memory", "cores", "slots"),
    [
        (24576, 50, 3),
        (24576, 17, 3),
        (100, 50, 3),
        (50000, 0, 6),
        (0, 0, 1),
    ],
)
def test_slices_of_a_grant_that_no_profile_matches_any_more(drs: Drs, memory: int, cores: int, slots: int) -> None:
    (card,) = cards()
    grant = Grant(card.device.uuid, "Enflame", memory, cores)
    assert drs.charge(card.device, grant) == Use(slots, memory, cores)


def test_a_card_without_profiles_still_counts_a_slice(drs: Drs) -> None:
    assert drs.charge(Device("u", "Enflame"), Grant("u", "Enflame", 8192, 17)) == Use(1, 8192, 17)


def test_the_most_that_a_request_can_take_is_the_card(drs: Drs) -> None:
    assert DrsRequest("Enflame", 1, memory=8).memory_on(49152) == 49152


def test_a_plain_request_names_memory_and_cores(drs: Drs) -> None:
    answer = VendorNode(drs, cards()).fit(Request("Enflame", 1, memory=8, cores=20))
    assert not isinstance(answer, Misfit)
    assert [grant.slots for grant in answer] == [3]


# -- partitions: binding


def test_a_partition_is_written_down_for_the_plugin(drs: Drs) -> None:
    world = VendorNode(drs, cards())
    small, half = world.grants(**{DRS: 1}), world.grants(**{DRS: 3})
    assert world.written((), half, small) == {
        "hami.io/enflame-vgpu-devices-allocated": (
            ";n1-enflame-drs-0,Enflame,24576,50:;n1-enflame-drs-0,Enflame,8192,17:;"
        ),
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": NOW_NS,
        "enflame.com/gcu-assigned-index": "0",
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-minor": "7",
        "enflame.com/gcu-request-size": "3",
        "assigned-containers": (
            '{"c1":{"allocated":false,"request":3,"profileID":"2","profileName":"3g.24gb"},'
            '"c2":{"allocated":false,"request":1,"profileID":"0","profileName":"1g.8gb"}}'
        ),
    }


def test_a_profile_without_an_id_is_written_without_one(drs: Drs) -> None:
    (device,) = devices(drs, offering(profiles={"1g.8gb": ""}))
    world = VendorNode(drs, [Card(device)])
    assert world.written(world.grants(**{DRS: 1}))["assigned-containers"] == (
        '{"c0":{"allocated":false,"request":1,"profileName":"1g.8gb"}}'
    )


def test_a_binding_without_partitions_says_nothing_about_them(drs: Drs) -> None:
    assert VendorNode(drs, []).written(()) == {"hami.io/enflame-vgpu-devices-allocated": ";"}
