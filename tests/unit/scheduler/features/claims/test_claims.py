"""Pods with ResourceClaims, from filter to the end: a claim is a holder of its own, written before the Binding."""

from __future__ import annotations

import asyncio
import json

import pytest

from tessera.scheduler.features.claims.reader import MAX_CONSUMERS
from tessera.scheduler.features.claims.writer import FINALIZER
from tessera.scheduler.pod_cycle import CycleState
from tessera.wire import keys
from tessera.wire.resource_api import DRIVER, ClaimStatus, Consumer
from tests.support.builders import ALLOCATED, gpu_pod, pod
from tests.support.claim_scheduler import (
    FREE,
    HELD,
    PART,
    USER,
    ClaimWorld,
    agent_node,
    claiming,
    ready,
    reserved_for,
    resource_claim,
    settle,
    templated,
    woken,
)
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step
from tests.support.stepwise_scheduler import RESERVATION, using_downward_api

# -- the usual way


@in_fake_time
async def test_a_claim_is_allocated_and_reserved_before_its_pod_is_bound() -> None:
    world = ready()
    assert world.held() == {"uid-p": 4096}
    assert await world.bound(USER) == ""
    assert world.api.calls == ["mark_claim", "write_claim_status", "bind"]
    [result] = world.stored("c").devices_of(DRIVER)
    assert (result.pool, result.device, result.request) == ("n1", "n1-0", "gpu")
    assert reserved_for(world.stored("c")) == ["uid-p"]
    assert world.held() == {"uid-claim-c": 4096}
    assert world.cards() == HELD
    [bind] = [write for write in world.api.writes if write.verb == "bind"]
    recorded = {"uid-claim-c": [{"uuid": "n1-0", "memory": 4096, "cores": 30}]}
    assert {key: json.loads(text or "") for key, text in bind.annotations.items()} == {keys.CLAIM_DEVICES: recorded}
    assert not bind.labels
    rooms = world.room
    assert world.agrees()
    assert world.room == rooms, "nothing became free"
    assert world.held() == {"uid-claim-c": 4096}


@in_fake_time
async def test_a_pod_with_claims_alone_that_is_asked_for_again_after_it_was_bound_leaves_nothing_behind() -> None:
    world = ready()
    assert await world.bound(USER) == ""
    world.watch()
    assert world.filtered(USER, ["n1"])["Error"] == "pod default/p is bound to n1"
    assert await world.bound(USER) == ""
    assert world.cycles.get("uid-p") is None
    assert world.agrees()


@in_fake_time
async def test_a_claim_that_was_made_for_its_pod_is_protected_like_any_other() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = templated(pod(), claim="p-gpu-x7")
    world.claim("p-gpu-x7", owner=asking, **PART)
    await world.run(asking)
    assert world.api.calls == ["mark_claim", "write_claim_status", "bind"]
    assert world.stored("p-gpu-x7").metadata.finalizers == [FINALIZER]
    assert world.agrees()


@in_fake_time
async def test_classic_slices_and_claims_of_one_pod_are_written_apart() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.claim("c", **PART)
    asking = using_downward_api(claiming(gpu_pod(mem=1000, cores=10), "c"))
    world.create(asking)
    assert world.chosen(asking) == "n1"
    assert world.cards() == {"n1-0": (2, 5096, 40)}
    assert await world.bound(asking) == ""
    assert world.held() == {"uid-claim-c": 4096, "uid-p": 1000}
    assert world.api.pods["default/p"].annotations[ALLOCATED] == "n1-0,NVIDIA,1000,10:;"
    assert world.agrees()
    assert world.cycle_state(asking) is CycleState.HANDING_OVER


@in_fake_time
async def test_several_claims_of_a_pod_are_written_at_once() -> None:
    world = ClaimWorld(agent_node().gpus(2))
    for name in ("a", "b"):
        world.claim(name, memory=60000)
    asking = claiming(pod(), "a", "b")
    await world.run(asking)
    assert world.cards() == {"n1-0": (1, 60000, 0), "n1-1": (1, 60000, 0)}
    assert world.agrees()


@in_fake_time
async def test_what_a_claim_held_is_free_when_it_is_released_or_gone() -> None:
    world = ready()
    await world.bound(USER)
    world.api.delete_pod("default/p")
    world.watch()
    assert world.cards() == HELD
    rooms = world.room
    world.api.change_claim("default/c", ClaimStatus())
    world.watch()
    assert (world.cards(), world.room > rooms) == (FREE, True)
    world.create(again := claiming(pod("q"), "c"))
    assert world.chosen(again, ["n1"]) == "n1"
    await world.bound(again)
    world.api.delete_pod("default/q")
    world.api.delete_claim("default/c")
    world.watch()
    assert world.cards() == FREE


def edited(world: ClaimWorld, how: str) -> None:
    """What a person with enough rights can do to a claim while its pod runs."""
    match how:
        case "deleted":
            world.api.delete_claim("default/c")
        case "released":
            world.api.change_claim("default/c", ClaimStatus())
        case "halved":
            world.api.change_claim("default/c", world.allocation("n1", memory=2048, cores=15))
        case "moved":
            world.api.change_claim("default/c", world.allocation("n2"))
        case "made again":
            world.api.delete_claim("default/c")
            world.api.add_claim(resource_claim("c", uid="uid-again", **PART))
        case "without a pool":
            world.slices.clear()
            world.claims.pools.drop(f"n1-{DRIVER}")
    world.watch()


