from __future__ import annotations

from typing import Any

import pytest

from tessera.core.fit.fit import fit_pod
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import ContainerRequest, PodRequest, Request, Role
from tessera.vendors.base import Switches
from tessera.vendors.drafts import ContainerDraft, PodDraft, Resources
from tessera.vendors.metax import CHART, FAMILY, LOSSES, SCORES, MetaxGpu
from tests.support.vendor_cases import VendorNode, devices, node

VENDOR = MetaxGpu(CHART.names)
WHOLE = Request(vendor="Metax-GPU", count=1, percent=100, cores=100)


def view(cards: int, traits: dict[str, str] | None = None) -> NodeInfo:
    found = devices(VENDOR, node(capacity={"metax-tech.com/gpu": str(cards)}))
    return NodeInfo(NodeFacts("n1", devices=found, traits=traits or {}), [Card(device) for device in found])


def pod(*roles: Role, node_policy: str = "binpack") -> PodRequest:
    asks = tuple(ContainerRequest(f"c{i}", role, (WHOLE,)) for i, role in enumerate(roles))
    return PodRequest("u", "ns", "p", asks, node_policy=node_policy)


def place(node_view: NodeInfo, request: PodRequest) -> list[list[str]] | str:
    answer = fit_pod(node_view, request, {VENDOR.key: VENDOR}, {})
    if isinstance(answer, Misfit):
        return answer.text
    return [[grant.uuid for grant in container] for container in answer.grants[VENDOR.key]]


def test_the_family_builds_whole_gpus_and_slices_from_one_section() -> None:
    assert [vendor.key for vendor in FAMILY.build(CHART, Switches())] == ["Metax-GPU", "Metax-SGPU"]
    assert [vendor.names.all for vendor in FAMILY.build(CHART, Switches())] == [
        ("metax-tech.com/gpu",),
        ("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"),
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"metax-tech.com/gpu": "2"}, Request(vendor="Metax-GPU", count=2, percent=100, cores=100)),
        ({"metax-tech.com/gpu": "0"}, None),
        ({}, None),
        ({"nvidia.com/gpu": 1}, None),
    ],
)
def test_a_container_asks_for_whole_cards(limits: dict[str, Any], expected: Request | None) -> None:
    assert VENDOR.request(Resources(limits=limits)) == expected


def test_a_container_is_recognised_by_its_limits_only() -> None:
    assert VENDOR.mutate(ContainerDraft(limits={"metax-tech.com/gpu": 1}), PodDraft()) is True
    assert VENDOR.mutate(ContainerDraft(requests={"metax-tech.com/gpu": 1}), PodDraft()) is False


def test_a_node_has_as_many_cards_as_its_capacity_says() -> None:
    assert devices(VENDOR, node(capacity={"metax-tech.com/gpu": "2"})) == tuple(
        Device(f"n1-metax-{i}", "Metax-GPU", i, 1, memory=65536, cores=100, model="Metax-GPU") for i in range(2)
    )


def test_a_whole_card_is_never_shared() -> None:
    cards = view(2)
    cards.cards[1].used = 1
    assert place(cards, pod(Role.APP)) == [["n1-metax-0"]]
    cards.cards[0].used = 1
    assert place(cards, pod(Role.APP)) == "2/2 CardTimeSlicingExhausted"


def test_two_app_containers_get_a_card_each() -> None:
    placed = place(view(2), pod(Role.APP, Role.APP))
    assert isinstance(placed, list)
    assert sorted(card for container in placed for card in container) == ["n1-metax-0", "n1-metax-1"]
    assert place(view(1), pod(Role.APP, Role.APP)) == "1/1 CardTimeSlicingExhausted"


def test_an_app_container_uses_the_card_of_its_init_container_again() -> None:
    cards = view(3)
    placed = place(cards, pod(Role.INIT, Role.APP))
    assert isinstance(placed, list)
    assert placed[0] == placed[1]


def test_a_second_init_container_and_an_app_container_stay_on_the_first_card() -> None:
    placed = place(view(8), pod(Role.INIT, Role.INIT, Role.APP))
    assert isinstance(placed, list)
    assert len({card for container in placed for card in container}) == 1


@pytest.mark.parametrize(
    ("policy", "traits", "expected"),
    [
        ("binpack", {LOSSES: '{"1": 30, "2": 70}'}, 1930.0),
        ("anything", {LOSSES: '{"1": 30, "2": 70}'}, 1930.0),
        ("spread", {SCORES: '{"2": 400}'}, 1600.0),
        ("spread", {LOSSES: '{"2": 70}'}, 0.0),
        ("binpack", {SCORES: '{"2": 400}'}, 0.0),
        ("binpack", {}, 0.0),
        ("binpack", {LOSSES: '{"1": 30}'}, 2000.0),
        ("binpack", {LOSSES: '{"2": "x"}'}, 2000.0),
        ("binpack", {LOSSES: "not json"}, 2000.0),
        ("binpack", {LOSSES: ""}, 2000.0),
        ("binpack", {LOSSES: "[" * 100_000}, 2000.0),
        ("binpack", {LOSSES: '{"2": ' + "9" * 400 + "}"}, 2000.0),
        ("binpack", {LOSSES: '{"2": 99999999999}'}, 2000.0),
        ("binpack", {LOSSES: '{"2": -5}'}, 2005.0),
    ],
)
def test_a_node_scores_by_what_its_topology_would_lose(policy: str, traits: dict[str, str], expected: float) -> None:
    before = view(4, traits)
    request = pod(Role.APP, Role.APP, node_policy=policy)
    placement = fit_pod(before, request, {VENDOR.key: VENDOR}, {})
    assert isinstance(placement, Placement)
    assert VENDOR.node_score(before, request, placement.grants[VENDOR.key]) == expected


def test_a_card_that_init_and_app_use_in_turn_counts_once_for_the_score() -> None:
    before = view(4, {LOSSES: '{"1": 30, "2": 70}'})
    request = pod(Role.INIT, Role.APP)
    placement = fit_pod(before, request, {VENDOR.key: VENDOR}, {})
    assert isinstance(placement, Placement)
    assert VENDOR.node_score(before, request, placement.grants[VENDOR.key]) == 1970.0


def test_binding_writes_both_device_annotations() -> None:
    grant = Grant(uuid="n1-metax-0", vendor="Metax-GPU", memory=65536, cores=100)
    assert VendorNode(VENDOR, []).written((grant,), ()) == {
        "hami.io/metax-gpu-devices-to-allocate": "n1-metax-0,Metax-GPU,65536,100:;;",
        "hami.io/metax-gpu-devices-allocated": "n1-metax-0,Metax-GPU,65536,100:;;",
    }
