"""What is held for pods that are moved, and for those that wait: in the ledger, taken, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

import pytest

from tessera.core.ledger.holders import move_hold_uid
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.scheduler.features.moves.holds import PlaceHeld, asked_facts, hold_all, obstacle
from tessera.wire.moves import HeldCard, HeldInstance, MovePlace
from tessera.wire.objects import Workload
from tests.support.builders import A100_40GB, PodBuilder, gpu_pod, mig_profile, node
from tests.support.event_loops import in_fake_time
from tests.support.journals import JournalledWorld, assert_same_ledger, records_of, replayed
from tests.support.stepwise_scheduler import World, gangs_of, moves_of

CARD = 40_000
JOB = Workload("default", "Job", "train")


class Moves:
    """A scheduler in which places are held."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World(node("n1").gpus(1, memory=CARD), node("n2").gpus(1, memory=CARD))

    def hold(
        self,
        card: HeldCard = HeldCard("n2-0", "NVIDIA", 1, 30_000),  # noqa: B008
        *,
        owner: str = "uid-old",
        taker: Hashable = JOB,
        leaving: Sequence[str] = (),
        seconds: float = 600.0,
    ) -> str:
        """Empty, or why it is not held."""
        name = card.uuid.partition("-")[0]
        facts = asked_facts(owner, "old", MovePlace(name, (card.uuid,), (card,)))
        world = self.world
        if isinstance(taker, str):
            world.engine.make_way(taker)
        place = PlaceHeld(facts, taker, frozenset(leaving))
        return hold_all(world.ledger, [place], deadline=world.time() + seconds)

    def hold_for(self, pod: PodBuilder, *leaving: str, card: str = "n2-0", memory: int = 35_000) -> str:
        uid = pod.api().metadata.uid
        return self.hold(HeldCard(card, "NVIDIA", 1, memory), owner=uid, taker=uid, leaving=leaving)

    @property
    def ready(self) -> list[Hashable]:
        """Which pods may take their places now."""
        ledger = self.world.ledger
        return [holder.meant_for for holder in ledger.holds.of_moves() if ledger.is_free(holder)]

    @property
    def used(self) -> int:
        return self.world.cards("n2")["n2-0"][1]


def successor(name: str = "new", *, memory: int = 30_000, job: str = "train") -> PodBuilder:
    return gpu_pod(name, mem=memory).of("Job", job)


async def test_a_place_is_held_for_the_next_pod_of_the_workload_and_for_no_other() -> None:
    moves = Moves()
    assert moves.hold() == ""
    assert moves.used == 30_000
    world = moves.world
    other, new = successor("other", job="else"), successor()
    world.create(other, new)
    assert world.chosen(other) == "n1"
    assert world.chosen(new) == "n2"
    assert world.placement(new).grants["NVIDIA"][0][0].uuid == "n2-0"
    assert moves.used == 30_000, "held once"


async def test_a_place_that_is_not_free_is_not_held() -> None:
    moves = Moves()
    moves.world.create(gpu_pod("held", mem=20_000).on("n2", "n2-0,NVIDIA,20000,0:;"))
    assert moves.hold() == "no place is held on n2: the cards are not free any more"
    assert moves.used == 20_000


@pytest.mark.parametrize("card", [HeldCard("n2-9", "NVIDIA", 1, 1), HeldCard("n2-0", "NVIDIA", 99, 1)])
async def test_a_card_that_is_unknown_or_has_no_slots_left_is_not_held(card: HeldCard) -> None:
    moves = Moves()
    assert moves.hold(card) != ""
    assert moves.used == 0


async def test_a_card_that_a_container_has_whole_is_not_held_for_another() -> None:
    moves = Moves()
    assert moves.hold(HeldCard("n2-0", "NVIDIA", 1, 20_000, cores=100), owner="whole") == ""
    assert "not free" in moves.hold(HeldCard("n2-0", "NVIDIA", 1, 10_000), owner="beside")


HALF, QUARTER = HeldInstance("3g.20gb", 0, 4), HeldInstance("1g.5gb", 0, 2)


