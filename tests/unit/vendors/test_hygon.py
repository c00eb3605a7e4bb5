from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant
from tessera.core.model.requests import Request
from tessera.vendors.base import NodeProblem
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.hygon import CHART, Hygon
from tests.support.vendor_cases import VendorNode, devices, mutated, node

DCU = "hygon.com/dcunum"
MEM = "hygon.com/dcumem"
CORES = "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"


@pytest.fixture
def vendor() -> Hygon:
    return Hygon(CHART)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({DCU: 1}, Request("DCU", 1, percent=100, cores=100)),
        ({DCU: "2", MEM: "4000", CORES: "20"}, Request("DCU", 2, memory=4000, cores=20)),
        ({DCU: 0}, None),
        ({MEM: 4000}, None),
    ],
)
def test_a_request(vendor: Hygon, limits: dict[str, Any], expected: Request | None) -> None:
    assert vendor.request(Resources(limits=limits)) == expected


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        ({DCU: -1}, "whole number from 0"),
        ({DCU: 2**31}, "2147483647"),
        ({DCU: 1, MEM: "2Gi"}, "such as 2048"),
        ({DCU: 1, CORES: "1m"}, "whole number"),
    ],
)
def test_an_amount_that_cannot_be_honoured(vendor: Hygon, limits: dict[str, Any], advice: str) -> None:
    answer = vendor.request(Resources(limits=limits))
    assert isinstance(answer, BadRequest)
    assert advice in answer.text


@pytest.mark.parametrize(("factor", "memory"), [(0, 4), (1, 4), (1024, 4096)])
def test_a_memory_factor_scales_requests_and_quotas(factor: int, memory: int) -> None:
    vendor = Hygon(msgspec.structs.replace(CHART, memory_factor=factor))
    assert vendor.quota_factor == max(factor, 1)
    assert vendor.request(Resources(limits={DCU: 1, MEM: 4})) == Request("DCU", 1, memory=memory, cores=100)


def test_admission_only_detects(vendor: Hygon) -> None:
    answer, draft = mutated(vendor, {DCU: 1})
    assert (answer, draft.limits, draft.requests) == (True, {DCU: 1}, {})


def test_cards_come_from_the_text_registration(vendor: Hygon) -> None:
    assert vendor.devices(
        node(annotations={REGISTER: "DCU-0,4,16384,100,DCU-Z100,0,true:DCU-1,4,16384,100,DCU-Z100,1,false:"})
    ) == (
        Device("DCU-0", "DCU", slots=4, memory=16384, model="DCU-Z100", mode="hami-core"),
        Device("DCU-1", "DCU", slots=4, memory=16384, model="DCU-Z100", mode="hami-core", numa=1, healthy=False),
    )


def test_cards_come_from_a_json_registration_too(vendor: Hygon) -> None:
    cards = devices(
        vendor, node(annotations={REGISTER: '[{"id":"DCU-0","count":4,"devmem":16384,"devcore":100,"health":true}]'})
    )
    assert [(card.uuid, card.vendor, card.healthy) for card in cards] == [("DCU-0", "DCU", True)]


def test_an_unreadable_registration_is_a_problem_of_the_node(vendor: Hygon) -> None:
    problem = vendor.devices(node(annotations={REGISTER: "DCU-0,four,16384,100,DCU-Z100,0,true:"}))
    assert isinstance(problem, NodeProblem)
    assert problem.text.startswith(f"{REGISTER}: invalid count field")


def test_a_pod_says_which_cards_it_accepts(vendor: Hygon) -> None:
    constraint = vendor.constraint(
        {
            "hygon.com/use-dcutype": "Z100",
            "hygon.com/nouse-dcutype": "K100",
            "hygon.com/use-gpuuuid": "DCU-0",
            "hygon.com/nouse-gpuuuid": "DCU-1",
        }
    )
    assert vendor.accepts_model(Device("DCU-0", "DCU", model="DCU-Z100"), constraint)
    assert not vendor.accepts_model(Device("DCU-0", "DCU", model="DCU-K100"), constraint)
    assert vendor.accepts_uuid("DCU-0", constraint)
    assert not vendor.accepts_uuid("DCU-1", constraint)


def test_grants_are_written_in_both_annotations(vendor: Hygon) -> None:
    assert VendorNode(vendor, []).written((), (Grant("DCU-0", "DCU", 4000, 20),)) == {
        "hami.io/dcu-devices-to-allocate": ";DCU-0,DCU,4000,20:;",
        "hami.io/dcu-devices-allocated": ";DCU-0,DCU,4000,20:;",
    }
