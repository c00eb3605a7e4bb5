"""What is held for the successors of pods that are moved: asked, answered, taken, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

import pytest
from msgspec import structs

from tessera.core.devices import MigPlacement, MigSlot
from tessera.core.holders import move_hold_uid
from tessera.scheduler.features.moves.holds import LONGEST_S, MoveHolds, obstacle
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.moves import HeldCard, HeldInstance, HoldState, MoveHold, decode_move_hold, encode_move_hold
from tests.support.builders import A100_40GB, NOW, PodBuilder, gpu_pod, mig_profile, node
from tests.support.event_loops import in_fake_time
from tests.support.features import gangs_of
from tests.support.journalled_scheduler import JournalledWorld
from tests.support.journals import assert_same_ledger, records_of, replayed
from tests.support.stepwise_scheduler import World

CARD = 40_000
FAR = NOW + 10**9
"""after every test"""
KEY = f"{keys.MOVE_PREFIX}uid-old"
HOLD = MoveHold("default", "Job", "train", FAR, (HeldCard("n2-0", "NVIDIA", 1, 30_000),))


class Moves:
    """A scheduler, and the part of it that follows moves, whose writes are made when `settle` says so."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World(node("n1").gpus(1, memory=CARD), node("n2").gpus(1, memory=CARD))
        self.is_ready = True
        self._writes: list[Coroutine[Any, Any, None]] = []
        self.start()

    def start(self) -> None:
        self.holds = MoveHolds(
            self.world.cycles,
            self.world.api,
            spawn=self._writes.append,
            is_ready=lambda: self.is_ready,
            make_way=gangs_of(self.world.engine).make_way,
        )

    def tick(self) -> None:
        self.world.cycles.tick()
        self.holds.tick()

    async def annotate(self, hold: MoveHold | None) -> None:
        await self.world.api.annotate_node("n2", {KEY: None if hold is None else encode_move_hold(hold)})
        await self.settle()

    async def settle(self) -> None:
        self.world.watch()
        self.holds.put_node(self.world.api.nodes["n2"])
        while self._writes:
            await self._writes.pop()
            self.world.watch()
            self.holds.put_node(self.world.api.nodes["n2"])

    async def after(self, seconds: float) -> None:
        """So much later, and after a tick."""
        await asyncio.sleep(seconds)
        await self.settle()
        self.tick()
        await self.settle()

    @property
    def ready(self) -> list[Hashable]:
        """Which pods may take their places now."""
        ledger = self.world.ledger
        return [holder.meant_for for holder in ledger.holds.of_moves() if ledger.is_free(holder)]

    @property
    def answer(self) -> MoveHold:
        return decode_move_hold(self.world.api.nodes["n2"].annotations[KEY])

    @property
    def used(self) -> int:
        return self.world.cards("n2")["n2-0"][1]


def successor(name: str = "new", *, memory: int = 30_000, job: str = "train") -> PodBuilder:
    return gpu_pod(name, mem=memory).of("Job", job)


async def test_a_place_is_held_for_the_next_pod_of_the_workload_and_for_no_other() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    assert (moves.answer.state, moves.used) == (HoldState.HELD, 30_000)
    world = moves.world
    other, new = successor("other", job="else"), successor()
    world.create(other, new)
    assert world.chosen(other) == "n1"
    assert world.chosen(new) == "n2"
    assert world.placement(new).grants["NVIDIA"][0][0].uuid == "n2-0"
    await moves.settle()
    assert moves.used == 30_000, "held once: the annotation is still there, and its place is taken"


async def test_a_place_that_is_not_free_is_refused() -> None:
    moves = Moves()
    moves.world.create(gpu_pod("held", mem=20_000).on("n2", "n2-0,NVIDIA,20000,0:;"))
    await moves.annotate(HOLD)
    assert (moves.answer.state, moves.answer.reason) == (HoldState.REFUSED, "the cards are not free any more")
    assert moves.used == 20_000


