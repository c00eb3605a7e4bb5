"""Plans of large gangs in slices: what others may do in a pause, and what ends a plan there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.search.gangs import FEW_MEMBERS
from tessera.scheduler.features.gangs.gang import GangState
from tessera.scheduler.features.gangs.holds import MEMBERS_AT_ONCE
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.gangs import bind_all, gang, held, state, woken
from tests.support.stepwise_scheduler import World, filter_body, gangs_of, serving_downward_api, using_downward_api

SIZE = 2 * MEMBERS_AT_ONCE + 2


class Slices(World):
    """A world with complete lists, in which filter calls go the way of the HTTP API."""

    def __init__(self, cards: int) -> None:
        super().__init__(*(serving_downward_api(node(f"n{i}").gpus(8, slots=1)) for i in range(cards // 8)))
        for handler in (self.pods, self.nodes, self.quotas):
            handler.synced()

    def asks(self, pod: PodBuilder) -> Coroutine[Any, Any, bytes]:
        """A filter call that has not begun to plan."""
        answer = self.engine.answer_filter(filter_body(pod, sorted(self.api.nodes)))
        assert not isinstance(answer, bytes)
        return answer

    async def node_for(self, pod: PodBuilder) -> str:
        [chosen] = json.loads(await self.asks(pod))["NodeNames"]
        return str(chosen)


async def pauses(call: asyncio.Task[bytes]) -> None:
    """Until the plan pauses for the first time."""
    await asyncio.sleep(0)
    assert not call.done()


@in_fake_time
async def test_a_large_gang_is_planned_in_slices_and_others_are_served_meanwhile() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    assert held(world) == MEMBERS_AT_ONCE
    await world.run(using_downward_api(gpu_pod("other")))
    await call
    assert state(world) is GangState.PLANNED
    assert audit(world.ledger) == []


@in_fake_time
async def test_members_of_a_large_gang_are_bound_together() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    first = await world.node_for(pods[0])
    binds = [asyncio.ensure_future(world.bound(pods[0], first))]
    assert await bind_all(world, pods[1:]) == [""] * (SIZE - 1)
    assert await binds[0] == ""
    assert world.agrees()


@in_fake_time
async def test_a_large_gang_that_does_not_fit_releases_what_it_held_in_a_pause() -> None:
    world, pods = Slices(48), gang(SIZE)
    world.create(*pods)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    assert held(world) == MEMBERS_AT_ONCE
    answer = json.loads(await call)
    [text] = set((answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"]).values())
    assert f"48 of {SIZE} members fit" in text
    assert (held(world), world.ledger.pods()) == (0, [])


@in_fake_time
async def test_what_becomes_free_in_a_pause_is_seen_a_second_later() -> None:
    world, size = Slices(96), FEW_MEMBERS + 2
    blockers = [using_downward_api(gpu_pod(f"blocker-{i}")) for i in range(12)]
    for number, blocker in enumerate(blockers):
        world.create(blocker)
        assert await world.bound(blocker, world.chosen(blocker, [f"n{number}"])) == ""
    world.watch()
    large = using_downward_api(gpu_pod("g-large", gpu=8)).in_gang("g", size)
    pods = [large, *gang(size)[1:]]
    world.create(*pods)
    assert json.loads(await world.asks(large))["NodeNames"] is None
    await asyncio.sleep(2)
    retry = asyncio.ensure_future(woken(world))
    while held(world) == 0:
        await asyncio.sleep(0)
    world.api.delete_pod("default/blocker-7")
    world.watch()
    assert await retry == []
    waker = asyncio.ensure_future(world.engine.waker.run())
    await asyncio.sleep(2)
    waker.cancel()
    assert state(world) is GangState.PLANNED


@in_fake_time
async def test_a_large_gang_that_becomes_complete_is_told_at_once_that_it_does_not_fit() -> None:
    world, pods = Slices(SIZE - 10), gang(SIZE)
    world.create(*pods[:-1])
    answer = json.loads(await world.asks(pods[0]))
    assert all(f"{SIZE - 1} of {SIZE} members exist" in text for text in answer["FailedNodes"].values())
    world.create(pods[-1])
    answer = json.loads(await world.asks(pods[-1]))
    assert not any("members exist" in text for text in answer["FailedNodes"].values())
    assert all("members fit; short of" in text for text in answer["FailedNodes"].values())


@in_fake_time
async def test_of_two_large_gangs_that_do_not_fit_together_one_is_planned_whole() -> None:
    world, one, other = Slices(64), gang(SIZE, name="a"), gang(SIZE, name="b")
    world.create(*one, *other)
    await asyncio.gather(world.asks(one[0]), world.asks(other[0]))
    assert [state(world, "a"), state(world, "b")] == [GangState.PLANNED, GangState.WAITING]
    assert held(world) == SIZE - 1


@in_fake_time
async def test_a_plan_ends_in_a_pause_when_the_tenure_ends() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    world.stop_leading()
    assert json.loads(await call)["Error"]
    assert (held(world), world.ledger.pods()) == (0, [])


@in_fake_time
async def test_a_plan_ends_in_a_pause_with_a_member_and_follows_with_its_replacement() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    world.api.delete_pod("default/g-1")
    world.watch()
    assert json.loads(await call)["NodeNames"]
    assert held(world) == SIZE - 1, "one of them is for the replacement"
    world.create(using_downward_api(gpu_pod("g-late")).in_gang("g", SIZE))
    assert world.chosen(using_downward_api(gpu_pod("g-late")).in_gang("g", SIZE))
    assert held(world) == SIZE - 2
    assert audit(world.ledger) == []


@in_fake_time
async def test_a_call_that_is_cancelled_in_a_pause_holds_nothing() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (held(world), world.ledger.pods()) == (0, [])
    assert await world.node_for(pods[0])


# -- what happens to a gang while another plan pauses


async def waits_behind(world: Slices, pod: PodBuilder) -> tuple[asyncio.Task[bytes], asyncio.Task[bytes]]:
    """A plan of gang `a` that pauses, and a filter call that waits for it."""
    other = gang(SIZE, name="a")
    world.create(*other)
    first = asyncio.ensure_future(world.asks(other[0]))
    await pauses(first)
    second = asyncio.ensure_future(world.asks(pod))
    await pauses(second)
    return first, second


@in_fake_time
async def test_nothing_is_held_for_a_gang_that_is_deleted_while_it_waits_for_another_plan() -> None:
    world, pod = Slices(104), gang(SIZE)[0]
    world.create(pod)
    for number in range(4):
        await world.run(using_downward_api(gpu_pod(f"other-{number}")))
    first, second = await waits_behind(world, pod)
    world.api.delete_pod("default/g-0")
    world.watch()
    await first
    assert "deleted or bound meanwhile" in json.loads(await second)["Error"]
    assert state(world) is None
    assert held(world) == SIZE - 1, "for the other gang"


@in_fake_time
async def test_a_member_that_is_deleted_in_a_pause_gets_no_place() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    world.api.delete_pod("default/g-0")
    world.watch()
    assert "deleted or bound meanwhile" in json.loads(await call)["Error"]
    assert gangs_of(world.engine).registry.of("uid-g-0") is None
    assert world.ledger.pod("uid-g-0") is None


@in_fake_time
async def test_a_pod_that_is_deleted_while_a_starving_gang_gets_its_turn_joins_no_gang() -> None:
    world, pods, late = Slices(80), gang(SIZE), gang(2, name="late")[0]
    for i in range(32):
        await world.run(using_downward_api(gpu_pod(f"small-{i}")))
    world.create(*pods, late)
    for pod in pods:
        await world.asks(pod)
    await asyncio.sleep(400)
    await woken(world)
    await asyncio.sleep(2)
    world.unschedulable.on_room()
    call = asyncio.ensure_future(world.asks(late))
    await pauses(call)
    world.api.delete_pod("default/late-0")
    world.watch()
    assert "deleted or bound meanwhile" in json.loads(await call)["Error"]
    assert state(world, "late") is None


@in_fake_time
async def test_the_holds_of_a_gang_that_is_planned_meanwhile_stay() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(*pods)
    planner, found = gangs_of(world.engine).lifecycle, gangs_of(world.engine).registry.get("default", "g")
    assert found is not None
    first = asyncio.ensure_future(planner.plan_in_slices(found, None))
    await asyncio.sleep(0)
    call = asyncio.ensure_future(world.asks(pods[0]))
    await first
    while not call.done():
        assert held(world) >= SIZE - 1
        await asyncio.sleep(0)
    assert held(world) == SIZE - 1
    assert json.loads(await call)["NodeNames"]


@in_fake_time
async def test_members_that_come_in_a_pause_take_places_that_are_planned_for_them() -> None:
    world, pods = Slices(80), gang(SIZE)
    world.create(pods[0])
    call = asyncio.ensure_future(world.asks(pods[0]))
    await pauses(call)
    world.create(*pods[1:10])
    await asyncio.sleep(0)
    assert held(world) == 2 * MEMBERS_AT_ONCE, "the plan goes on"
    assert json.loads(await call)["NodeNames"]
    assert held(world) == SIZE - 1


@in_fake_time
async def test_a_gang_that_changes_in_every_pause_is_never_planned_in_one_step() -> None:
    world, pods = Slices(800), gang(200, gang_min="100")
    world.create(*pods[:100])
    call, number = asyncio.ensure_future(world.asks(pods[0])), 100
    while not call.done():
        before = held(world)
        await asyncio.sleep(0)
        assert held(world) <= before + MEMBERS_AT_ONCE
        if not call.done():
            world.create(pods[number])
            number += 1
    text = next(iter(json.loads(await call)["FailedNodes"].values()))
    assert "its members have changed" in text
    assert held(world) == 0
    await asyncio.sleep(1)
    assert world.unschedulable.room.is_set(), "it is planned again"


@in_fake_time
async def test_a_small_gang_of_many_shapes_or_within_a_topology_is_planned_in_slices() -> None:
    world = Slices(16)
    different = [using_downward_api(gpu_pod(f"d-{i}", mem=1000 + i)).in_gang("d", 3) for i in range(3)]
    world.create(*different)
    assert await world.node_for(different[0])
    near = gang(2, name="near", gang_topology="rack")
    world.create(*near)
    assert await world.node_for(near[0])


@in_fake_time
async def test_nothing_is_held_for_a_gang_that_is_deleted_in_a_pause_before_its_other_members_came() -> None:
    world, pod = Slices(80), gang(SIZE)[0]
    world.create(pod)
    call = asyncio.ensure_future(world.asks(pod))
    await pauses(call)
    world.api.delete_pod("default/g-0")
    world.watch()
    await call
    assert (state(world), held(world)) == (None, 0)


# -- gangs that are bound in part


class Recovering(Slices):
    """What the engine does beside its answers goes on in tasks."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        self.task = asyncio.ensure_future(work)
        return self.task