@pytest.mark.parametrize(
    ("slots", "instances", "held"),
    [
        (1, (HALF,), True),
        (2, (HALF, HeldInstance("3g.20gb", 4, 4)), True),
        (2, (HALF, QUARTER), False),
        (2, (HALF, HALF), False),
        (99, (HALF,), False),
    ],
    ids=["one", "beside each other", "inside another", "twice", "more slots than there are"],
)
async def test_instances_of_one_request_are_held_if_they_fit_beside_each_other(
    slots: int, instances: tuple[HeldInstance, ...], held: bool
) -> None:
    moves = Moves(World(node("n2").gpus(1, memory=CARD, slots=7, mode="mig")))
    problem = moves.hold(HeldCard("n2-0", "NVIDIA", slots, 20_000, mig=instances))
    assert problem == ("" if held else "no place is held on n2: the cards are not free any more")


async def test_of_several_places_none_is_held_if_one_cannot_be() -> None:
    moves = Moves()
    places = [
        PlaceHeld(asked_facts(uid, "old", MovePlace("n2", ("n2-0",), (HeldCard("n2-0", "NVIDIA", 1, 30_000),))), JOB)
        for uid in ("a", "b")
    ]
    assert "not free" in hold_all(moves.world.ledger, places, deadline=600.0)
    assert moves.used == 0


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
@in_fake_time
async def test_a_place_is_held_for_its_time_however_the_clock_is_set(seconds: float) -> None:
    moves = Moves()
    moves.hold()
    moves.world.skew = seconds
    await asyncio.sleep(590)
    moves.world.engine.tick()
    before = moves.world.room
    assert moves.used == 30_000
    await asyncio.sleep(20)
    moves.world.engine.tick()
    assert (moves.used, moves.world.room) == (0, before + 1)


async def test_a_replica_that_stops_deciding_holds_nothing() -> None:
    moves = Moves()
    moves.hold()
    moves.world.stop_leading()
    assert moves.used == 0


async def test_a_successor_that_does_not_fit_any_more_goes_elsewhere() -> None:
    moves = Moves()
    moves.hold()
    moves.world.create(gpu_pod("late", mem=5_000).on("n2", "n2-0,NVIDIA,5000,0:;"))
    new = successor(memory=39_000)
    moves.world.create(new)
    assert moves.world.chosen(new) == "n1"
    assert moves.used == 5_000, "a place that does not fit is given back"


OLD, WAITING = gpu_pod("old", mem=30_000), gpu_pod("waiting", mem=35_000)


def waiting_world() -> Moves:
    """Both cards have a pod, and one waits that does not fit beside them."""
    moves = Moves()
    kept = gpu_pod("kept", mem=30_000).on("n1", "n1-0,NVIDIA,30000,0:;")
    moves.world.create(kept, OLD.on("n2", "n2-0,NVIDIA,30000,0:;"), WAITING)
    return moves


async def test_what_a_pod_leaves_is_held_for_the_pod_that_waits_and_that_one_is_woken() -> None:
    moves = waiting_world()
    assert moves.hold_for(WAITING, "uid-old") == ""
    assert moves.used == 35_000, "the larger of what is claimed and what is still there"
    world = moves.world
    assert moves.ready == []
    assert set(world.filtered(WAITING)["FailedNodes"]) == {"n1", "n2"}
    assert [pods async for pods in moves_of(world.engine).wake()] == []
    world.api.delete_pod("default/old")
    world.watch()
    assert moves.ready == ["uid-waiting"]
    assert [[pod.name for pod in pods] async for pods in moves_of(world.engine).wake()] == [["waiting"]]
    other = gpu_pod("other", mem=10_000)
    world.create(other)
    assert world.chosen(other) == "n1", "no other pod gets it, not even one that comes first"
    assert world.chosen(WAITING) == "n2"
    assert moves.used == 35_000


async def test_a_claim_where_a_pod_stays_or_another_is_evicted_is_not_held() -> None:
    moves = waiting_world()
    assert "the cards are not free any more" in moves.hold_for(WAITING)
    moves.world.ledger.nominate(gpu_pod("p", mem=1).on("n2", "n2-0,NVIDIA,1,0:;").facts(), frozenset({"uid-x"}))
    assert "pods are evicted there for another pod" in moves.hold_for(WAITING, "uid-old")


