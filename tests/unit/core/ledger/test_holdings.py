"""What pods hold where their annotations and the node's cards do not match: a doubt holds the card, or the node."""

from __future__ import annotations

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.ledger.holdings import PodFacts, holdings
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Placement, Use
from tests.support.builders import (
    A100_40GB,
    MIG_ALLOCATIONS,
    Cluster,
    NodeBuilder,
    PodBuilder,
    cluster,
    gpu_pod,
    node,
    pod,
)


def mixed() -> NodeBuilder:
    return node().gpu("G").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)


def reservation(uuid: str, *, container: int = 0, device: int = 0, start: int = 0) -> str:
    return (
        f'{{"containerIndex":{container},"deviceIndex":{device},"gpuUUID":"{uuid}","profile":"2g.10gb",'
        f'"placement":{{"start":{start},"size":2}}}}'
    )


def holding(allocated: str, *reservations: str, name: str = "holder") -> PodBuilder:
    one = gpu_pod(name).on("n1", allocated)
    return one.annotate((MIG_ALLOCATIONS, f"[{','.join(reservations)}]")) if reservations else one


def fits(world: Cluster) -> set[str]:
    """Cards that would take a small pod."""
    names = ("G", "M", "N")
    asking = {uuid: gpu_pod(mem=10).annotate(("nvidia.com/use-gpuuuid", uuid)) for uuid in names}
    return {uuid for uuid, one in asking.items() if isinstance(world.fit(one), Placement)}


@pytest.mark.parametrize(
    ("allocated", "reservations", "usable"),
    [
        ("M,NVIDIA,9856,29:;", [reservation("M")], {"G", "M"}),
        ("M,NVIDIA,9856,29:;", [], {"G"}),
        ("M[0-1],NVIDIA,9856,29:;", [], {"G"}),
        ("M,NVIDIA,9856,29:;", [reservation("M", device=1)], {"G"}),
        ("G,NVIDIA,10,0:;", [reservation("G")], {"M"}),
        ("G,NVIDIA,10,0:;", [reservation("G", container=3)], {"M"}),
        ("G,NVIDIA,10,0:;", [reservation("M")], {"G", "M"}),
        ("G,NVIDIA,10,0:;", [reservation("elsewhere")], {"G"}),
        ("elsewhere,NVIDIA,10,0:;", [reservation("elsewhere")], {"G", "M"}),
    ],
)
def test_a_card_whose_mode_and_reservations_disagree_takes_nothing_new(
    allocated: str, reservations: list[str], usable: set[str]
) -> None:
    world = cluster(mixed()).observe(holding(allocated, *reservations))
    assert fits(world) == usable
    assert audit(world.ledger) == []
    world.ledger.release("uid-holder")
    assert fits(world) == {"G", "M"}
    assert audit(world.ledger) == []


@pytest.mark.parametrize(
    ("allocated", "reservations", "texts"),
    [
        ("M,NVIDIA,9856,29:;", [], ["", "pod default/holder has no MIG reservation on a card in mode mig"]),
        (
            "G,NVIDIA,10,0:;",
            [reservation("G")],
            ["pod default/holder has a MIG reservation on a card in mode hami-core", ""],
        ),
        (
            "G,NVIDIA,10,0:;",
            [reservation("G", container=3)],
            ["a MIG reservation on a card in mode hami-core", ""],
        ),
    ],
)
def test_what_is_in_doubt_is_said(allocated: str, reservations: list[str], texts: list[str]) -> None:
    view = cluster(mixed()).observe(holding(allocated, *reservations)).ledger.node("n1")
    assert view is not None
    assert [card.held for card in view.cards] == texts


def test_a_reservation_without_a_grant_still_occupies_its_place() -> None:
    world = cluster(mixed()).observe(holding("G,NVIDIA,10,0:;", reservation("M"), reservation("M", device=1, start=2)))
    view = world.ledger.node("n1")
    assert view is not None
    assert [slot.placement.start for slot in view.cards[1].mig] == [0, 2]
    assert world.chosen(gpu_pod(mem=8000).annotate(("nvidia.com/vgpu-mode", "mig"))).placement.node == "n1"
    assert world.refused(gpu_pod(gpu=2, mem=8000)) == {
        "n1": "1/2 CardMigTopologyInfeasible, 2/2 AllocatedCardsInsufficientRequest"
    }