@pytest.mark.parametrize("card", [HeldCard("none", "NVIDIA", 1, 1), HeldCard("n2-0", "NVIDIA", 99, 1)])
async def test_a_card_that_is_unknown_or_has_no_slots_left_is_refused(card: HeldCard) -> None:
    moves = Moves()
    await moves.annotate(MoveHold("default", "Job", "train", FAR, (card,)))
    assert moves.answer.state is HoldState.REFUSED


async def test_a_place_is_released_when_the_annotation_goes() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    before = moves.world.room
    await moves.annotate(None)
    assert (moves.used, moves.world.room) == (0, before + 1)


@in_fake_time
async def test_a_place_is_released_when_its_time_is_over_and_the_annotation_removed() -> None:
    moves = Moves()
    await moves.annotate(MoveHold("default", "Job", "train", FAR, HOLD.cards))
    await moves.after(LONGEST_S + 1)
    assert moves.used == 0
    assert KEY not in moves.world.api.nodes["n2"].annotations


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
@in_fake_time
async def test_a_place_is_held_for_its_time_however_the_clock_is_set(seconds: float) -> None:
    moves = Moves()
    await moves.annotate(structs.replace(HOLD, until=NOW + 600))
    moves.world.skew = seconds
    await moves.after(590)
    assert moves.used == 30_000
    await moves.after(20)
    assert moves.used == 0
    assert KEY not in moves.world.api.nodes["n2"].annotations


@in_fake_time
async def test_a_place_that_is_asked_for_again_is_held_for_longer() -> None:
    moves = Moves()
    await moves.annotate(structs.replace(HOLD, until=NOW + 600))
    await moves.after(590)
    await moves.annotate(structs.replace(HOLD, until=NOW + 1200, state=HoldState.HELD))
    await moves.after(600)
    assert moves.used == 30_000
    await moves.after(20)
    assert moves.used == 0


async def test_the_annotation_of_a_place_that_is_taken_is_removed_even_if_no_other_process_does() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    moves.tick()
    await moves.settle()
    assert KEY in moves.world.api.nodes["n2"].annotations
    new = successor()
    moves.world.create(new)
    assert moves.world.chosen(new) == "n2"
    moves.tick()
    await moves.settle()
    assert KEY not in moves.world.api.nodes["n2"].annotations
    assert moves.used == 30_000


async def test_a_place_ends_when_the_pod_that_it_is_held_for_has_another() -> None:
    moves = await waiting_world()
    await moves.annotate(hold_for(WAITING, "uid-old"))
    moves.world.create(WAITING.on("n1", "n1-0,NVIDIA,35000,0:;"))
    moves.tick()
    await moves.settle()
    assert KEY not in moves.world.api.nodes["n2"].annotations
    assert moves.used == 30_000


async def test_what_was_held_is_held_again_by_the_next_process_before_it_decides() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    moves.world.restart()
    moves.is_ready = False
    moves.start()
    await moves.settle()
    assert moves.used == 0
    moves.is_ready = True
    moves.holds.recover()
    assert moves.used == 30_000


async def test_a_replica_that_stops_deciding_holds_nothing_and_answers_nothing() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    moves.is_ready = False
    moves.holds.end_term()
    assert moves.used == 0
    await moves.annotate(HOLD)
    assert moves.answer.state is HoldState.ASKED


async def test_a_process_that_goes_on_after_another_was_killed_is_answered_again() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    await moves.annotate(structs.replace(HOLD, until=FAR + 9))
    assert (moves.answer.state, moves.answer.until, moves.used) == (HoldState.HELD, FAR + 9, 30_000)
    new = successor()
    moves.world.create(new)
    assert moves.world.chosen(new) == "n2"
    await moves.annotate(HOLD)
    assert (moves.answer.state, moves.used) == (HoldState.REFUSED, 30_000)
    assert moves.answer.reason == "the pod that it is held for has its place already"


async def test_the_last_plan_for_a_pod_counts_and_what_an_older_one_holds_is_released() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    other = structs.replace(HOLD, cards=(HeldCard("n1-0", "NVIDIA", 1, 30_000),))
    await moves.world.api.annotate_node("n1", {KEY: encode_move_hold(other)})
    moves.world.watch()
    for _ in range(2):
        for name in ("n1", "n2"):
            moves.holds.put_node(moves.world.api.nodes[name])
        await moves.settle()
        assert (moves.world.cards("n1")["n1-0"][1], moves.used) == (30_000, 0)
    assert decode_move_hold(moves.world.api.nodes["n1"].annotations[KEY]).state is HoldState.HELD


