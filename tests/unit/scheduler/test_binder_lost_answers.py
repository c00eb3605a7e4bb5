from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from tessera.core.ledger.holders import GrantState
from tessera.kube.errors import AccessError
from tessera.scheduler.pod_cycle import CycleState
from tessera.scheduler.tenure import NOT_LEADING
from tessera.scheduler.versioned_write import ATTEMPTS
from tessera.wire import keys
from tessera.wire.objects import PodStatus
from tests.support.binding import FREE, HELD, KEY, PLAIN, POD, agent, node_of, ready, unknown
from tests.support.builders import gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent, refused
from tests.support.logs import captured
from tests.support.stepwise_scheduler import (
    LOCK,
    RESERVATION,
    World,
    answering,
    serving_downward_api,
)

# -- answers that are lost


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        (Step(lost_answer(), done=True), ["bind", "get_pod"]),
        (Step(lost_answer()), ["bind", "get_pod", "bind"]),
        (Step(never_sent()), ["bind", "bind"]),
    ],
    ids=["took effect", "was lost before", "never left"],
)
@in_fake_time
async def test_a_bind_without_an_answer_is_looked_up_and_repeated_only_if_it_has_no_effect(
    step: Step, calls: list[str]
) -> None:
    world = ready()
    world.api.script("bind", step)
    assert await world.bound(POD) == ""
    assert (world.api.calls, world.cards()) == (calls, HELD)
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_is_never_answered_and_never_done_goes_back_to_a_reservation() -> None:
    world = ready()
    world.api.always("bind", lost_answer())
    assert await world.bound(POD) == "no answer within 30 s"
    assert world.api.calls.count("bind") == ATTEMPTS
    assert (world.state(POD), world.cards()) == (GrantState.RESERVED, HELD)


@in_fake_time
async def test_a_bind_whose_look_up_fails_at_first_is_looked_up_again() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), done=True))
    world.api.script("get_pod", never_sent(), refused(500), AccessError("no token"))
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_was_lost_while_its_pod_was_deleted_frees_the_card() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), meanwhile=lambda: world.api.delete_pod(KEY)))
    assert await world.bound(POD) == "no answer within 30 s"
    assert world.agrees()


# -- when the effect of a write is unknown


@in_fake_time
async def test_a_pod_that_ended_while_its_bind_had_no_answer_frees_its_card() -> None:
    world = ready()
    ended = msgspec.structs.replace(world.api.pods[KEY], status=PodStatus(phase="Failed"))
    world.api.script("bind", lost_answer())
    world.api._store_pod(KEY, ended)
    assert await world.bound(POD) == "pod default/p has ended already"
    assert (world.api.calls, world.cards()) == (["bind", "get_pod"], FREE)


@in_fake_time
async def test_a_bind_of_unknown_end_frees_nothing() -> None:
    world = ready()
    await unknown(world, done=True)
    assert world.cards() == HELD
    assert world.filtered(gpu_pod("thief", mem=81000))["NodeNames"] is None


@in_fake_time
async def test_a_bind_of_unknown_end_that_was_done_is_kept_when_the_watch_shows_it() -> None:
    world = ready()
    await unknown(world, done=True)
    world.watch()
    await asyncio.sleep(RESERVATION * 2)
    world.cycles.tick()
    assert (world.state(POD), world.cards()) == (GrantState.BOUND, HELD)
    assert world.agrees()


@in_fake_time
async def test_a_bind_of_unknown_end_that_was_never_done_is_freed_by_the_look_up() -> None:
    world = ready()
    await unknown(world, done=False)
    world.watch()
    sent = world.api.pods[KEY].metadata.resource_version
    await world.binder.look_up_unconfirmed()
    assert world.api.pods[KEY].metadata.resource_version != sent, "the binding could land yet"
    assert world.cards() == FREE
    assert world.agrees()