def test_a_card_stays_held_while_anybody_holds_it() -> None:
    world = cluster(mixed()).observe(
        holding("M,NVIDIA,1,1:;", name="one"),
        holding("M,NVIDIA,1,1:;", name="two"),
        holding("G,NVIDIA,1,0:;", name="x"),
    )
    world.ledger.release("uid-one")
    assert fits(world) == {"G"}
    world.ledger.release("uid-two")
    assert fits(world) == {"G", "M"}


def test_an_unknown_reservation_holds_cards_that_others_hold_already() -> None:
    world = cluster(mixed()).observe(
        holding("M,NVIDIA,9856,29:;", reservation("M"), reservation("elsewhere", device=1)),
    )
    view = world.ledger.node("n1")
    assert view is not None
    assert view.cards[1].held == "a MIG reservation names the unknown card elsewhere"
    assert world.cards()["M"] == (1, 9856, 29)


@pytest.mark.parametrize(
    ("allocated", "mig", "problem"),
    [
        ("G,NVIDIA,many,0:;", "", "invalid memory field"),
        ("G,NVIDIA:;", "", "missing fields"),
        ("G,NVIDIA,10,0:;", "[{]", "is not valid JSON"),
        ("G,NVIDIA,10,0:;", "[{}]", "MIG allocation 0 is incomplete"),
    ],
)
def test_an_allocation_that_cannot_be_read_holds_the_whole_node(allocated: str, mig: str, problem: str) -> None:
    unread = gpu_pod("unread").on("n1", allocated)
    world = cluster(mixed()).observe(unread.annotate((MIG_ALLOCATIONS, mig)) if mig else unread)
    assert world.refused(gpu_pod(mem=1)) == {"n1": "node usage unavailable"}
    view = world.ledger.node("n1")
    assert view is not None
    assert view.facts.problem.startswith("the allocation of pod default/unread cannot be read: ")
    assert problem in view.facts.problem
    world.observe(unread.ended())
    assert fits(world) == {"G", "M"}
    assert audit(world.ledger) == []


def test_what_is_readable_of_a_bad_allocation_counts() -> None:
    world = cluster(node().gpu("G").gpu("H")).observe(gpu_pod().on("n1", "G,NVIDIA,100,10:H,NVIDIA,x,y:;"))
    assert world.cards() == {"G": (1, 100, 10), "H": (0, 0, 0)}


def test_a_node_is_held_until_the_last_unreadable_pod_is_gone() -> None:
    bad = [gpu_pod(name).on("n1", "G,NVIDIA:;") for name in ("b", "a")]
    world = cluster(mixed()).observe(*bad)
    view = world.ledger.node("n1")
    assert view is not None
    assert "pod default/a cannot be read" in view.facts.problem, "the first by uid, whichever came first"
    world.observe(bad[0].ended())
    assert world.refused(gpu_pod(mem=1)) == {"n1": "node usage unavailable"}
    world.observe(bad[1].ended())
    assert fits(world) == {"G", "M"}


def test_an_unreadable_pod_that_becomes_readable_frees_the_node() -> None:
    world = cluster(mixed()).observe(gpu_pod().on("n1", "G,NVIDIA:;"), gpu_pod().on("n1", "G,NVIDIA,10,0:;"))
    assert world.chosen(gpu_pod("q", mem=1)).placement.node == "n1"
    assert audit(world.ledger) == []


def test_cards_of_a_vendor_that_no_longer_exists_are_charged_as_written() -> None:
    device = Device("X", "Gone", slots=3, memory=100, cores=50)
    facts = PodFacts("u", "ns", "p", "n1", grants={"Gone": ((Grant("X", "Gone", 10, 100),),)})
    assert holdings(facts, {"X": device}, {})["X"].use == Use(1, 10, 100)


def test_entries_that_hami_left_out_make_every_container_count_to_the_end() -> None:
    world = cluster(node().gpu("G")).observe(
        pod().init().container(gpu=1).on("n1", "G,NVIDIA,4000,0:;").after_init("init0")
    )
    assert world.cards() == {"G": (1, 4000, 0)}
