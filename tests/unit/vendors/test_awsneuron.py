from __future__ import annotations

from typing import Any

import pytest

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.model.devices import Device
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.awsneuron import CHART, Neuron, NeuronRequest
from tessera.vendors.base import NodeProblem, ResourceNames
from tessera.vendors.drafts import BadRequest, Denied, Resources
from tests.support import builders
from tests.support.vendor_cases import NOW_NS, VendorNode, devices, mutated, node, taken

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
LABEL = "node.kubernetes.io/instance-type"


@pytest.fixture
def vendor() -> Neuron:
    return Neuron(CHART.names)


def cards(count: int, per_device: int = 2, *, instance: str = "inf2.48xlarge", **masks: int) -> list[Card]:
    """Devices in the order of their indexes; `d1=2` means that device 1 has its second core in use."""
    found = devices(
        Neuron(CHART.names), node(capacity={DEVICE: count, CORE: count * per_device}, labels={LABEL: instance})
    )
    used = {index: masks.get(f"d{index}", 0) for index in range(count)}
    return [Card(d, used=used[d.index].bit_count(), used_cores=used[d.index]) for d in found]


# -- requests


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({CORE: 1}, NeuronRequest("AWSNeuron", 1, cores=1)),
        ({CORE: 2}, NeuronRequest("AWSNeuron", 1, cores=2)),
        ({CORE: 4}, NeuronRequest("AWSNeuron", 2, cores=2)),
        ({DEVICE: 3}, NeuronRequest("AWSNeuron", 3, cores=2, whole=True)),
        ({DEVICE: 1, CORE: 3}, NeuronRequest("AWSNeuron", 1, cores=2, whole=True)),
        ({}, None),
    ],
)
def test_a_request(vendor: Neuron, limits: dict[str, Any], expected: Request | None) -> None:
    for resources in (Resources(limits=limits), Resources(requests=limits)):
        assert vendor.request(resources) == expected
    assert mutated(vendor, limits)[0] is (expected is not None)
    assert mutated(vendor, {}, limits)[0] is (expected is not None)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({CORE: 3}, f"{CORE} must be 1 or a multiple of 2, got 3"),
        ({CORE: 0}, f"{CORE} must be greater than 0"),
        ({CORE: "500m"}, f"{CORE} must be an integer"),
        ({CORE: 2**32}, f"{CORE} must not exceed {2**32 - 2}"),
        ({DEVICE: -1}, f"{DEVICE} must be greater than 0"),
        ({DEVICE: "x"}, f"{DEVICE} must be an integer"),
        ({DEVICE: 2**31}, f"{DEVICE} must not exceed {2**31 - 1}"),
    ],
)
def test_a_number_that_cannot_be_honoured_is_refused_at_admission(
    vendor: Neuron, limits: dict[str, Any], text: str
) -> None:
    assert mutated(vendor, limits)[0] == Denied(text)
    assert isinstance(vendor.request(Resources(limits=limits)), BadRequest)


@pytest.mark.parametrize(
    ("request_", "per_device", "expected"),
    [
        (NeuronRequest("AWSNeuron", 1, cores=1), 4, (1, 1)),
        (NeuronRequest("AWSNeuron", 2, cores=2), 4, (1, 4)),
        (NeuronRequest("AWSNeuron", 4, cores=2), 4, (2, 4)),
        (NeuronRequest("AWSNeuron", 3, cores=2), 4, None),
        (NeuronRequest("AWSNeuron", 1, cores=2), 1, (2, 1)),
        (NeuronRequest("AWSNeuron", 3, cores=2, whole=True), 8, (3, 8)),
    ],
)
def test_what_a_request_is_on_devices_with_other_numbers_of_cores(
    request_: NeuronRequest, per_device: int, expected: tuple[int, int] | None
) -> None:
    assert request_.on(per_device) == expected


# -- nodes


def test_devices_follow_from_the_capacity_of_their_own_node(vendor: Neuron) -> None:
    small = node(capacity={DEVICE: "1", CORE: "4"}, labels={LABEL: "inf1.xlarge"})
    large = node(capacity={DEVICE: "2", CORE: "4"})
    assert devices(vendor, small) == (
        Device("n1-AWSNeuron-0", "AWSNeuron", 0, 4, 0, 15, "AWSNeuron", custom={"AWSNodeType": "inf1.xlarge"}),
    )
    assert [(d.uuid, d.index, d.slots, d.cores) for d in devices(vendor, large)] == [
        ("n1-AWSNeuron-0", 0, 2, 3),
        ("n1-AWSNeuron-1", 1, 2, 3),
    ]
    assert devices(vendor, node()) == ()


