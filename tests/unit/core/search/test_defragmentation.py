"""Which pods move so that others fit: examples of what the planner keeps and prefers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import HostRequest, Role
from tessera.core.search import finish
from tessera.core.search.defragmentation import plan_room, plan_whole_cards
from tessera.core.search.move_planner import DefragmentationPlan, Goal
from tessera.core.search.relocation import MovablePod, replay_moves
from tessera.core.search.victims import PodTraits
from tessera.vendors.node_reader import node_facts
from tests.support.builders import A100_40GB, NodeBuilder, gpu_pod, node, vendors
from tests.support.pod_book import PlainBook

CARD = 40_000
"""MiB"""
INSTANCES = {1: ("1g.5gb", 4_864, 14), 2: ("2g.10gb", 9_856, 29), 4: ("3g.20gb", 20_096, 43)}
"""profile, MiB and cores, by memory slices"""
IN_MIG_MODE = ("nvidia.com/vgpu-mode", "mig")


class World:
    """Nodes, and pods that hold a part of one card each."""

    def __init__(self, *nodes: NodeBuilder) -> None:
        self.ledger = Ledger(vendors())
        self.book = PlainBook()
        self.movable: dict[str, MovablePod] = {}
        for each in nodes:
            self.ledger.observe_node(node_facts(each.api(), vendors()))

    def put(self, name: str, card: str, memory: int, *, host: HostRequest | None = None, **traits: Any) -> World:
        home = card.rpartition("-")[0]
        pod = gpu_pod(name, mem=memory).on(home, f"{card},NVIDIA,{memory},0:;")
        self.ledger.observe_pod(pod.facts())
        uid = f"uid-{name}"
        self.book.pods[uid] = PodTraits(uid, "default", name)._replace(**traits)
        self.movable[uid] = MovablePod(pod.request(), host=host or HostRequest())
        return self

    def cards(self, *, max_moves: float = math.inf) -> DefragmentationPlan:
        return plan_whole_cards(self.ledger, self.book, self.movable, max_moves=max_moves)

    def room(self, *annotations: tuple[str, str], mem: int, count: int = 1, gpu: int = 1) -> DefragmentationPlan:
        goal = Goal(gpu_pod("new", gpu=gpu, mem=mem).annotate(*annotations).request(), count)
        return finish(plan_room(self.ledger, self.book, self.movable, goal))

    def put_instance(self, name: str, card: str, slices: int, start: int, **traits: Any) -> World:
        """A pod with an instance of so many memory slices."""
        profile, memory, cores = INSTANCES[slices]
        grant = Grant(card, "NVIDIA", memory, cores, mig=MigSlot(profile, MigPlacement(start, slices)))
        uid, home = f"uid-{name}", card.rpartition("-")[0]
        self.ledger.observe_pod(PodFacts(uid, "default", name, home, (Span(Role.APP),), {"NVIDIA": ((grant,),)}))
        self.book.pods[uid] = PodTraits(uid, "default", name)._replace(**traits)
        self.movable[uid] = MovablePod(gpu_pod(name, mem=memory).annotate(IN_MIG_MODE).request())
        return self


def mig_node(name: str, cards: int = 1) -> NodeBuilder:
    return node(name).gpus(cards, memory=40_960, mode="mig", slots=7, profiles=A100_40GB)


def instances(plan: DefragmentationPlan) -> list[tuple[str, str, int]]:
    """Pods that move, their new cards, and where their instances begin there."""
    targets = [(move.source.name, move.target.grants["NVIDIA"][0][0]) for step in plan.steps for move in step]
    return [(name, grant.uuid, grant.mig.placement.start) for name, grant in targets if grant.mig is not None]


def moved(plan: DefragmentationPlan) -> list[tuple[str, str]]:
    return [(move.source.name, move.target.node) for step in plan.steps for move in step]


def two_half_full() -> World:
    world = World(node("n1").gpus(1, memory=CARD), node("n2").gpus(1, memory=CARD))
    return world.put("a", "n1-0", 10_000).put("b", "n2-0", 20_000)


def test_a_card_is_freed_by_moving_its_pod_to_a_card_in_use() -> None:
    plan = two_half_full().cards()
    assert (plan.moves, len(plan.gained), plan.fitting) == (1, 1, 0)


@pytest.mark.parametrize("bare", ["a", "b"])
def test_a_bare_pod_moves_only_where_no_other_pod_would_do(bare: str) -> None:
    """Both are alike, but for their priority and age."""
    world = World(node("n1").gpus(1, memory=CARD), node("n2").gpus(1, memory=CARD))
    for name, card in (("a", "n1-0"), ("b", "n2-0")):
        world.put(name, card, 10_000, priority=0 if name == bare else 9, started=99 if name == bare else 0)
    world.movable[f"uid-{bare}"] = world.movable[f"uid-{bare}"]._replace(is_bare=True)
    assert [name for name, _ in moved(world.cards())] == ["b" if bare == "a" else "a"]
    assert [name for name, _ in moved(world.room(mem=CARD))] == ["b" if bare == "a" else "a"]


def test_a_pod_that_is_being_deleted_is_not_moved() -> None:
    world = two_half_full()
    for uid, traits in world.book.pods.items():
        world.book.pods[uid] = traits._replace(is_leaving=True)
    assert world.cards().moves == 0


def test_pods_do_not_move_to_idle_cards() -> None:
    world = World(node("n1").gpus(1, memory=CARD), node("n2").gpus(3, memory=CARD)).put("a", "n1-0", 10_000)
    plan = world.cards()
    assert (plan.moves, plan.fitting) == (0, 3)


@pytest.mark.parametrize(
    ("traits", "expected"),
    [({"priority": 5}, "b"), ({"started": -9}, "b"), ({"protection": "opted out"}, "b"), ({}, "a")],
)
def test_of_two_pods_the_cheaper_one_moves(traits: dict[str, Any], expected: str) -> None:
    world = World(node("n1").gpus(1, memory=CARD), node("n2").gpus(1, memory=CARD))
    world.put("a", "n1-0", 20_000, **traits).put("b", "n2-0", 20_000)
    assert [name for name, _ in moved(world.cards())] == [expected]


def test_a_pod_that_opted_out_is_counted_as_a_reason() -> None:
    world = two_half_full()
    for uid in world.book.pods:
        world.book.pods[uid] = world.book.pods[uid]._replace(protection="opted out")
    plan = world.cards()
    assert (plan.moves, plan.kept) == (0, (("opted out", 2),))


def test_a_budget_that_allows_nothing_keeps_a_pod() -> None:
    world = two_half_full()
    world.book.budgets_of = {"uid-a": ("pdb",), "uid-b": ("pdb",)}
    assert world.cards().moves == 0
    world.book.allowed = {"pdb": 1}
    assert world.cards().moves == 1


def test_a_gang_moves_in_one_step_or_stays() -> None:
    world = World(*(node(name).gpus(1, memory=CARD) for name in ("n1", "n2", "n3")))
    world.put("a", "n1-0", 10_000, group="g").put("b", "n2-0", 10_000, group="g").put("c", "n3-0", 20_000)
    world.book.pods["uid-c"] = world.book.pods["uid-c"]._replace(protection="stays")
    plan = world.cards()
    assert [{move.source.name for move in step} for step in plan.steps] == [{"a", "b"}]
    assert len(plan.gained) == 2
    del world.movable["uid-b"]
    assert world.cards().moves == 0


def test_others_make_room_for_a_pod_that_must_leave() -> None:
    world = World(*(node(name).gpus(1, memory=CARD) for name in ("n1", "n2", "n3")))
    world.put("large", "n1-0", 30_000).put("mid", "n2-0", 15_000).put("fixed", "n3-0", 20_000, protection="stays")
    world.put("wide", "n2-0", 1_000, protection="stays")
    assert moved(world.cards()) == [("mid", "n3"), ("large", "n2")]


@pytest.mark.no_cover
def test_in_a_large_cluster_others_make_room_too() -> None:
    """More pods may move than an exact search of all of them allows, so cards are looked at a few at a time."""
    names = [f"n{number:02}" for number in range(30)]
    world = World(*(node(name).gpus(1, memory=CARD) for name in names))
    for first in (0, 4, 8):
        cards = [f"n{first + number:02}-0" for number in range(4)]
        world.put(f"large-{first}", cards[0], 30_000)
        for card, (memory, fixed) in zip(cards[1:], ((12_000, 8_000), (15_000, 10_000), (18_000, 10_000)), strict=True):
            world.put(f"small-{card}", card, memory).put(f"fixed-{card}", card, fixed, protection="stays")
    for name in names[12:]:
        world.put(f"full-{name}", f"{name}-0", 39_000)
    plan = world.cards()
    assert (plan.problem, len(plan.gained), plan.moves) == ("", 3, 6)


def test_the_largest_number_of_moves_is_kept() -> None:
    world = World(*(node(name).gpus(2, memory=CARD) for name in ("n1", "n2", "n3")))
    for number, card in enumerate(("n1-0", "n1-1", "n2-0", "n2-1", "n3-0", "n3-1")):
        world.put(f"p{number}", card, 10_000)
    assert (world.cards().moves, world.cards(max_moves=2).moves) == (4, 2)


def test_a_full_host_takes_no_pod() -> None:
    world = World(node("n1").gpus(1, memory=CARD), node("n2").gpus(1, memory=CARD))
    world.put("a", "n1-0", 10_000, host=HostRequest(2_000, 0)).put("b", "n2-0", 20_000, protection="stays")
    world.ledger.observe_host("n2", HostRequest(1_000, 0))
    assert world.cards().moves == 0
    world.ledger.observe_host("n2", HostRequest(2_000, 0))
    assert world.cards().moves == 1
    assert world.ledger.arrays.host_free("n2") == (2_000, 0), "as before"


def test_room_for_a_pod_with_two_cards_is_made_on_one_node() -> None:
    world = World(node("n1").gpus(2, memory=CARD), node("n2").gpus(2, memory=CARD))
    world.put("a", "n1-0", 10_000).put("b", "n2-0", 10_000).put("c", "n2-1", 10_000)
    plan = world.room(gpu=2, mem=CARD)
    assert (moved(plan), [facts.node for facts in plan.gained]) == ([("a", "n2")], ["n1"])


def test_copies_that_fit_need_no_move() -> None:
    plan = two_half_full().room(mem=20_000, count=2)
    assert (plan.fitting, plan.moves, plan.gained) == (2, 0, ())


def test_a_plan_that_cannot_be_made_again_is_found_out() -> None:
    world = two_half_full()
    plan = world.cards()
    world.put("late", plan.steps[0][0].target.node + "-0", 20_000)
    assert "does not fit" in replay_moves(world.ledger, plan.steps, world.movable, ())


# -- cards in MIG mode


def test_an_instance_moves_to_another_card_so_that_a_card_is_whole() -> None:
    for nodes, target in (((mig_node("n1"), mig_node("n2")), "n2-0"), ((mig_node("n1", 2),), "n1-1")):
        plan = World(*nodes).put_instance("a", "n1-0", 1, 0).put_instance("b", target, 2, 0).cards()
        assert (instances(plan), [facts.node for facts in plan.gained]) == ([("a", target, 6)], ["n1"])


def test_a_card_in_mig_mode_that_no_pod_uses_is_counted_and_left_alone() -> None:
    plan = World(mig_node("n1"), mig_node("n2", 2)).put_instance("a", "n1-0", 1, 0).cards()
    assert (plan.fitting, plan.moves) == (2, 0)


def test_an_instance_moves_to_another_place_of_its_card_so_that_a_larger_one_fits() -> None:
    world = World(mig_node("n1")).put_instance("a", "n1-0", 1, 6).put_instance("b", "n1-0", 1, 3, protection="stays")
    plan = world.room(IN_MIG_MODE, mem=20_096)
    [gained] = plan.gained
    slot = gained.grants["NVIDIA"][0][0].mig
    assert (instances(plan), slot) == ([("a", "n1-0", 2)], MigSlot("3g.20gb", MigPlacement(4, 4)))


def test_no_place_of_the_card_is_left_for_an_instance_in_the_way() -> None:
    world = World(mig_node("n1")).put_instance("a", "n1-0", 1, 1).put_instance("half", "n1-0", 4, 4)
    assert world.room(IN_MIG_MODE, mem=20_096).moves == 0


def test_room_for_several_instances_is_made_by_the_fewest_moves() -> None:
    """Both halves of n1-1 by one move, or one of each card by two, because two pods are in the way on n1-0."""
    world = World(mig_node("n1", 2), mig_node("n2"))
    for number in range(3):
        world.put_instance(f"small-{number}", "n1-0", 1, number + 2, protection="stays" if number == 2 else "")
    world.put_instance("half", "n1-1", 4, 0).put_instance("other", "n2-0", 1, 6, protection="stays")
    plan = world.room(IN_MIG_MODE, mem=20_096, gpu=2)
    assert (plan.problem, instances(plan)) == ("", [("half", "n2-0", 0)])
    [gained] = plan.gained
    assert sorted(grant.mig.placement.start for grant in gained.grants["NVIDIA"][0] if grant.mig) == [0, 4]


def test_room_for_instances_needs_no_more_than_what_is_left_beside_pods_that_stay() -> None:
    world = World(mig_node("n1"), mig_node("n2")).put_instance("a", "n1-0", 4, 0, protection="stays")
    world.put_instance("b", "n1-0", 1, 5).put_instance("c", "n2-0", 4, 4, protection="stays")
    assert (world.room(IN_MIG_MODE, mem=20_096, gpu=2).moves, world.room(IN_MIG_MODE, mem=20_096).moves) == (0, 0)
    plan = world.room(IN_MIG_MODE, mem=20_096, count=2)
    assert (plan.fitting, instances(plan)) == (1, [])


def test_a_plan_that_takes_too_long_is_cut_short_and_still_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more pods than one exact search knows."""
    names = [f"n{number:02}" for number in range(40)]
    world = World(*(node(name).gpus(1, memory=CARD) for name in names))
    for number, name in enumerate(names):
        world.put(f"p{number}", f"{name}-0", 10_000)
    whole = world.cards()
    before = world.ledger.state()
    monkeypatch.setattr("tessera.core.search.move_planner.MAX_WORK", 2_000)
    plan = world.cards()
    assert (plan.problem, len(plan.gained)) == ("", plan.moves)
    assert 0 < plan.moves < whole.moves == 30
    assert (whole.is_cut_short, plan.is_cut_short) == (False, True)
    assert world.ledger.state() == before


@pytest.mark.no_cover
def test_a_node_with_a_card_in_mig_mode_does_not_keep_others_from_moving() -> None:
    """There are too many pods for one search, so cards are looked at a few at a time."""
    names = [f"n{number:02}" for number in range(1, 30)]
    world = World(mig_node("n00"), *(node(name).gpus(1, memory=CARD) for name in names))
    world.put_instance("a", "n00-0", 1, 1)
    for number, name in enumerate(names[1:]):
        world.put(f"p{number}", f"{name}-0", 21_000 + 500 * number)
    world.put("small", "n01-0", 2_000)
    plan = world.cards()
    assert (plan.problem, [name for name, _ in moved(plan)]) == ("", ["small"])
