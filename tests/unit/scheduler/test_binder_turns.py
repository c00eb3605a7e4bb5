from __future__ import annotations

import asyncio

import pytest

from tessera.core.ledger.holders import GrantState
from tessera.scheduler.pod_cycle import CycleState
from tessera.scheduler.tenure import NOT_LEADING
from tessera.wire import keys
from tests.support.binding import KEY, PLAIN, agent, node_of, ready, seconds
from tests.support.builders import PodBuilder, gpu_pod, node, pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import (
    LOCK,
    TURN,
    World,
    answering,
    using_downward_api,
)

# -- turns and locks


def other(name: str = "first") -> PodBuilder:
    return gpu_pod(name, mem=500)


async def queued(world: World) -> asyncio.Task[str]:
    """A bind that waits because another pod of the node is in handover."""
    await world.run(other())
    world.create(PLAIN)
    world.chosen(PLAIN, ["n1"])
    task = asyncio.create_task(world.bound(PLAIN))
    await asyncio.sleep(1)
    assert not task.done()
    return task


@in_fake_time
async def test_a_bind_waits_for_its_turn_and_goes_on_when_the_other_pod_has_its_devices() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    assert node_of(world) == ""
    world.api.mark_pod("default/first", {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    world.watch()
    assert await task == ""
    assert seconds() == pytest.approx(1, abs=0.01)
    assert world.agrees()


@in_fake_time
async def test_a_turn_that_does_not_come_fails_the_bind_and_keeps_the_reservation() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    assert await task == "node n1 is still handing devices to another pod"
    assert seconds() == pytest.approx(TURN, abs=0.01)
    assert (world.state(PLAIN), world.queue.waiting, world.queue.active) == (GrantState.RESERVED, 0, 1)
    assert await world.bound(PLAIN) != ""
    world.api.delete_pod("default/first")
    world.watch()
    assert await world.bound(PLAIN) == ""
    assert world.agrees()


@in_fake_time
async def test_a_pod_deleted_while_it_waits_for_its_turn_is_not_written() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    world.api.delete_pod("default/p")
    world.api.delete_pod("default/first")
    world.watch()
    assert await task == "pod default/p was deleted or bound meanwhile"
    assert [write.name for write in world.api.writes] == ["default/first"]
    assert (world.queue.active, world.queue.waiting) == (0, 0)
    assert world.agrees()


@in_fake_time
async def test_a_pod_deleted_while_it_waits_for_its_turn_takes_no_lock_and_ends_at_once() -> None:
    world = World(node("n1").gpus(1))
    task = await queued(world)
    world.api.delete_pod("default/p")
    world.watch()
    assert await task == "pod default/p was deleted or bound meanwhile"
    assert seconds() == pytest.approx(1, abs=0.01)
    assert world.api.nodes["n1"].annotations[keys.NODE_LOCK].endswith(",default,first")
    assert world.agrees()


@in_fake_time
async def test_a_bind_cancelled_while_it_waits_leaves_a_reservation_and_no_waiter() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.cycle_state(PLAIN) is CycleState.RESERVED
    assert (world.queue.active, world.queue.waiting) == (1, 0)


@in_fake_time
async def test_a_bind_that_waited_while_another_replica_led_is_not_sent() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    world.lead_again()
    world.api.delete_pod("default/first")
    world.watch()
    assert await task == NOT_LEADING
    assert (world.cycle_state(PLAIN), world.queue.active) == (CycleState.PENDING, 0)
    assert await world.bound(PLAIN) == ""
    assert world.agrees()


@in_fake_time
async def test_a_slow_write_keeps_its_turn_however_long_it_takes() -> None:
    world = ready(answering(node("n1").gpus(1)), asking=PLAIN)
    world.api.script("bind", Step(delay=LOCK + 1))
    task = asyncio.create_task(world.bound(PLAIN))
    await asyncio.sleep(LOCK)
    world.cycles.tick()
    assert [ticket.uid for ticket in world.queue.active_on("n1")] == ["uid-p"]
    assert await task == ""
    assert world.agrees()
    await asyncio.sleep(LOCK)
    world.cycles.tick()
    assert world.queue.active == 0


@pytest.mark.parametrize("cancelled", [True, False])
@in_fake_time
async def test_a_pod_that_is_seen_in_handover_while_its_bind_waits_has_its_turn(cancelled: bool) -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    world.create(PLAIN.on("n1", "n1-0,NVIDIA,1000,0:;").annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING)))
    if cancelled:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task == ""
    assert seconds() == pytest.approx(1, abs=0.01)
    assert [ticket.uid for ticket in world.queue.active_on("n1")] == ["uid-first", "uid-p"]
    world.api.mark_pod(KEY, {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    world.api.delete_pod("default/first")
    assert world.agrees()
    assert (world.queue.active, world.queue.waiting) == (0, 0)


@pytest.mark.parametrize("status", [403, 409])
@in_fake_time
async def test_a_bind_that_fails_gives_its_turn_and_its_lock_back(status: int) -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.script("bind", refused(status))
    assert await world.bound(PLAIN) != ""
    assert (world.queue.active, world.api.nodes["n1"].annotations.get(keys.NODE_LOCK)) == (0, None)


@in_fake_time
async def test_a_bound_pod_on_a_foreign_node_leaves_the_lock_for_the_plugin() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    assert await world.bound(PLAIN) == ""
    assert world.api.nodes["n1"].annotations[keys.NODE_LOCK].endswith(",default,p")
    assert world.queue.active == 1
    assert world.agrees()


@in_fake_time
async def test_a_lock_that_cannot_be_released_does_not_break_the_answer() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.script("bind", refused(403, "Forbidden"))
    world.api.script("get_node", Step(), refused(500))
    assert await world.bound(PLAIN) == "403 Forbidden: scripted"
    assert world.queue.active == 0


@in_fake_time
async def test_a_node_that_cannot_be_locked_fails_the_bind_and_keeps_the_reservation() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.script("get_node", refused(500))
    assert await world.bound(PLAIN) == "500: scripted"
    assert (world.state(PLAIN), world.queue.active) == (GrantState.RESERVED, 0)


@in_fake_time
async def test_an_unknown_end_keeps_turn_and_lock_and_the_next_try_finds_them() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.always("bind", Step(lost_answer(), done=True))
    world.api.always("get_pod", never_sent())
    assert await world.bound(PLAIN) == "no answer within 30 s"
    assert world.queue.active == 1
    world.api.always("bind", None)
    world.api.always("get_pod", None)
    assert world.chosen(PLAIN) == "n1"
    started = seconds()
    assert await world.bound(PLAIN) == ""
    assert seconds() == started
    assert world.agrees()


@in_fake_time
async def test_an_init_container_alone_is_protected_like_any_other() -> None:
    world = ready(node("n1").gpus(1), asking=pod("p").init(gpu=1).container())
    assert await world.bound(pod("p").init(gpu=1).container()) == ""
    assert keys.NODE_LOCK in world.api.nodes["n1"].annotations


@in_fake_time
async def test_a_hundred_downward_api_pods_are_bound_to_one_node_at_once() -> None:
    world = World(agent("n1", cards=10))
    many = [using_downward_api(gpu_pod(f"p{i}", mem=100 + i)) for i in range(100)]
    for asking in many:
        world.create(asking)
        world.chosen(asking)
    world.api.always("bind", Step(delay=1.0))
    assert set(await asyncio.gather(*(world.bound(asking) for asking in many))) == {""}
    assert seconds() == pytest.approx(1.0, abs=0.01)
    assert len(world.api.calls) == 100
    assert world.agrees()


@in_fake_time
async def test_a_hundred_pods_of_mixed_shapes_are_all_handed_over_one_after_the_other() -> None:
    world = World(answering(node("n1").gpus(10)))
    many = [gpu_pod(f"p{i}", mem=100 + i) for i in range(100)]
    for asking in many:
        world.create(asking)
        world.chosen(asking)
    tasks = [asyncio.create_task(world.bound(asking)) for asking in many]
    for asking in many:
        await asyncio.sleep(0.05)
        world.api.mark_pod(f"default/{asking.name}", {keys.BIND_PHASE: keys.PHASE_SUCCESS})
        world.watch()
    assert {await task for task in tasks} == {""}
    assert seconds() <= 5.01
    assert (world.queue.active, world.queue.waiting) == (0, 0)
    assert world.agrees()