EDITS = ["deleted", "released", "halved", "moved", "made again", "without a pool"]


@pytest.mark.parametrize("how", EDITS)
@pytest.mark.parametrize("is_started_again", [False, True])
@in_fake_time
async def test_what_a_running_pod_uses_stays_charged_whatever_becomes_of_its_claim(
    how: str, is_started_again: bool
) -> None:
    world = ready(memory=40000)
    await world.bound(USER)
    world.watch()
    edited(world, how)
    if is_started_again:
        world.restart()
        world.sync()
    used = sum(memory for _, memory, _ in world.cards("n1").values())
    assert used == 40000
    beside = using_downward_api(gpu_pod("q", mem=50000))
    world.create(beside)
    assert world.filtered(beside, ["n1"])["NodeNames"] is None
    assert world.agrees()
    world.api.delete_pod("default/p")
    if how in ("halved", "without a pool"):
        world.api.delete_claim("default/c")
    world.watch()
    assert not world.held("n1")
    assert len(world.cycles.users) == 0


@in_fake_time
async def test_a_part_that_pods_share_is_held_once_until_the_last_of_them_has_ended() -> None:
    world = ready()
    other = claiming(pod("a"), "c")
    await world.bound(USER)
    world.create(other)
    await world.bound(other, world.chosen(other))
    edited(world, "deleted")
    assert (world.held(), world.agrees()) == ({"uid-a": 4096}, True)
    world.api.delete_pod("default/a")
    assert world.agrees()
    assert world.held() == {"uid-p": 4096}
    world.api.delete_pod("default/p")
    assert world.agrees()
    assert (world.cards(), world.held()) == (FREE, {})


@in_fake_time
async def test_an_allocated_claim_without_the_finalizer_gets_it_at_a_tick() -> None:
    world = ready()
    await world.bound(USER)
    world.api.change_claim("default/c", finalizers=[])
    world.watch()
    world.api.calls.clear()
    await world.claims.writer.protect_allocated()
    assert world.api.calls == ["mark_claim"]
    world.watch()
    await world.claims.writer.protect_allocated()
    assert (world.api.calls, world.stored("c").metadata.finalizers) == (["mark_claim"], [FINALIZER])


def test_a_pod_that_ends_before_its_bind_leaves_its_claim_alone() -> None:
    world = ready()
    world.api.delete_pod("default/p")
    world.watch()
    assert (world.cards(), world.stored("c").status.allocation) == (FREE, None)
    assert world.agrees()


def test_a_reservation_for_a_claim_expires() -> None:
    world = ready()
    world.at = RESERVATION + 1
    world.cycles.tick()
    assert world.cards() == FREE
    assert world.agrees()


# -- claims of several pods


@in_fake_time
async def test_pods_that_share_a_claim_run_where_it_is_and_it_counts_once() -> None:
    world = ready()
    other = claiming(pod("q"), "c")
    await world.bound(USER)
    world.create(other)
    assert world.reason(other, ["n2"]) == "ResourceClaim c is allocated on node n1"
    assert world.chosen(other, ["n1", "n2"]) == "n1"
    assert await world.bound(other) == ""
    assert reserved_for(world.stored("c")) == ["uid-p", "uid-q"]
    assert world.cards() == HELD
    assert world.agrees()


@in_fake_time
async def test_binds_of_pods_that_share_a_claim_write_it_one_after_the_other() -> None:
    world = ready()
    await world.bound(USER)
    others = [claiming(pod(name), "c") for name in ("a", "b", "d")]
    for each in others:
        world.create(each)
        assert world.chosen(each) == "n1"
    assert await asyncio.gather(*map(world.bound, others)) == ["", "", ""]
    assert sorted(reserved_for(world.stored("c"))) == ["uid-a", "uid-b", "uid-d", "uid-p"]
    assert world.agrees()


@in_fake_time
async def test_a_claim_that_another_pod_is_about_to_allocate_is_waited_for() -> None:
    world = ready()
    other = claiming(pod("q"), "c")
    world.create(other)
    assert world.reason(other) == "ResourceClaim c is being allocated for another pod"
    assert await world.bound(USER) == ""
    assert woken(world) == ["uid-q"]
    assert world.chosen(other, ["n1", "n2"]) == "n1"


def test_a_claim_has_at_most_so_many_consumers() -> None:
    world = ready()
    consumers = tuple(Consumer(resource="pods", name=f"u{i}", uid=f"u{i}") for i in range(MAX_CONSUMERS))
    allocated = world.allocation("n1")
    world.api.change_claim("default/c", ClaimStatus(allocated.allocation, consumers))
    world.watch()
    assert world.reason(claiming(pod("q"), "c")) == "ResourceClaim c is used by 256 pods; at most 256"