@in_fake_time
async def test_a_bind_of_unknown_end_is_never_freed_by_time_alone() -> None:
    world = ready()
    await unknown(world, done=True)
    world.api.always("annotate_pod", refused(403, "Forbidden"))
    await asyncio.sleep(RESERVATION * 2)
    world.cycles.tick()
    with captured() as logs:
        await world.binder.look_up_unconfirmed()
    assert len(logs.of("binding uncertain")) == 1
    assert world.filtered(gpu_pod("thief", mem=81000))["NodeNames"] is None
    assert (world.cycle_state(POD), world.cards()) == (CycleState.UNCERTAIN, HELD)
    world.api.always("annotate_pod", None)
    await world.binder.look_up_unconfirmed()
    assert world.cycle_state(POD) is CycleState.BOUND
    assert world.agrees()


@in_fake_time
async def test_a_pod_of_unknown_end_is_not_written_again_after_another_replica_led() -> None:
    world = ready()
    await unknown(world, done=False)
    world.lead_again()
    world.create(gpu_pod("theirs", mem=81000).on("n1", "n1-0,NVIDIA,81000,0:;"))
    assert world.filtered(POD)["Error"] == "pod default/p may be bound to n1 already"
    assert await world.bound(POD) == "pod default/p may be bound to n1 already"
    assert node_of(world) == ""
    await world.binder.look_up_unconfirmed()
    assert world.filtered(POD)["NodeNames"] is None
    assert world.agrees()


@in_fake_time
async def test_a_reservation_from_before_another_replica_led_is_chosen_again() -> None:
    world = ready()
    world.lead_again()
    world.create(gpu_pod("theirs", mem=81000).on("n1", "n1-0,NVIDIA,81000,0:;"))
    assert (await world.bound(POD)).startswith("pod no longer fits node n1")
    assert node_of(world) == ""
    assert world.agrees()


@pytest.mark.parametrize("status", [429, 500])
@in_fake_time
async def test_a_bind_is_not_sent_again_after_another_replica_led_between_two_attempts(status: int) -> None:
    world = ready()
    world.api.script("bind", Step(refused(status), meanwhile=world.lead_again))
    assert await world.bound(POD) == NOT_LEADING
    assert (world.api.calls.count("bind"), node_of(world)) == (1, "")


def unreachable_bind(world: World) -> None:
    world.api.always("bind", never_sent())


def forbidden_credentials(world: World) -> None:
    world.api.always("bind", AccessError("token cannot be read"))


def not_leading(world: World) -> None:
    world.stop_leading()


def card_gone(world: World) -> None:
    world.api.add_node(serving_downward_api(node("n1").gpu("other")))
    world.nodes.put("n1", world.api.nodes["n1"])


@pytest.mark.parametrize("trouble", [unreachable_bind, forbidden_credentials, not_leading, card_gone])
@in_fake_time
async def test_a_later_bind_that_is_not_sent_says_nothing_about_the_earlier_one(
    trouble: Callable[[World], None],
) -> None:
    world = ready()
    await unknown(world, done=True)
    trouble(world)
    assert await world.bound(POD) != ""
    assert (world.cycle_state(POD), world.state(POD)) == (CycleState.UNCERTAIN, GrantState.RESERVED)
    assert world.agrees()