async def test_a_successor_that_does_not_fit_any_more_goes_elsewhere() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    moves.world.create(gpu_pod("late", mem=5_000).on("n2", "n2-0,NVIDIA,5000,0:;"))
    new = successor(memory=39_000)
    moves.world.create(new)
    assert moves.world.chosen(new) == "n1"
    assert moves.used == 5_000, "a place that does not fit is given back"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        encode_move_hold(MoveHold("default", "", "", 0.0, HOLD.cards)),
        encode_move_hold(MoveHold("default", "Job", "j", 0.0, ())),
        encode_move_hold(MoveHold("default", "Job", "j", 0.0, (HeldCard("u", "NVIDIA", -1, 0),))),
        encode_move_hold(MoveHold("default", "Job", "j", FAR, (HeldCard("u", "NVIDIA", 1, 2**40),))),
        encode_move_hold(structs.replace(HOLD, state=HoldState.HELD, leaving=tuple(map(str, range(300))))),
        encode_move_hold(
            MoveHold("default", "Job", "j", FAR, (HeldCard("u", "NVIDIA", 1, 1, 1, (HeldInstance("1g", 0, 1),) * 17),))
        ),
        "x" * 20_000,
        encode_move_hold(HOLD)[:-1] + ', "x": "\ud800"}',
    ],
)
async def test_what_is_no_hold_is_left_alone(text: str) -> None:
    with pytest.raises(WireError):
        decode_move_hold(text)
    moves = Moves()
    await moves.world.api.annotate_node("n2", {KEY: text})
    await moves.settle()
    assert moves.used == 0


OLD, WAITING = gpu_pod("old", mem=30_000), gpu_pod("waiting", mem=35_000)


def hold_for(pod: PodBuilder, *leaving: str, memory: int = 35_000) -> MoveHold:
    cards = (HeldCard("n2-0", "NVIDIA", 1, memory),)
    return MoveHold("default", "", pod.name, FAR, cards, pod=pod.api().metadata.uid, leaving=leaving)


async def waiting_world() -> Moves:
    """Both cards have a pod, and one waits that does not fit beside them."""
    moves = Moves()
    kept = gpu_pod("kept", mem=30_000).on("n1", "n1-0,NVIDIA,30000,0:;")
    moves.world.create(kept, OLD.on("n2", "n2-0,NVIDIA,30000,0:;"), WAITING)
    return moves


async def test_what_a_pod_leaves_is_held_for_the_pod_that_waits_and_that_one_is_woken() -> None:
    moves = await waiting_world()
    await moves.annotate(hold_for(WAITING, "uid-old"))
    assert (moves.answer.state, moves.answer.reason) == (HoldState.HELD, "")
    assert moves.used == 35_000, "the larger of what is claimed and what is still there"
    world = moves.world
    assert moves.ready == []
    assert set(world.filtered(WAITING)["FailedNodes"]) == {"n1", "n2"}
    world.api.delete_pod("default/old")
    world.watch()
    assert moves.ready == ["uid-waiting"]
    other = gpu_pod("other", mem=10_000)
    world.create(other)
    assert world.chosen(other) == "n1", "no other pod gets it, not even one that comes first"
    assert world.chosen(WAITING) == "n2"
    await moves.settle()
    assert moves.used == 35_000


async def test_a_claim_where_a_pod_stays_or_another_is_evicted_is_refused() -> None:
    moves = await waiting_world()
    await moves.annotate(hold_for(WAITING))
    assert (moves.answer.state, moves.answer.reason) == (HoldState.REFUSED, "the cards are not free any more")
    moves.world.ledger.nominate(gpu_pod("p", mem=1).on("n2", "n2-0,NVIDIA,1,0:;").facts(), frozenset({"uid-x"}))
    await moves.annotate(None)
    await moves.annotate(hold_for(WAITING, "uid-old"))
    assert moves.answer.reason == "pods are evicted there for another pod"