@pytest.mark.parametrize(
    "capacity",
    [
        {DEVICE: 2},
        {DEVICE: 2, CORE: 1},
        {DEVICE: 1, CORE: 32},
        {DEVICE: 10**6, CORE: 10**6},
        {DEVICE: "x"},
        {DEVICE: 1, CORE: -1},
    ],
)
def test_a_capacity_that_cannot_be_true_is_a_problem(vendor: Neuron, capacity: dict[str, Any]) -> None:
    assert isinstance(vendor.devices(node(capacity=capacity)), NodeProblem)


def test_without_a_name_for_cores_a_device_is_one_thing() -> None:
    vendor = Neuron(ResourceNames(count=DEVICE))
    (found,) = devices(vendor, node(capacity={DEVICE: 1, CORE: 2}))
    assert (found.slots, found.cores) == (1, 1)
    world = VendorNode(vendor, [Card(found)])
    assert world.written(world.grants(**{DEVICE: 1}))["AWS_NEURON_IDS"] == "0"


# -- fitting


def test_one_core_is_written_down_with_its_mask_and_its_id_on_the_node(vendor: Neuron) -> None:
    world = VendorNode(vendor, cards(2)[::-1])
    assert world.written(world.grants(**{CORE: 1})) == {
        "hami.io/aws-neuron-devices-allocated": "n1-AWSNeuron-1,AWSNeuron,0,1:;",
        "AWS_NEURON_IDS": "2",
        "NEURON_ALLOC_TIME": NOW_NS,
        "NEURON_ALLOCATED": "false",
        "NEURON_RESOURCE_TYPE": CORE,
        "aws.amazon.com/predicate-node": "n1",
    }


@pytest.mark.parametrize(
    ("world_cards", "limits", "masks", "ids"),
    [
        (cards(2, d0=1), {CORE: 1}, [2], "1"),
        (cards(2, d0=1), {CORE: 2}, [3], "2,3"),
        (cards(2, d0=1), {DEVICE: 1}, [3], "1"),
        (cards(2), {CORE: 4}, [3, 3], "0,1,2,3"),
        (cards(2), {DEVICE: 2}, [3, 3], "0,1"),
        (cards(1, 4, d0=0b0101), {CORE: 2}, [0b1010], "1,3"),
        (cards(2, 4), {CORE: 4}, [15], "0,1,2,3"),
        (cards(2, 4, d0=1), {DEVICE: 1}, [15], "1"),
        (cards(2, 1), {CORE: 2}, [1, 1], "0,1"),
        (cards(3, d0=1), {DEVICE: 2}, [3, 3], "1,2"),
        (cards(1, 8), {DEVICE: 1}, [255], "0"),
    ],
)
def test_cores_that_are_given(
    vendor: Neuron, world_cards: list[Card], limits: dict[str, Any], masks: list[int], ids: str
) -> None:
    world = VendorNode(vendor, world_cards)
    grants = world.grants(**limits)
    assert [grant.cores for grant in grants] == masks
    written = world.written((), grants)
    assert written["AWS_NEURON_IDS"] == ids
    assert ("NEURON_RESOURCE_TYPE" in written) is (CORE in limits)


def test_ids_of_all_containers_are_listed(vendor: Neuron) -> None:
    before = cards(2)
    first = VendorNode(vendor, before).grants(**{CORE: 1})
    after = taken(vendor, before, first)
    second = VendorNode(vendor, after).grants(**{CORE: 1})
    assert VendorNode(vendor, before).written(first, (), second)["AWS_NEURON_IDS"] == "0,1"
    assert [card.used_cores for card in taken(vendor, after, second)] == [3, 0]


def test_a_binding_without_devices_says_nothing_about_them(vendor: Neuron) -> None:
    assert VendorNode(vendor, []).written(()) == {"hami.io/aws-neuron-devices-allocated": ";"}


def test_a_large_mask_is_charged_as_it_is(vendor: Neuron) -> None:
    before = cards(1, 16)
    (after,) = taken(vendor, before, VendorNode(vendor, before).grants(**{DEVICE: 1}))
    assert (after.used, after.used_cores) == (1, 65535)