@in_fake_time
async def test_a_pod_of_unknown_end_that_turns_out_bound_after_its_turn_has_another_one() -> None:
    world = ready(answering(node("n1").gpus(1)), asking=PLAIN)
    world.api.always("bind", Step(lost_answer(), done=True))
    world.api.always("get_pod", never_sent())
    assert await world.bound(PLAIN) == "no answer within 30 s"
    await asyncio.sleep(LOCK)
    world.cycles.tick()
    assert world.queue.active == 0
    world.watch()
    assert [ticket.uid for ticket in world.queue.active_on("n1")] == ["uid-p"]
    world.api.mark_pod(KEY, {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    assert world.agrees()
    assert world.queue.active == 0


@in_fake_time
async def test_a_later_bind_that_gets_no_lock_says_nothing_about_the_earlier_one() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.always("bind", Step(lost_answer(), done=True))
    world.api.always("get_pod", never_sent())
    assert await world.bound(PLAIN) == "no answer within 30 s"
    await asyncio.sleep(LOCK)
    world.cycles.tick()  # The turn is overdue, so the next bind asks for the lock again.
    world.api.always("get_node", never_sent())
    assert await world.bound(PLAIN) == "connection refused"
    assert (world.cycle_state(PLAIN), world.cards()) == (CycleState.UNCERTAIN, HELD)


@pytest.mark.parametrize("done", [True, False])
@in_fake_time
async def test_a_pod_of_unknown_end_that_is_asked_for_again_ends_on_the_same_cards(done: bool) -> None:
    world = ready(agent("n1"), agent("n2"))
    await unknown(world, done=done)
    assert world.chosen(POD) == "n1"
    assert world.cards("n2") == {"n2-0": (0, 0, 0)}
    assert await world.bound(POD) == ""
    assert world.cards() == HELD
    assert world.agrees()


@in_fake_time
async def test_a_pod_of_unknown_end_that_turns_out_unbound_may_go_elsewhere() -> None:
    world = ready(agent("n1"), agent("n2"))
    await unknown(world, done=False)
    await world.binder.look_up_unconfirmed()
    assert world.chosen(POD, ["n2"]) == "n2"
    assert world.cards("n1") == FREE


@pytest.mark.parametrize(
    ("took", "calls", "state"),
    [(1.0, ["bind", "get_pod"], CycleState.RESERVED), (20.0, ["bind"], CycleState.BINDING)],
    ids=["refused meanwhile", "not answered yet"],
)
@in_fake_time
async def test_a_pod_that_is_bound_again_while_another_one_is_looked_up_is_left_to_that_bind(
    took: float, calls: list[str], state: CycleState
) -> None:
    world, again = ready(), POD.called("again", uid="uid-again")
    world.create(again)
    assert world.chosen(again) == "n1"
    world.api.always("bind", lost_answer())
    world.api.always("get_pod", never_sent())
    for each in (POD, again):
        assert await world.bound(each) == "no answer within 30 s"
    world.api.always("get_pod", None)
    world.api.mark_pod("default/again", {"note": "x"})  # The first write can land no more.
    world.api.script("annotate_pod", Step(delay=10.0))
    looking_up = asyncio.create_task(world.binder.look_up_unconfirmed())
    await asyncio.sleep(1)
    world.api.calls.clear()
    world.api.always("bind", Step(refused(403, "Forbidden"), delay=took))
    binding = asyncio.create_task(world.bound(again))
    await looking_up
    assert (world.api.calls, world.cycle_state(again)) == (calls, state)
    assert await binding == "403 Forbidden: scripted"


@in_fake_time
async def test_a_pod_of_unknown_end_is_not_bound_to_another_node() -> None:
    world = ready(agent("n1"), agent("n2"))
    await unknown(world, done=False)
    assert await world.bound(POD, "n2") == "pod default/p may be bound to n1 already"
    assert (world.cards("n1"), world.cards("n2")) == (HELD, {"n2-0": (0, 0, 0)})
    assert world.cycle_state(POD) is CycleState.UNCERTAIN


@pytest.mark.parametrize("bound_elsewhere", [True, False])
@in_fake_time
async def test_a_conflict_that_cannot_be_looked_up_keeps_its_reservation_for_a_while(bound_elsewhere: bool) -> None:
    world = ready(agent("n1"), agent("n2"))
    world.api.script("bind", refused(409, "Conflict"))
    world.api.always("get_pod", never_sent())
    assert await world.bound(POD) == "409 Conflict: scripted"
    assert (world.cycle_state(POD), world.cards("n1")) == (CycleState.RESERVED, HELD)
    world.api.always("get_pod", None)
    if bound_elsewhere:
        world.api.add_pod(POD.on("n2", "n2-0,NVIDIA,1000,10:;"))
        world.watch()
    await asyncio.sleep(RESERVATION)
    world.cycles.tick()
    assert world.cards("n1") == FREE
    assert world.agrees()