async def test_a_claim_for_a_pod_that_is_bound_by_now_is_not_made_again_after_a_restart() -> None:
    moves = await waiting_world()
    moves.world.api.delete_pod("default/old")
    moves.world.watch()
    moves.world.create(WAITING.called("bound", uid="uid-waiting").on("n2", "n2-0,NVIDIA,35000,0:;"))
    await moves.annotate(structs.replace(hold_for(WAITING, "uid-old"), state=HoldState.HELD))
    assert moves.used == 35_000


@in_fake_time
async def test_a_place_is_held_for_longer_if_that_is_asked_but_never_for_more_than_a_day() -> None:
    moves = Moves()
    await moves.annotate(structs.replace(HOLD, until=NOW + 10**6))
    held = moves.world.ledger.holder(move_hold_uid("uid-old"))
    assert held is not None
    assert held.deadline == LONGEST_S
    await moves.after(100)
    await moves.annotate(structs.replace(HOLD, until=NOW + 500, state=HoldState.HELD))
    held = moves.world.ledger.holder(move_hold_uid("uid-old"))
    assert held is not None
    assert held.deadline == 500


async def test_the_members_of_a_gang_that_was_moved_go_where_places_are_held_for_them() -> None:
    world = World(*(node(name).gpus(1, memory=CARD) for name in ("n0", "n1", "n2", "n3")))
    moves = Moves(world)
    names, members = (
        ("n2", "n3"),
        [gpu_pod(f"m{number}", mem=30_000).in_gang("g", 2).of("Job", "g") for number in (0, 1)],
    )
    for number, name in enumerate(names):
        hold = MoveHold("default", "Job", "g", FAR, (HeldCard(f"{name}-0", "NVIDIA", 1, 30_000),))
        await world.api.annotate_node(name, {f"{keys.MOVE_PREFIX}old-{number}": encode_move_hold(hold)})
        moves.holds.put_node(world.api.nodes[name])
    other = gpu_pod("other", mem=30_000).in_gang("h", 2).of("Job", "h")
    world.create(other, other.called("other2"), members[0])
    assert {world.chosen(other), world.chosen(other.called("other2"))} == {"n0", "n1"}
    found = {world.chosen(members[0])}
    world.create(members[1])
    assert found | {world.chosen(members[1])} == set(names)
    assert not moves.world.ledger.holds.has_moves
    await moves.settle()
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
        claim = structs.replace(
            hold_for(member, f"uid-old-{name}"), cards=(HeldCard(f"{name}-0", "NVIDIA", 1, 35_000),)
        )
        await world.api.annotate_node(name, {f"{keys.MOVE_PREFIX}uid-{member.name}": encode_move_hold(claim)})
        moves.holds.put_node(world.api.nodes[name])
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
    await moves.settle()


def gang_of_two(moves: Moves) -> list[PodBuilder]:
    """A gang of which one member fits on n1, and none on n2 while a pod is there."""
    members = [gpu_pod(f"m{number}", mem=35_000).in_gang("g", 2) for number in (0, 1)]
    moves.world.create(OLD.on("n2", "n2-0,NVIDIA,30000,0:;"), *members)
    assert all(set(moves.world.filtered(member)["FailedNodes"]) == {"n1", "n2"} for member in members)
    return members


async def hold_for_members(moves: Moves, members: list[PodBuilder]) -> list[HoldState]:
    """What is free on n1, and what the pod on n2 leaves."""
    free = structs.replace(hold_for(members[0], "uid-old"), cards=(HeldCard("n1-0", "NVIDIA", 1, 35_000),))
    asked = {"n1": free, "n2": hold_for(members[1], "uid-old")}
    for name, hold in asked.items():
        await moves.world.api.annotate_node(name, {keys.MOVE_PREFIX + hold.pod: encode_move_hold(hold)})
        moves.holds.put_node(moves.world.api.nodes[name])
        await moves.settle()
        assert [pods async for pods in gangs_of(moves.world.engine).wake()] == [], "nothing is taken yet"
    nodes = moves.world.api.nodes
    return [decode_move_hold(nodes[n].annotations[keys.MOVE_PREFIX + h.pod]).state for n, h in asked.items()]