@pytest.mark.parametrize(
    ("instance", "count", "masks", "expected"),
    [
        ("inf2.48xlarge", 3, {"d1": 1}, [2, 3, 4]),
        ("Inf1", 2, {}, [0, 1]),
        ("trn1.32xlarge", 4, {"d1": 1}, [4, 5, 6, 7]),
        ("trn1.32xlarge", 8, {"d1": 1}, [8, 9, 10, 11, 12, 13, 14, 15]),
        ("trn1.32xlarge", 16, {}, list(range(16))),
        ("", 4, {}, [0, 1, 2, 3]),
    ],
)
def test_several_devices_are_unused_neighbours(
    vendor: Neuron, instance: str, count: int, masks: dict[str, int], expected: list[int]
) -> None:
    shuffled = sorted(cards(16, instance=instance, **masks), key=lambda card: card.device.index * 7 % 16)
    assert VendorNode(vendor, shuffled).indexes(**{DEVICE: count}) == expected


@pytest.mark.parametrize(
    ("world_cards", "limits", "expected"),
    [
        (cards(3, d1=1), {DEVICE: 2}, "1/3 ExclusiveDeviceAllocateConflict, 2/3 NumaNotFit"),
        (cards(4, instance="trn1.2xlarge"), {DEVICE: 2}, "4/4 NumaNotFit"),
        (cards(8, d0=1, d4=1, instance="trn1"), {DEVICE: 4}, "2/8 ExclusiveDeviceAllocateConflict, 6/8 NumaNotFit"),
        (cards(2, d0=1), {DEVICE: 2}, "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"),
        (cards(2, d0=1, d1=2), {CORE: 2}, "2/2 CardInsufficientCore"),
        (cards(2, d0=1, d1=3), {DEVICE: 1}, "1/2 CardInsufficientCore, 1/2 CardTimeSlicingExhausted"),
        (cards(3, 4), {CORE: 6}, "3/3 ModeNotFit"),
        (cards(1), {DEVICE: 2}, "NodeInsufficientDevice"),
    ],
)
def test_refusals(vendor: Neuron, world_cards: list[Card], limits: dict[str, Any], expected: str) -> None:
    assert VendorNode(vendor, world_cards).refusal(**limits) == expected


def test_the_mutex_policy_wants_an_unused_device(vendor: Neuron) -> None:
    assert VendorNode(vendor, cards(2, d0=1), "mutex").indexes(**{CORE: 1}) == [1]


def test_lists_of_uuids(vendor: Neuron) -> None:
    wishes = {"aws.amazon.com/nouse-neuron-uuid": "n1-AWSNeuron-0"}
    assert VendorNode(vendor, cards(2), annotations=wishes).indexes(**{CORE: 1}) == [1]
    assert VendorNode(vendor, cards(3), annotations=wishes).indexes(**{DEVICE: 2}) == [1, 2]


def test_quotas(vendor: Neuron) -> None:
    assert vendor.quota_cores == CORE
    assert VendorNode(vendor, cards(2), room=QuotaRoom(cores=0)).refusal(**{CORE: 1}) == "2/2 ResourceQuotaNotFit"
    assert VendorNode(vendor, cards(2), room=QuotaRoom(cores=5)).refusal(**{DEVICE: 2}) == "2/2 ResourceQuotaNotFit"
    assert VendorNode(vendor, cards(2), room=QuotaRoom(cores=6)).indexes(**{DEVICE: 2}) == [0, 1]


def test_a_plain_request_means_cores(vendor: Neuron) -> None:
    answer = VendorNode(vendor, cards(1)).fit(Request("AWSNeuron", 1))
    assert not isinstance(answer, Misfit)
    assert [grant.cores for grant in answer] == [1]


def test_cores_that_fit_on_one_large_device_need_no_second_one() -> None:
    """Requests are written for devices of two cores; a node with one device of four must not be refused for that."""
    one = builders.cluster(builders.node("n1").capacity(**{"aws.amazon.com/neuron": 1, "aws.amazon.com/neuroncore": 4}))
    placed = one.place(builders.pod().container(limits={"aws.amazon.com/neuroncore": 4}))
    ((grant,),) = placed.grants["AWSNeuron"]
    assert (grant.uuid, grant.cores) == ("n1-AWSNeuron-0", 0b1111)
