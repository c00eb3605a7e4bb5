"""Where the policy `fragmentation` puts MIG instances: so that the larger ones still find a place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.demand_forecast import DemandForecast, DemandSlice
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Role
from tests.support.builders import A100_40GB, Cluster, NodeBuilder, cluster, gpu_pod, mig_profile, node

ONE, HALF = 4_864, 20_096
"""MiB of the profiles 1g.5gb and 3g.20gb"""
SIZES = {1: (ONE, 14), 2: (9_856, 29), 4: (HALF, 43)}
"""MiB and cores by memory slices"""

SMALL_AND_HALF = DemandForecast(slices=(DemandSlice(12, 14, 0.5), DemandSlice(50, 43, 0.5)))
ONLY_SMALL = DemandForecast(slices=(DemandSlice(12, 14, 1.0),))

A30 = (
    mig_profile("1g.6gb", 5_952, 25, 1, 0, 1, 2, 3),
    mig_profile("2g.12gb", 12_032, 50, 2, 0, 2),
    mig_profile("4g.24gb", 24_256, 100, 4, 0),
)

Taken = dict[str, list[tuple[int, int]]]
"""by card, where instances are: start and memory slices"""


def mig_cards(name: str, *uuids: str) -> NodeBuilder:
    built = node(name)
    for uuid in uuids:
        built = built.gpu(uuid, memory=40_960, mode="mig", slots=7, profiles=A100_40GB)
    return built


def hold(world: Cluster, on: str, taken: Taken) -> Cluster:
    """Instances that are there already."""
    for uuid, places in taken.items():
        for start, size in places:
            memory, cores = SIZES[size]
            grant = Grant(uuid, "NVIDIA", memory, cores, mig=MigSlot("any", MigPlacement(start, size)))
            name = f"{uuid}-{start}"
            facts = PodFacts(name, "default", name, on, (Span(Role.APP),), {"NVIDIA": ((grant,),)})
            world.ledger.observe_pod(facts)
    return world


def chosen(
    world: Cluster, *, memory: int = ONE, count: int = 1, forecast: DemandForecast = SMALL_AND_HALF
) -> list[tuple[str, int]]:
    """Cards and where on them."""
    pod = gpu_pod("new", gpu=count, mem=memory, cores=0).policy(node="fragmentation", device="fragmentation")
    answer = world.selector.select(replace(pod.request(), forecast=forecast), world.ledger.node_names())
    grants = answer.placement.grants["NVIDIA"][0]  # type: ignore[union-attr]
    return [(grant.uuid, grant.mig.placement.start) for grant in grants if grant.mig is not None]


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        pytest.param({"A": [(0, 2)]}, ("A", 3), id="beside a 2g, so that the other half stays whole"),
        pytest.param({"A": [(2, 2)]}, ("A", 1), id="before a 2g, for the same reason"),
        pytest.param({"A": [(6, 1)]}, ("A", 5), id="into the half that is broken"),
        pytest.param({"A": [(2, 1)]}, ("A", 3), id="even where that half is the first one"),
        pytest.param({"A": [(4, 4)], "B": [(4, 4), (3, 1)]}, ("B", 2), id="not onto the only place of a 3g"),
        pytest.param({"A": [(0, 4)], "B": [(4, 1), (0, 4)]}, ("B", 6), id="wherever that place is"),
        pytest.param({"A": [], "B": [(6, 1)]}, ("B", 5), id="not onto a whole card"),
    ],
)
def test_a_small_instance_leaves_the_places_of_larger_ones_open(taken: Taken, expected: tuple[str, int]) -> None:
    assert chosen(hold(cluster(mig_cards("n1", *taken)), "n1", taken)) == [expected]


@pytest.mark.parametrize("taken", [{"A": [(4, 4)], "B": [(4, 4), (3, 1)]}, {"A": [], "B": [(6, 1)]}])
def test_the_same_holds_between_nodes(taken: Taken) -> None:
    world = cluster(mig_cards("n1", "A"), mig_cards("n2", "B"))
    hold(world, "n1", {"A": taken["A"]})
    hold(world, "n2", {"B": taken["B"]})
    assert chosen(world)[0][0] == "B"


def test_a_half_fills_up_a_card() -> None:
    taken: Taken = {"A": [(0, 4)], "B": []}
    assert chosen(hold(cluster(mig_cards("n1", *taken)), "n1", taken), memory=HALF) == [("A", 4)]


def test_the_half_with_the_slice_that_only_halves_can_use_is_kept_for_them() -> None:
    assert chosen(cluster(mig_cards("n1", "A"))) == [("A", 3)]


def test_without_demand_for_larger_ones_places_are_taken_as_ever() -> None:
    world = hold(cluster(mig_cards("n1", "A")), "n1", {"A": [(0, 2)]})
    assert chosen(world, forecast=ONLY_SMALL) == [("A", 6)]


def test_other_policies_take_places_as_ever() -> None:
    world = hold(cluster(mig_cards("n1", "A")), "n1", {"A": [(0, 2)]})
    answer = world.selector.select(gpu_pod("new", mem=ONE, cores=0).request(), ["n1"])
    slot = answer.placement.grants["NVIDIA"][0][0].mig  # type: ignore[union-attr]
    assert slot is not None
    assert slot.placement.start == 6


def test_equal_nodes_are_decided_by_name() -> None:
    assert chosen(cluster(mig_cards("n2", "B"), mig_cards("n1", "A"), mig_cards("n3", "C")))[0][0] == "A"


def test_several_instances_share_the_half_that_they_break() -> None:
    assert chosen(cluster(mig_cards("n1", "A")), count=3) == [("A", 3), ("A", 2), ("A", 1)]


def test_an_instance_goes_to_a_broken_card_before_a_whole_node_is_opened() -> None:
    world = cluster(mig_cards("n1", "A", "D"), mig_cards("n2", "B", "C"))
    hold(world, "n2", {"C": [(6, 1)]})
    assert [card for card, _ in chosen(world, count=2)] == ["C", "C"]


def test_cards_that_offer_other_instances_are_weighed_by_their_own() -> None:
    world = cluster(node("n1").gpu("A", memory=24_576, mode="mig", slots=4, profiles=A30))
    grant = Grant("A", "NVIDIA", 5_952, 25, mig=MigSlot("1g.6gb", MigPlacement(0, 1)))
    world.ledger.observe_pod(PodFacts("u", "default", "p", "n1", (Span(Role.APP),), {"NVIDIA": ((grant,),)}))
    forecast = DemandForecast(slices=(DemandSlice(25, 25, 0.5), DemandSlice(49, 50, 0.5)))
    assert chosen(world, memory=5_952, forecast=forecast) == [("A", 1)]


def test_a_card_whose_places_are_beyond_all_reason_still_takes_pods() -> None:
    far = mig_profile("1g.5gb", ONE, 14, 1, 2_000, 0)
    world = cluster(node("n1").gpu("A", memory=40_960, mode="mig", slots=7, profiles=(far,)))
    assert chosen(world) == [("A", 2_000)]


def test_what_a_freed_instance_held_is_free_again() -> None:
    world = hold(cluster(mig_cards("n1", "A", "B")), "n1", {"A": [(4, 4), (3, 1)], "B": [(4, 4)]})
    assert chosen(world)[0][0] == "A"
    world.ledger.release("A-3")
    hold(world, "n1", {"B": [(0, 1)]})
    assert chosen(world)[0][0] == "B"


@pytest.mark.parametrize(("need", "card"), [(1.0, "unused"), (1.5, "half")])
def test_an_unused_card_is_opened_last_once_pods_that_need_one_will_find_none(need: float, card: str) -> None:
    world = hold(cluster().add(mig_cards("n1", "unused", "half")), "n1", {"half": [(4, 4)]})
    # A half at the end of a card takes the slice that no small instance can use: in the long run it pays to open one.
    demand = DemandForecast(
        slices=(
            DemandSlice(12, 1, 0.36),
            DemandSlice(25, 1, 0.18),
            DemandSlice(50, 1, 0.27),
            DemandSlice(100, 1, 0.19),
        ),
        whole_need=need,
    )
    assert [uuid for uuid, _ in chosen(world, memory=HALF, forecast=demand)] == [card]