async def test_a_place_of_a_gang_that_needs_no_move_is_held_until_all_others_are_free() -> None:
    moves = Moves()
    world, members = moves.world, gang_of_two(moves)
    assert await hold_for_members(moves, members) == [HoldState.HELD] * 2
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
    assert await hold_for_members(moves, members) == [HoldState.HELD] * 2
    world.create(gpu_pod("late", mem=100).on("n2", "n2-0,NVIDIA,100,0:;"))
    world.filtered(members[0])
    assert gangs_of(world.engine).holds.count(gang) == 0, "it holds nothing beside them"


async def test_places_that_are_too_few_for_a_gang_are_released_and_it_is_planned_like_any_other() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    members = [gpu_pod(f"m{number}", mem=30_000).in_gang("g", 2).of("Job", "train") for number in (0, 1)]
    moves.world.create(*members)
    assert {moves.world.chosen(member) for member in members} == {"n1", "n2"}
    assert moves.used == 30_000


async def test_places_that_are_too_few_for_a_gang_are_not_held_for_it() -> None:
    moves = Moves()
    await moves.annotate(HOLD)
    member = gpu_pod("m0", mem=30_000).in_gang("g", 2).of("Job", "train")
    moves.world.create(member)
    coordinator = gangs_of(moves.world.engine)
    gang = coordinator.registry.of("uid-m0")
    assert gang is not None
    gang.members["uid-m0"].candidates = moves.world.selector.candidates(("n1", "n2"))
    assert not coordinator.holds.hold_moved(gang, member.api().workload)
    assert (coordinator.holds.count(gang), moves.used) == (0, 0)


async def test_a_mig_place_is_held_and_another_that_overlaps_it_refused() -> None:
    profile = mig_profile("1g.10gb", 9_728, 14, 1, 0, 1, 2, 3, 4, 5, 6)
    card = node("n2").gpus(1, memory=80_000, mode="mig", profiles=[profile])
    moves = Moves(World(node("n1").gpus(1, memory=CARD), card))
    place = HeldCard("n2-0", "NVIDIA", 1, 9_728, 14, (HeldInstance("1g.10gb", 3, 1),))
    await moves.annotate(structs.replace(HOLD, cards=(place,)))
    assert (moves.answer.state, moves.answer.reason) == (HoldState.HELD, "")
    [mig] = moves.world.ledger.node("n2").cards[0].mig  # type: ignore[union-attr]
    assert (mig.profile, mig.placement.start) == ("1g.10gb", 3)
    held = moves.world.ledger.holder(move_hold_uid("uid-old"))
    assert held is not None
    assert obstacle(moves.world.ledger, held.facts, frozenset()) != ""
    plain = structs.replace(HOLD, cards=(HeldCard("n2-0", "NVIDIA", 1, 9_728),))
    await moves.annotate(None)
    await moves.annotate(plain)
    assert moves.answer.state is HoldState.REFUSED, "no place on a card in MIG mode"


async def test_an_instance_gets_the_place_that_was_held_though_the_plain_rule_would_take_another() -> None:
    card = node("n2").gpus(1, memory=40_960, mode="mig", profiles=A100_40GB)
    moves = Moves(JournalledWorld(node("n1").gpus(1, memory=CARD), card))
    held = HeldCard("n2-0", "NVIDIA", 1, 4_864, 14, mig=(HeldInstance("1g.5gb", 2, 1),))
    await moves.annotate(structs.replace(HOLD, cards=(held,)))
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
    await moves.annotate(structs.replace(HOLD, cards=(HeldCard("n2-1", "NVIDIA", 1, 30_000),)))
    new = successor()
    moves.world.create(new)
    assert moves.world.chosen(new) == "n2"
    assert moves.world.placement(new).grants["NVIDIA"][0][0].uuid == "n2-1"
    assert isinstance(moves.world, JournalledWorld)
    replay = replayed(records_of(moves.world.journal))
    assert_same_ledger(replay, moves.world.ledger)
