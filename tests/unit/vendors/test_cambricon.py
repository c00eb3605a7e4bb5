from __future__ import annotations

from typing import Any

import pytest

from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import NodeProblem
from tessera.vendors.cambricon import FAMILY, Cambricon
from tessera.vendors.drafts import BadRequest, Resources
from tests.support.vendor_cases import VendorNode, devices, mutated, node

MLU = "cambricon.com/vmlu"
MEM = "cambricon.com/mlu.smlu.vmemory"
CORES = "cambricon.com/mlu.smlu.vcore"
DEVICES = ("hami.io/cambricon-mlu-devices-to-allocate", "hami.io/cambricon-mlu-devices-allocated")


@pytest.fixture
def vendor() -> Cambricon:
    return Cambricon(FAMILY.chart.names)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({MLU: 1, MEM: 4, CORES: 10}, Request("MLU", 1, memory=1024, cores=10)),
        ({MLU: "1"}, Request("MLU", 1, percent=100, cores=100)),
        ({MLU: 2, MEM: 0}, Request("MLU", 2, percent=100, cores=100)),
        ({MLU: 1, CORES: 0}, Request("MLU", 1, percent=100, cores=0)),
        ({MLU: 0, MEM: 4}, None),
        ({MEM: 4}, None),
        ({}, None),
    ],
)
def test_a_request(vendor: Cambricon, limits: dict[str, Any], expected: Request | None) -> None:
    assert vendor.request(Resources(limits=limits)) == expected
    assert vendor.request(Resources(requests=limits)) == expected


@pytest.mark.parametrize(
    ("limits", "resource"),
    [
        ({MLU: -1}, MLU),
        ({MLU: "1500m"}, MLU),
        ({MLU: 1, MEM: "4Gi"}, MEM),
        ({MLU: 1, MEM: -4}, MEM),
        ({MLU: 1, CORES: "0.5"}, CORES),
    ],
)
def test_an_amount_that_cannot_be_honoured(vendor: Cambricon, limits: dict[str, Any], resource: str) -> None:
    answer = vendor.request(Resources(limits=limits))
    assert isinstance(answer, BadRequest)
    assert answer.resource == resource


def test_advice_on_memory_names_the_unit(vendor: Cambricon) -> None:
    answer = vendor.request(Resources(limits={MLU: 1, MEM: "4Gi"}))
    assert isinstance(answer, BadRequest)
    assert "units of 256 MiB" in answer.advice


def test_admission_only_detects(vendor: Cambricon) -> None:
    answer, draft = mutated(vendor, {MLU: 1})
    assert (answer, draft.limits, draft.requests) == (True, {MLU: 1}, {})
    assert mutated(vendor, {}, {MLU: 1})[0] is False


@pytest.mark.parametrize(
    ("capacity", "count", "memory"),
    [
        ({CORES: "200", MEM: "640"}, 2, 81920),
        ({CORES: 250, MEM: 640}, 3, 65536),
        ({CORES: 100}, 1, 0),
    ],
)
def test_cards_follow_from_the_capacity(vendor: Cambricon, capacity: dict[str, Any], count: int, memory: int) -> None:
    assert vendor.devices(node(capacity=capacity)) == tuple(
        Device(f"n1-cambricon-mlu-{i}", "MLU", index=i, slots=100, memory=memory, cores=100, model="MLU")
        for i in range(count)
    )


@pytest.mark.parametrize(
    ("capacity", "resource"),
    [
        ({CORES: "-100", MEM: 640}, CORES),
        ({CORES: "many", MEM: 640}, CORES),
        ({CORES: 100, MEM: "1500m"}, MEM),
        ({CORES: 2**31 - 1, MEM: 640}, CORES),
        ({CORES: 100, MEM: 2**31 - 1}, MEM),
    ],
)
def test_a_capacity_that_cannot_be_true_is_a_problem_of_the_node(
    vendor: Cambricon, capacity: dict[str, Any], resource: str
) -> None:
    problem = vendor.devices(node(capacity=capacity))
    assert isinstance(problem, NodeProblem)
    assert resource in problem.text


def test_a_share_is_written_for_the_agent_of_cambricon(vendor: Cambricon) -> None:
    _, card = devices(vendor, node(capacity={CORES: 200, MEM: 640}))
    world = VendorNode(vendor, [Card(card)])
    text = "n1-cambricon-mlu-1,MLU,1024,10:;"
    assert world.written(world.grants(**{MLU: 1, MEM: 4, CORES: 10})) == {
        DEVICES[0]: text,
        DEVICES[1]: text,
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_ASSIGHED": "false",
        "CAMBRICON_DSMLU_PROFILE": "1_10_4",
    }


def test_the_profile_is_that_of_the_first_container_with_a_card(vendor: Cambricon) -> None:
    first = Grant("n1-cambricon-mlu-0", "MLU", 2560, 20)
    second = Grant("n1-cambricon-mlu-1", "MLU", 256, 5, index=1)
    assert VendorNode(vendor, []).written((), (first,), (second,))["CAMBRICON_DSMLU_PROFILE"] == "0_20_10"


def test_a_pod_without_a_card_has_no_profile(vendor: Cambricon) -> None:
    assert VendorNode(vendor, []).written(()) == dict.fromkeys(DEVICES, ";")