async def test_the_members_of_a_gang_that_was_moved_go_where_places_are_held_for_them() -> None:
    world = World(*(node(name).gpus(1, memory=CARD) for name in ("n0", "n1", "n2", "n3")))
    moves = Moves(world)
    names, members = (
        ("n2", "n3"),
        [gpu_pod(f"m{number}", mem=30_000).in_gang("g", 2).of("Job", "g") for number in (0, 1)],
    )
    for number, name in enumerate(names):
        card = HeldCard(f"{name}-0", "NVIDIA", 1, 30_000)
        assert moves.hold(card, owner=f"old-{number}", taker=Workload("default", "Job", "g")) == ""
    other = gpu_pod("other", mem=30_000).in_gang("h", 2).of("Job", "h")
    world.create(other, other.called("other2"), members[0])
    assert {world.chosen(other), world.chosen(other.called("other2"))} == {"n0", "n1"}
    found = {world.chosen(members[0])}
    world.create(members[1])
    assert found | {world.chosen(members[1])} == set(names)
    assert not moves.world.ledger.holds.has_moves
    assert [world.cards(name)[f"{name}-0"][1] for name in names] == [30_000, 30_000]


async def test_what_pods_leave_is_held_for_the_gang_that_waits_until_all_of_them_have_left() -> None:
    names = ("n1", "n2")
    world = World(*(node(name).gpus(1, memory=CARD) for name in names))
    moves = Moves(world)
    members = [gpu_pod(f"m{number}", mem=35_000).in_gang("g", 2) for number in (0, 1)]
    old = [gpu_pod(f"old-{name}", mem=10_000).on(name, f"{name}-0,NVIDIA,10000,0:;") for name in names]
    world.create(*old, *members)
    assert all(set(world.filtered(member)["FailedNodes"]) == set(names) for member in members)
    for member, name in zip(members, names, strict=True):
        assert moves.hold_for(member, f"uid-old-{name}", card=f"{name}-0") == ""
    world.api.delete_pod("default/old-n1")
    world.watch()
    assert all(set(world.filtered(member)["FailedNodes"]) == set(names) for member in members)
    other = gpu_pod("other", mem=10_000)
    world.create(other)
    assert set(world.filtered(other)["FailedNodes"]) == set(names), "the place that is free already is still held"
    world.api.delete_pod("default/old-n2")
    world.watch()
    [woken] = [[pod.name for pod in pods] async for pods in gangs_of(world.engine).wake()]
    assert woken == ["m0", "m1"]
    assert {world.chosen(member) for member in members} == set(names)
    assert not world.ledger.holds.has_moves


def gang_of_two(moves: Moves) -> list[PodBuilder]:
    """A gang of which one member fits on n1, and none on n2 while a pod is there."""
    members = [gpu_pod(f"m{number}", mem=35_000).in_gang("g", 2) for number in (0, 1)]
    moves.world.create(OLD.on("n2", "n2-0,NVIDIA,30000,0:;"), *members)
    assert all(set(moves.world.filtered(member)["FailedNodes"]) == {"n1", "n2"} for member in members)
    return members


async def hold_for_members(moves: Moves, members: list[PodBuilder]) -> None:
    """What is free on n1, and what the pod on n2 leaves."""
    for member, card in zip(members, ("n1-0", "n2-0"), strict=True):
        assert moves.hold_for(member, "uid-old", card=card) == ""
        assert [pods async for pods in gangs_of(moves.world.engine).wake()] == [], "nothing is taken yet"


async def test_a_place_of_a_gang_that_needs_no_move_is_held_until_all_others_are_free() -> None:
    moves = Moves()
    world, members = moves.world, gang_of_two(moves)
    await hold_for_members(moves, members)
    other = gpu_pod("other", mem=10_000)
    world.create(other)
    assert set(world.filtered(other)["FailedNodes"]) == {"n1", "n2"}
    assert all(set(world.filtered(member)["FailedNodes"]) == {"n1", "n2"} for member in members)
    world.api.delete_pod("default/old")
    world.watch()
    [woken] = [[pod.name for pod in pods] async for pods in gangs_of(world.engine).wake()]
    assert woken == ["m0", "m1"]
    assert {world.chosen(member) for member in members} == {"n1", "n2"}
    assert not world.ledger.holds.has_moves