@in_fake_time
async def test_a_claim_that_was_allocated_by_another_scheduler_counts_as_it_is_and_is_used_there() -> None:
    world = ready()
    allocated = world.allocation("n2", memory=1000)
    world.api.change_claim("default/c", allocated)
    assert await world.bound(USER) != ""
    world.watch()
    assert (world.cards("n1"), world.cards("n2")) == (FREE, {"n2-0": (1, 1000, 30)})
    assert world.chosen(USER) == "n2"
    assert await world.bound(USER, "n2") == ""
    assert world.agrees()


@in_fake_time
async def test_what_is_reserved_for_a_claim_is_given_back_when_the_claim_has_its_own() -> None:
    world = ready(memory=80000)
    world.api.change_claim("default/c", world.allocation("n1", memory=80000))
    world.watch()
    assert world.held() == {"uid-claim-c": 80000}
    assert await world.bound(USER) == ""
    assert world.agrees()


@in_fake_time
async def test_a_claim_that_was_released_since_it_got_its_own_part_is_not_allocated_without_a_decision() -> None:
    world = ready(memory=80000)
    world.api.change_claim("default/c", world.allocation("n1", memory=80000))
    world.watch()
    world.api.change_claim("default/c", ClaimStatus())
    world.watch()
    world.create(classic := gpu_pod("q", mem=80000))
    assert world.chosen(classic, ["n1"]) == "n1"
    assert await world.bound(USER) == "ResourceClaim default/c was released meanwhile"
    assert world.stored("c").status.allocation is None


# -- where claims are, the pod cannot run


@pytest.mark.parametrize("why", ["not a candidate", "no room"])
@in_fake_time
async def test_an_allocation_that_its_pod_cannot_use_is_released_and_decided_again(why: str) -> None:
    world = ClaimWorld(agent_node().gpus(1), agent_node("n2").gpus(1))
    world.claim("c", **PART)
    asking = claiming(gpu_pod(mem=60000), "c")
    world.create(asking)
    mine = Consumer(resource="pods", name="p", uid="uid-p")
    world.api.change_claim("default/c", ClaimStatus(world.allocation("n1").allocation, (mine,)))
    world.create(gpu_pod("q", mem=70000))
    world.chosen(gpu_pod("q", mem=70000), ["n1"])
    names = ["n2"] if why == "not a candidate" else ["n1", "n2"]
    assert world.filtered(asking, names)["NodeNames"] is None
    await world.work()
    assert world.stored("c").status == ClaimStatus()
    assert woken(world) == ["uid-p"]
    assert world.chosen(asking, names) == "n2"
    assert await world.bound(asking, "n2") == ""


@in_fake_time
async def test_an_allocation_that_other_pods_use_is_not_released() -> None:
    world = ready()
    await world.bound(USER)
    world.create(other := claiming(pod("q"), "c"))
    world.reason(other, ["n2"])
    await world.work()
    assert reserved_for(world.stored("c")) == ["uid-p"]


@in_fake_time
async def test_claims_of_one_pod_on_two_nodes_are_released() -> None:
    world = ClaimWorld(agent_node().gpus(1), agent_node("n2").gpus(1))
    for name, where in (("c", "n1"), ("d", "n2")):
        world.claim(name, **PART)
        world.api.change_claim(f"default/{name}", world.allocation(where))
    world.create(asking := claiming(pod(), "c", "d"))
    assert world.reason(asking) == "ResourceClaim d is allocated on node n2, ResourceClaim c on node n1"
    await world.work()
    assert [world.stored(name).status for name in ("c", "d")] == [ClaimStatus()] * 2
    await world.run(asking)


@in_fake_time
async def test_claims_of_a_pod_whose_bind_is_under_way_are_not_released() -> None:
    world = ClaimWorld(agent_node().gpus(1), agent_node("n2").gpus(1))
    for name in ("c", "d"):
        world.claim(name, **PART)
    world.create(asking := claiming(pod(), "c", "d"))
    assert world.chosen(asking, ["n1"]) == "n1"
    world.api.script("write_claim_status", Step(), Step(delay=60.0))
    binding = asyncio.ensure_future(world.bound(asking))
    await asyncio.sleep(1.0)
    world.api.change_claim("default/d", world.allocation("n2"))
    world.watch()
    world.reason(asking)  # kube-scheduler has given the bind up, and asks again
    await settle()
    assert world.stored("c").status.allocation is not None
    assert await binding != "", "d is another scheduler's now"
    await world.work()
    world.reason(asking)
    await world.work()
    assert world.stored("c").status.allocation is None


@in_fake_time
async def test_a_pod_is_not_bound_if_a_claim_was_released_while_another_was_written() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    for name in ("c", "d"):
        world.claim(name, **PART)
    world.create(asking := claiming(pod(), "c", "d"))
    assert world.chosen(asking, ["n1"]) == "n1"
    world.api.script("write_claim_status", Step(), Step(delay=20.0))
    binding = asyncio.ensure_future(world.bound(asking))
    await asyncio.sleep(1.0)
    world.api.change_claim("default/c", ClaimStatus())
    world.watch()
    assert "was released meanwhile" in await binding
    assert not world.api.pods["default/p"].spec.node_name
