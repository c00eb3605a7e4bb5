"""Which resources the instances of a node are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import MigInstance
from tessera.node.fleet import CardState, Fleet, Replica
from tessera.node.static_mig import resources_of
from tests.support.cards import A, B, card

SMALL, MEDIA, HALF = 19, 20, 9
"""profiles of `mig_cards`"""
CUT = Fleet((card(A, enabled=True), card(B, index=1, enabled=True)))
HALF_CUT = Fleet((card(A, enabled=True), card(B, index=1)))


def instance(number: int, *, uuid: str = A, profile: int = SMALL, divided: bool = False) -> MigInstance:
    return MigInstance(uuid, number, profile, MigPlacement(number, 1), 0, f"MIG-{uuid[-1]}{number}", divided)


def test_every_kind_is_a_resource_in_the_order_of_cards_and_instances() -> None:
    instances = [instance(1, uuid=B), instance(2), instance(1), instance(3, profile=MEDIA), instance(4, profile=HALF)]
    layout = resources_of(CUT, instances, strategy="mixed")
    assert {resource: [each.id for each in devices] for resource, devices in layout.devices.items()} == {
        "nvidia.com/mig-1g.18gb": ["MIG-a1", "MIG-a2", "MIG-b1"],
        "nvidia.com/mig-1g.18gb.me": ["MIG-a3"],
        "nvidia.com/mig-3g.71gb": ["MIG-a4"],
    }
    assert layout.problems == ()


def test_an_instance_has_the_health_and_the_numa_node_of_its_card() -> None:
    sick = CardState(replace(CUT.cards[0].facts, numa=1), "XID 79")
    layout = resources_of(Fleet((sick,)), [instance(1)], strategy="single")
    assert layout.devices == {"nvidia.com/gpu": (Replica("MIG-a1", False, 1),)}


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        (replace(instance(2), compute_instance=None, mig_uuid=None), "it has no compute instance"),
        (instance(2, divided=True), "its compute instances are smaller than it"),
        (instance(2, profile=77), "profile (id 77)"),
        (replace(instance(2), mig_uuid=None), "does not report its uuid"),
    ],
)
def test_what_cannot_be_handed_out_whole_is_named_and_the_others_are_served(odd: MigInstance, problem: str) -> None:
    layout = resources_of(CUT, [odd, instance(1)], strategy="mixed")
    assert list(layout.devices) == ["nvidia.com/mig-1g.18gb"]
    (said,) = layout.problems
    assert said.startswith(f"GPU instance 2 of card {A} is not served: ")
    assert problem in said


@pytest.mark.parametrize(
    ("fleet", "instances", "problem"),
    [
        (HALF_CUT, [instance(1)], "some cards are in MIG mode and some are not"),
        (CUT, [], "no card has an instance"),
        (CUT, [instance(1), instance(2, profile=HALF, uuid=B)], "different profiles: 1g.18gb, 3g.71gb"),
        (CUT, [instance(1), instance(2, uuid=B, divided=True)], "smaller than it"),
        (CUT, [instance(1)], f"card {B} has no instance"),
        (CUT, [instance(1, divided=True)], "no card has an instance"),
    ],
)
def test_where_not_all_are_equal_nothing_is_counted_as_a_card(
    fleet: Fleet, instances: list[MigInstance], problem: str
) -> None:
    layout = resources_of(fleet, instances, strategy="single")
    assert layout.devices == {}
    assert problem in layout.problems[-1]


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_cards_that_are_not_cut_have_no_instances_and_no_problem(strategy: str) -> None:
    layout = resources_of(Fleet((card(A),)), [], strategy=strategy)  # type: ignore[arg-type]
    assert (layout.devices, layout.problems) == ({}, ())


def test_an_instance_of_a_card_that_is_left_out_is_left_out() -> None:
    assert resources_of(Fleet((card(B, index=1, enabled=True),)), [instance(1)], strategy="mixed").devices == {}
