"""What is held for the successors of pods that are moved: asked, answered, taken, ended."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec import structs

from tessera.scheduler.move_holds import MoveHolds
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.moves import HeldCard, HoldState, MoveHold, decode_move_hold, encode_move_hold
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
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
            self.world.cycles.moves,
            self.world.api,
            now=self.world.now,
            spawn=self._writes.append,
            is_ready=lambda: self.is_ready,
            on_room=self.world.unschedulable.on_room,
        )

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


async def test_a_place_is_released_when_its_time_is_over_and_the_annotation_removed() -> None:
    moves = Moves()
    await moves.annotate(MoveHold("default", "Job", "train", FAR, HOLD.cards))
    moves.world.now = lambda: FAR + 1  # type: ignore[method-assign]
    moves.holds._now = moves.world.now
    moves.holds.end_overdue()
    assert moves.used == 0
    await moves.settle()
    assert KEY not in moves.world.api.nodes["n2"].annotations


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
        "x" * 20_000,
    ],
)
async def test_what_is_no_hold_is_left_alone(text: str) -> None:
    with pytest.raises(WireError):
        decode_move_hold(text)
    moves = Moves()
    await moves.world.api.annotate_node("n2", {KEY: text})
    await moves.settle()
    assert moves.used == 0


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
