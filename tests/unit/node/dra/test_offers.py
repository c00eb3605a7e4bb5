"""What cards offer to claims: tables of cards, settings and the devices that follow."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardFacts, Links
from tessera.host.simulated.models import MODELS
from tessera.node.dra.offers import Offer, Surrounding, architecture, nvlink_groups, offers, semantic, slice_contents
from tessera.node.fleet import CardState, Fleet
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import CardModes, Mode, NodeSettings
from tessera.wire.resource_api import CORDONED, HELD, UNHEALTHY, SliceDevice
from tests.support.sharing_modes import A, B, C, card

NOTHING_AROUND = Surrounding()


def settings(mode: Mode = "hami-core", **node: Any) -> AgentSettings:
    return AgentSettings(node_name="n", node=NodeSettings(mode=mode, **node))


def devices(found: tuple[Offer, ...], around: Surrounding = NOTHING_AROUND) -> list[SliceDevice]:
    return [each for content in slice_contents(found, around) for each in content.devices or ()]


def device(state: CardState, agent: AgentSettings, around: Surrounding = NOTHING_AROUND) -> SliceDevice:
    (found,) = devices(offers(Fleet((state,)), agent), around)
    return found


def mig_card(uuid: str = A, index: int = 0) -> CardState:
    return card(uuid, index, mig_capable=True, mig_profiles=MODELS["H200"].profiles)


# -- capacities


@pytest.mark.parametrize(
    ("node", "memory", "cores", "shares"),
    [
        ({}, "143771Mi", "100", "10"),
        ({"memory_scaling": 2.0, "core_scaling": 10.0, "split_count": 4}, "287542Mi", "1k", "4"),
    ],
)
def test_a_shared_card_has_what_is_registered_otherwise(
    node: dict[str, Any], memory: str, cores: str, shares: str
) -> None:
    found = device(card(), settings(**node))
    assert found.allow_multiple_allocations is True
    capacity = found.capacity or {}
    assert {name: each.value for name, each in capacity.items()} == {
        "memory": memory,
        "cores": cores,
        "shares": shares,
    }
    # A request that names no memory gets all of it, and one that names no cores is not limited.
    policies = {name: each.request_policy for name, each in capacity.items()}
    assert [policy and policy.default for policy in policies.values()] == [memory, "0", "1"]
    ranges = {name: policy.valid_range for name, policy in policies.items() if policy}
    assert ranges["cores"] is not None
    assert (ranges["cores"].min, ranges["cores"].max) == ("0", "100")
    assert ranges["memory"] is not None
    assert (ranges["memory"].min, ranges["memory"].max, ranges["memory"].step) == ("1Mi", memory, "1Mi")


def test_in_mode_none_a_card_is_for_one_claim() -> None:
    found = device(card(), settings("none"))
    assert found.allow_multiple_allocations is None
    assert {name: each.request_policy for name, each in (found.capacity or {}).items()} == {
        "memory": None,
        "cores": None,
    }


def test_a_card_that_cannot_be_registered_is_not_published() -> None:
    assert offers(Fleet((card(memory_bytes=None),)), settings()) == ()
    assert slice_contents((), NOTHING_AROUND) == ()


# -- taints and attributes


@pytest.mark.parametrize(
    ("state", "around", "expected"),
    [
        (card(), Surrounding(), None),
        (card(problem="broken"), Surrounding(), [UNHEALTHY]),
        (card(), Surrounding(cordoned=[A]), [CORDONED]),
        (card(), Surrounding(cordoned=[B], held=[C]), None),
        (card(problem="broken"), Surrounding(cordoned=[A], held=[A]), [UNHEALTHY, CORDONED, HELD]),
    ],
)
def test_cards_that_must_take_no_claim_are_tainted(
    state: CardState, around: Surrounding, expected: list[str] | None
) -> None:
    taints = device(state, settings(), around).taints
    assert (taints and [each.key for each in taints]) == expected
    assert all(each.effect == "NoSchedule" for each in taints or ())


def test_attributes_say_what_is_known() -> None:
    facts: dict[str, Any] = {
        "numa": 1,
        "bus_id": "00000000:3B:00.0",
        "pcie_root": "pci0000:3a",
        "compute_capability": (9, 0),
        "driver_version": "580.65.06",
        "cuda_version": (13, 0),
    }
    found = device(card(**facts), settings(), Surrounding(nvlink_groups={A: "nvlink-0"})).attributes or {}
    said = {name: each.string or each.version or each.number for name, each in found.items()}
    assert said == {
        "type": "gpu",
        "uuid": A,
        "index": None if found["index"].number is None else 0,
        "mode": "hami-core",
        "model": "NVIDIA H200",
        "numaNode": 1,
        "architecture": "Hopper",
        "computeCapability": "9.0.0",
        "driverVersion": "580.65.6",
        "cudaVersion": "13.0.0",
        "nvlinkGroup": "nvlink-0",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
    }
    bare = device(card(), settings()).attributes or {}
    assert sorted(bare) == ["index", "mode", "model", "type", "uuid"]


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((12, 0), "Blackwell"),
        ((9, 0), "Hopper"),
        ((8, 9), "Ada Lovelace"),
        ((8, 6), "Ampere"),
        ((7, 5), "Turing"),
        ((7, 2), "Volta"),
        ((3, 5), "unknown"),
    ],
)
def test_the_architecture_follows_from_the_compute_capability(capability: tuple[int, int], name: str) -> None:
    assert architecture(capability) == name


@pytest.mark.parametrize(
    ("parts", "text"), [((), ""), ((580,), "580.0.0"), ((580, 65, 6), "580.65.6"), ((1, 2, 3, 4), "1.2.3")]
)
def test_versions_have_three_parts(parts: tuple[int, ...], text: str) -> None:
    assert semantic(parts) == text


# -- NVLink


def pairs(*linked: tuple[str, str], one_way: bool = False, switched: bool = False) -> dict[tuple[str, str], Links]:
    link = Links(None, switched=4) if switched else Links(None, direct=4)
    there = dict.fromkeys(linked, link)
    return there if one_way else {**there, **{(b, a): link for a, b in linked}}


@pytest.mark.parametrize(
    ("links", "groups"),
    [
        ({}, {}),
        (pairs((A, B)), {A: "nvlink-0", B: "nvlink-0"}),
        (pairs((A, B), (B, C)), {A: "nvlink-0", B: "nvlink-0", C: "nvlink-0"}),
        (pairs((B, C), switched=True), {B: "nvlink-0", C: "nvlink-0"}),
        (pairs((A, B), one_way=True), {}),
        (pairs((C, A)), {A: "nvlink-0", C: "nvlink-0"}),
    ],
)
def test_cards_that_nvlinks_join_are_of_one_group(links: dict[tuple[str, str], Links], groups: dict[str, str]) -> None:
    assert nvlink_groups([A, B, C], links) == groups


# -- MIG


def test_each_place_of_each_profile_consumes_the_slices_it_covers() -> None:
    found = offers(Fleet((mig_card(),)), settings("mig"))
    counters, listed = slice_contents(found, NOTHING_AROUND)
    (card_counters,) = counters.counters or ()
    assert card_counters.name == A.lower()
    assert sorted(card_counters.counters) == [f"memory-slice-{number}" for number in range(8)]
    consumed = {each.name: each.consumes_counters for each in listed.devices or ()}
    assert len(consumed) == len({*consumed}) == 18
    (half,) = consumed[f"{A.lower()}-3g-71gb-4"] or ()
    assert (half.counter_set, sorted(half.counters)) == (A.lower(), [f"memory-slice-{n}" for n in (4, 5, 6, 7)])
    by_name = {each.name: each for each in found}
    assert by_name[f"{A.lower()}-3g-71gb-4"].slot is not None
    for one in found:
        for other in found:
            assert one.slot is not None
            assert other.slot is not None
            both = {*_names(one, consumed)} & {*_names(other, consumed)}
            assert bool(both) == one.slot.placement.overlaps(other.slot.placement)


def _names(offer: Offer, consumed: dict[str, Any]) -> list[str]:
    return [name for each in consumed[offer.name] for name in each.counters]


def test_a_profile_with_fewer_instances_than_places_has_a_counter_of_its_own() -> None:
    state = mig_card()
    media = next(each for each in state.facts.mig_profiles if each.media_extensions)
    facts = CardFacts(**{name: getattr(state.facts, name) for name in CardFacts.__slots__} | {"mig_profiles": (media,)})
    counters, listed = slice_contents(offers(Fleet((CardState(facts),)), settings("mig")), NOTHING_AROUND)
    limit = f"profile-{media.profile_id}"
    assert (counters.counters or ())[0].counters[limit].value == "1"
    assert all(limit in (each.consumes_counters or ())[0].counters for each in listed.devices or ())


def test_many_devices_and_counters_are_spread_over_slices() -> None:
    states = tuple(mig_card(f"GPU-{number:08x}-0000-0000-0000-000000000000", number) for number in range(9))
    contents = slice_contents(offers(Fleet(states), settings("mig")), NOTHING_AROUND)
    assert [len(each.counters or ()) for each in contents] == [8, 1, 0, 0, 0]
    assert [len(each.devices or ()) for each in contents] == [0, 0, 64, 64, 34]
    assert len({each.name for content in contents for each in content.devices or ()}) == 9 * 18


def test_cards_of_different_modes_are_in_one_pool() -> None:
    node = settings("hami-core", card_modes=(CardModes(mode="mig", index=(1,)),))
    found = offers(Fleet((card(), CardState(mig_card(B, 1).facts, mode="mig"))), node)
    assert [each.name for each in found if each.slot is None] == [A.lower()]
    assert {each.uuid for each in found if each.slot is not None} == {B}
    assert MigPlacement(0, 8) in [each.slot.placement for each in found if each.slot is not None]