async def test_what_a_gang_holds_in_its_turn_makes_way_for_what_moves_hold_for_it() -> None:
    moves = Moves()
    world, members = moves.world, gang_of_two(moves)
    gang = gangs_of(world.engine).registry.of("uid-m0")
    assert gang is not None
    gangs_of(world.engine).turns.favoured = gang
    gang.note_change()
    world.filtered(members[0])
    assert gangs_of(world.engine).holds.count(gang) == 1, "on n1"
    await hold_for_members(moves, members)
    world.create(gpu_pod("late", mem=100).on("n2", "n2-0,NVIDIA,100,0:;"))
    world.filtered(members[0])
    assert gangs_of(world.engine).holds.count(gang) == 0, "it holds nothing beside them"


async def test_places_that_are_too_few_for_a_gang_are_released_and_it_is_planned_like_any_other() -> None:
    moves = Moves()
    moves.hold()
    members = [gpu_pod(f"m{number}", mem=30_000).in_gang("g", 2).of("Job", "train") for number in (0, 1)]
    moves.world.create(*members)
    assert {moves.world.chosen(member) for member in members} == {"n1", "n2"}
    assert moves.used == 30_000


async def test_places_that_are_too_few_for_a_gang_are_not_held_for_it() -> None:
    moves = Moves()
    moves.hold()
    member = gpu_pod("m0", mem=30_000).in_gang("g", 2).of("Job", "train")
    moves.world.create(member)
    coordinator = gangs_of(moves.world.engine)
    gang = coordinator.registry.of("uid-m0")
    assert gang is not None
    gang.members["uid-m0"].candidates = moves.world.selector.candidates(("n1", "n2"))
    assert not coordinator.holds.hold_moved(gang, member.api().workload)
    assert (coordinator.holds.count(gang), moves.used) == (0, 0)


async def test_a_mig_place_is_held_and_another_that_overlaps_it_is_not() -> None:
    profile = mig_profile("1g.10gb", 9_728, 14, 1, 0, 1, 2, 3, 4, 5, 6)
    card = node("n2").gpus(1, memory=80_000, mode="mig", profiles=[profile])
    moves = Moves(World(node("n1").gpus(1, memory=CARD), card))
    assert moves.hold(HeldCard("n2-0", "NVIDIA", 1, 9_728, 14, (HeldInstance("1g.10gb", 3, 1),))) == ""
    [mig] = moves.world.ledger.node("n2").cards[0].mig  # type: ignore[union-attr]
    assert (mig.profile, mig.placement.start) == ("1g.10gb", 3)
    held = moves.world.ledger.holder(move_hold_uid("uid-old"))
    assert held is not None
    assert obstacle(moves.world.ledger, held.facts._replace(uid=move_hold_uid("other")), frozenset()) != ""
    assert moves.hold(HeldCard("n2-0", "NVIDIA", 1, 9_728)) != "", "no place on a card in MIG mode"


async def test_an_instance_gets_the_place_that_was_held_though_the_plain_rule_would_take_another() -> None:
    card = node("n2").gpus(1, memory=40_960, mode="mig", profiles=A100_40GB)
    moves = Moves(JournalledWorld(node("n1").gpus(1, memory=CARD), card))
    held = HeldCard("n2-0", "NVIDIA", 1, 4_864, 14, mig=(HeldInstance("1g.5gb", 2, 1),))
    moves.hold(held)
    new = successor(memory=4_000).annotate(("nvidia.com/vgpu-mode", "mig"))
    moves.world.create(new)
    assert moves.world.chosen(new) == "n2"
    slot = moves.world.placement(new).grants["NVIDIA"][0][0].mig
    assert slot == MigSlot("1g.5gb", MigPlacement(2, 1)), "and not at 6"
    assert isinstance(moves.world, JournalledWorld)
    assert_same_ledger(replayed(records_of(moves.world.journal)), moves.world.ledger)


async def test_the_place_is_the_one_that_was_held_and_a_replay_finds_it_too() -> None:
    """The plain rule would take the first card of two that are alike."""
    moves = Moves(JournalledWorld(node("n1").gpus(1, memory=CARD), node("n2").gpus(2, memory=CARD)))
    moves.hold(HeldCard("n2-1", "NVIDIA", 1, 30_000))
    new = successor()
    moves.world.create(new)
    assert moves.world.chosen(new) == "n2"
    assert moves.world.placement(new).grants["NVIDIA"][0][0].uuid == "n2-1"
    assert isinstance(moves.world, JournalledWorld)
    replay = replayed(records_of(moves.world.journal))
    assert_same_ledger(replay, moves.world.ledger)