@in_fake_time
async def test_nothing_is_decided_until_the_rest_of_a_large_gang_has_its_places() -> None:
    world, pods = Recovering(SIZE + 6), gang(SIZE)
    world.create(pods[0].on("n0", "n0-0,NVIDIA,81920,0:;"), *pods[1:])
    world.restart()
    for handler in (world.pods, world.nodes, world.quotas):
        assert world.engine.missing()
        handler.synced()
    assert held(world) == MEMBERS_AT_ONCE
    other = using_downward_api(gpu_pod("other", gpu=8))
    answer = world.engine.answer_filter(filter_body(other, sorted(world.api.nodes)))
    assert isinstance(answer, bytes)
    assert "places are being held for gangs that are bound in part" in json.loads(answer)["Error"]
    await world.task
    assert world.engine.missing() == ""
    assert (state(world), held(world)) == (GangState.COMPLETING, SIZE - 1)
    assert world.filtered(other)["NodeNames"] is None


@in_fake_time
async def test_no_place_is_held_if_the_tenure_ends_while_a_large_gang_gets_its_places() -> None:
    world, pods = Recovering(SIZE + 6), gang(SIZE)
    world.create(pods[0].on("n0", "n0-0,NVIDIA,81920,0:;"), *pods[1:])
    world.restart()
    for handler in (world.pods, world.nodes, world.quotas):
        handler.synced()
    world.stop_leading()
    await world.task
    assert held(world) == 0


@in_fake_time
async def test_a_member_that_is_asked_for_while_its_gang_gets_its_places_waits_for_its_own() -> None:
    world, pods = Slices(SIZE + 6), gang(SIZE)
    world.create(pods[0].on("n0", "n0-0,NVIDIA,81920,0:;"), *pods[1:])
    calls = [asyncio.ensure_future(world.asks(pods[1]))]
    await pauses(calls[0])
    calls.append(asyncio.ensure_future(world.asks(pods[2])))
    assert all(json.loads(answer)["NodeNames"] for answer in await asyncio.gather(*calls))
    assert (state(world), held(world)) == (GangState.COMPLETING, SIZE - 3)
    assert audit(world.ledger) == []
