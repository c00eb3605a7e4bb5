"""Pods with ResourceClaims, from filter to the end: a claim is a holder of its own, written before the Binding."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import msgspec
import pytest

from tessera.scheduler.features.claims.book import WriteState
from tessera.scheduler.features.claims.reader import MAX_CONSUMERS
from tessera.scheduler.features.claims.writer import FINALIZER
from tessera.scheduler.pod_cycle import UNSEEN_TICKS, CycleState
from tessera.wire import keys
from tessera.wire.resource_api import DRIVER, ClaimStatus, Consumer, ResourceClaim
from tests.support.builders import ALLOCATED, PodBuilder, gpu_pod, node, pod
from tests.support.claim_scheduler import (
    ClaimWorld,
    agent_node,
    claiming,
    device_class,
    exact_request,
    published,
    resource_claim,
    settle,
    templated,
)
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import RESERVATION, using_downward_api

PART: dict[str, Any] = {"memory": 4096, "cores": 30}
HELD = {"n1-0": (1, 4096, 30)}
FREE = {"n1-0": (0, 0, 0)}
USER = claiming(pod(), "c")


def ready(*, asking: PodBuilder = USER, **asks: Any) -> ClaimWorld:
    """A pod with a reservation for its claim."""
    world = ClaimWorld(agent_node().gpus(1), agent_node("n2").gpus(1))
    world.claim("c", **{**PART, **asks})
    world.create(asking)
    assert world.chosen(asking, ["n1"]) == "n1"
    return world


def record(world: ClaimWorld, name: str = "c") -> WriteState:
    found = world.claims.book.get(f"default/{name}")
    assert found is not None
    return found.state


def reserved_for(claim: ResourceClaim) -> list[str]:
    return [each.uid for each in claim.status.reserved_for or ()]


def refusal(world: ClaimWorld, asking: PodBuilder, names: list[str] | None = None) -> str:
    """The one reason of all nodes."""
    answer = world.filtered(asking, names)
    assert answer["NodeNames"] is None
    [reason] = {*(answer["FailedNodes"] or {}).values(), *(answer["FailedAndUnresolvableNodes"] or {}).values()}
    return str(reason)


def woken(world: ClaimWorld) -> list[str]:
    return [each.uid for each in world.claims.take_ready().values()]


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


# -- the claim is not ready


def test_a_pod_waits_for_a_claim_that_is_not_made_yet_and_is_not_woken_before_it_names_it() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    early, late = templated(pod()), templated(pod(), claim="p-gpu-x7")
    world.create(early)
    assert refusal(world, early) == "the claim gpu of template small does not exist yet"
    assert len(world.unschedulable) == 0
    world.claim("p-gpu-x7", owner=early, **PART)
    world.create(late)
    assert woken(world) == [], "kube-scheduler asks again by itself when the pod names its claim"
    assert world.chosen(late) == "n1"


def test_a_pod_that_is_gone_is_not_woken_by_its_claim() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(USER)
    refusal(world, USER)
    world.api.delete_pod("default/p")
    world.watch()
    world.claim("c", **PART)
    assert woken(world) == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_pod_that_was_gone_when_it_was_asked_for_is_forgotten_and_one_that_waits_is_not(is_gone: bool) -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(USER)
    if is_gone:
        world.api.delete_pod("default/p")
        world.watch()
    refusal(world, USER)
    for _ in range(UNSEEN_TICKS + 1):
        world.claims.tick()
        asyncio.run(world.work())
    assert len(world.claims.reader.waiting()) == (not is_gone)


def test_a_pod_is_woken_by_its_claim_if_it_names_it_already() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = templated(pod(), claim="p-gpu-x7")
    world.create(asking)
    assert refusal(world, asking) == "ResourceClaim p-gpu-x7 does not exist yet"
    world.claim("other", **PART)
    assert woken(world) == []
    world.claim("p-gpu-x7", owner=asking, **PART)
    assert woken(world) == ["uid-p"]


def test_a_pod_that_goes_before_it_is_woken_is_not_woken() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(USER)
    assert refusal(world, USER) == "ResourceClaim c does not exist yet"
    world.claim("c", **PART)
    world.api.delete_pod("default/p")
    world.watch()
    assert woken(world) == []


@in_fake_time
async def test_waking_a_pod_for_its_claim_takes_one_patch_and_is_repeated_if_it_fails() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = claiming(pod(), "c")
    world.create(asking)
    refusal(world, asking)
    world.sync()
    world.api.script("annotate_pod", never_sent())
    waking = [asyncio.ensure_future(work()) for work in world.engine.work()]
    world.claim("c", **PART)
    await settle()
    assert world.api.calls == ["annotate_pod"]
    await asyncio.sleep(2.0)
    assert world.api.calls == ["annotate_pod", "annotate_pod"]
    assert keys.RETRY in world.api.pods["default/p"].annotations
    for task in waking:
        task.cancel()


@in_fake_time
async def test_a_pod_that_goes_while_it_is_woken_for_its_claim_is_not_remembered() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = claiming(pod(), "c")
    world.create(asking)
    refusal(world, asking)
    world.sync()

    def delete() -> None:
        world.api.delete_pod("default/p")
        world.watch()

    world.api.script("annotate_pod", Step(error=never_sent(), meanwhile=delete))
    waking = [asyncio.ensure_future(work()) for work in world.engine.work()]
    world.claim("c", **PART)
    await settle()
    assert world.claims.take_ready() == {}
    for task in waking:
        task.cancel()


def test_a_claim_that_was_made_for_another_pod_is_not_used() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = templated(pod(), claim="x")
    world.claim("x", owner=pod("q"), **PART)
    world.create(asking)
    assert refusal(world, asking) == "ResourceClaim x was not made for this pod"


@pytest.mark.parametrize(
    ("asks", "reason"),
    [
        ({"of_class": "net"}, "is not for devices of gpu.tessera.io alone; leave pods with such claims to the default"),
        ({"of_class": "none"}, 'the DeviceClass "none" does not exist'),
        ({"selector": "device.attributes[1]"}, "is not supported"),
    ],
)
def test_a_claim_that_is_not_served_is_refused_with_its_name_and_the_reason(asks: dict[str, Any], reason: str) -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.classes["net"] = device_class("net", "net.example.com")
    world.start()
    world.restart()
    world.claim("c", **asks)
    world.create(USER)
    text = refusal(world, USER)
    assert text.startswith("ResourceClaim c: request gpu: ")
    assert reason in text


def test_a_pod_is_woken_when_the_class_of_its_claim_appears() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.claim("c", of_class="gold", **PART)
    world.create(USER)
    refusal(world, USER)
    world.claims.classes.put("gold", device_class("gold"))
    assert woken(world) == ["uid-p"]
    assert world.chosen(USER) == "n1"


def test_a_claim_that_was_read_before_its_class_was_known_is_read_again_once_it_is_released() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.claim("c", of_class="gold", **PART)
    world.create(USER)
    refusal(world, USER)
    world.api.change_claim("default/c", world.allocation("n1"))
    world.watch()
    world.claims.classes.put("gold", device_class("gold"))
    world.api.change_claim("default/c", ClaimStatus())
    world.watch()
    assert world.chosen(USER) == "n1"


def test_a_claim_that_is_being_deleted_is_not_allocated() -> None:
    world = ready()
    world.api.change_claim("default/c", deletion_timestamp="2026-01-01T00:00:00Z")
    world.watch()
    assert refusal(world, USER) == "ResourceClaim c is being deleted"


def test_a_node_takes_claims_only_while_its_pool_is_complete_and_offers_them() -> None:
    built = agent_node().gpus(1)
    world = ClaimWorld(built)
    world.claim("c", **PART)
    world.create(USER)
    key = f"n1-{DRIVER}"
    for pool in (published(built, generation=2, count=2), published(built, generation=3, managed=False), None):
        if pool is None:
            world.claims.pools.drop(key)
        else:
            world.claims.pools.put(key, pool)
        assert "CardSelectorMismatch" in refusal(world, USER)
    assert world.chosen(gpu_pod("classic", mem=10)) == "n1"
    rooms = world.room
    world.claims.pools.put(key, published(built, generation=4))
    assert world.room > rooms
    assert world.chosen(USER) == "n1"


# -- claims of several pods


@in_fake_time
async def test_pods_that_share_a_claim_run_where_it_is_and_it_counts_once() -> None:
    world = ready()
    other = claiming(pod("q"), "c")
    await world.bound(USER)
    world.create(other)
    assert refusal(world, other, ["n2"]) == "ResourceClaim c is allocated on node n1"
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
    assert refusal(world, other) == "ResourceClaim c is being allocated for another pod"
    assert await world.bound(USER) == ""
    assert woken(world) == ["uid-q"]
    assert world.chosen(other, ["n1", "n2"]) == "n1"


def test_a_claim_has_at_most_so_many_consumers() -> None:
    world = ready()
    consumers = tuple(Consumer(resource="pods", name=f"u{i}", uid=f"u{i}") for i in range(MAX_CONSUMERS))
    allocated = world.allocation("n1")
    world.api.change_claim("default/c", ClaimStatus(allocated.allocation, consumers))
    world.watch()
    assert refusal(world, claiming(pod("q"), "c")) == "ResourceClaim c is used by 256 pods; at most 256"


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
    refusal(world, other, ["n2"])
    await world.work()
    assert reserved_for(world.stored("c")) == ["uid-p"]


@in_fake_time
async def test_claims_of_one_pod_on_two_nodes_are_released() -> None:
    world = ClaimWorld(agent_node().gpus(1), agent_node("n2").gpus(1))
    for name, where in (("c", "n1"), ("d", "n2")):
        world.claim(name, **PART)
        world.api.change_claim(f"default/{name}", world.allocation(where))
    world.create(asking := claiming(pod(), "c", "d"))
    assert refusal(world, asking) == "ResourceClaim d is allocated on node n2, ResourceClaim c on node n1"
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
    refusal(world, asking)  # kube-scheduler has given the bind up, and asks again
    await settle()
    assert world.stored("c").status.allocation is not None
    assert await binding != "", "d is another scheduler's now"
    await world.work()
    refusal(world, asking)
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


# -- restarts and other deciders


@in_fake_time
async def test_after_a_crash_between_claim_and_binding_the_pod_is_bound_where_its_claim_is() -> None:
    world = ready()
    world.api.always("bind", never_sent())
    assert await world.bound(USER) != ""
    world.api.always("bind", None)
    world.restart()
    assert world.cards() == HELD
    assert world.chosen(USER, ["n1", "n2"]) == "n1"
    assert await world.bound(USER) == ""
    assert reserved_for(world.stored("c")) == ["uid-p"]
    assert world.agrees()


@in_fake_time
async def test_a_binding_that_failed_for_now_is_sent_again_without_writing_the_claim_again() -> None:
    world = ready()
    world.api.always("bind", refused(429))
    assert await world.bound(USER) != ""
    world.api.always("bind", None)
    world.api.calls.clear()
    assert world.cycle_state(USER) is CycleState.RESERVED
    assert await world.bound(USER) == ""
    assert world.api.calls == ["bind"]
    assert world.agrees()


@in_fake_time
async def test_a_take_over_touches_what_an_earlier_decider_may_be_about_to_write() -> None:
    world = ready()
    world.claims.classes.put("net", device_class("net", "net.example.com"))
    for name, asks in (("used", PART), ("half", PART), ("net", {"of_class": "net"}), ("early", {"of_class": "none"})):
        world.claim(name, **asks)
    mine = Consumer(resource="pods", name="p", uid="uid-p")
    world.api.change_claim("default/used", world.allocation("n1", "used"))
    half = world.allocation("n1", "half").allocation
    world.api.change_claim("default/half", ClaimStatus(half, (mine,)))
    before = dict(world.api.claims)
    assert await world.engine.takeover.run(0) is not None
    touched = {key for key, claim in world.api.claims.items() if claim != before[key]}
    assert touched == {"default/c", "default/half", "default/early"}
    assert "409" in await world.bound(USER)
    world.watch()
    assert await world.bound(USER) == "pod default/p: another replica has taken over"
    assert world.stored("c").status == ClaimStatus()


@in_fake_time
async def test_a_claim_that_another_replica_has_fenced_is_not_written() -> None:
    world = ready()
    world.api.change_claim("default/c", annotations={keys.FENCE: "another"})
    assert "409" in await world.bound(USER)
    world.watch()
    assert (world.stored("c").status, world.cards()) == (ClaimStatus(), FREE)
    assert world.chosen(USER, ["n1"]) == "n1", "filter accepts what it has seen"
    assert await world.bound(USER) == ""


# -- faults of the write


@in_fake_time
async def test_a_claim_that_was_changed_meanwhile_is_written_in_its_new_version() -> None:
    world = ready()
    world.api.change_claim("default/c", annotations={"note": "changed"})
    assert await world.bound(USER) == ""
    assert world.agrees()


@in_fake_time
async def test_a_claim_that_was_deleted_meanwhile_leaves_nothing_behind() -> None:
    world = ready()
    world.api.delete_claim("default/c")
    assert await world.bound(USER) != ""
    world.watch()
    assert world.cards() == FREE
    assert world.agrees()


@pytest.mark.parametrize("done", [True, False])
@in_fake_time
async def test_a_lost_answer_is_looked_up_before_the_pod_is_bound(done: bool) -> None:
    world = ready()
    world.api.script("write_claim_status", Step(lost_answer(), done=done))
    assert await world.bound(USER) == ""
    assert reserved_for(world.stored("c")) == ["uid-p"]
    assert world.agrees()


@pytest.mark.parametrize("done", [True, False])
@in_fake_time
async def test_a_write_of_unknown_effect_holds_its_slice_until_it_cannot_land_any_more(done: bool) -> None:
    world = ready(asking=templated(pod(), claim="c"), owner=pod())
    asking = templated(pod(), claim="c")
    cut_off = partial(world.api.always, "mark_claim", never_sent())
    world.api.always("write_claim_status", Step(lost_answer(), done=done, meanwhile=cut_off))
    world.api.always("get_claim", never_sent())
    assert await world.bound(asking) != ""
    assert (record(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    world.api.delete_pod("default/p")
    world.api.changes.clear()
    world.pods.drop("default/p")
    assert world.cards() == HELD, "the write may land although its pod is gone"
    await world.claims.writer.look_up_uncertain()
    assert (record(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    world.api.always("mark_claim", None)
    await world.claims.writer.look_up_uncertain()
    assert (record(world), world.cards()) == (WriteState.IDLE, HELD if done else FREE)
    assert world.agrees()


@in_fake_time
async def test_a_write_that_landed_unheard_and_was_taken_back_is_not_sent_again() -> None:
    world = ready()
    world.api.script("write_claim_status", Step(lost_answer(), done=True))

    def take_back() -> None:
        """The informer shows the allocation, and that kube-controller-manager ends it: the room is free."""
        world.watch()
        world.api.change_claim("default/c", ClaimStatus())
        world.watch()
        assert world.cards() == FREE

    world.api.script("get_claim", Step(meanwhile=take_back))
    assert "released meanwhile" in await world.bound(USER)
    assert world.stored("c").status.allocation is None
    assert world.agrees()


@in_fake_time
async def test_a_pod_waits_while_a_write_of_its_claim_is_uncertain() -> None:
    world = ready()
    world.api.always("write_claim_status", lost_answer())
    world.api.script("mark_claim", Step(), never_sent())
    await world.bound(USER)
    world.watch()
    assert refusal(world, USER) == "ResourceClaim c is being written"
    await world.claims.writer.look_up_uncertain()
    assert woken(world) == ["uid-p"]


@in_fake_time
async def test_a_change_of_the_claim_shows_what_became_of_an_uncertain_write() -> None:
    world = ready()
    world.api.always("write_claim_status", lost_answer())
    world.api.script("mark_claim", Step(), never_sent())
    await world.bound(USER)
    world.watch()
    assert (record(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    world.api.change_claim("default/c", annotations={"note": "changed"})
    world.watch()
    assert (record(world), world.cards()) == (WriteState.IDLE, FREE)


@in_fake_time
async def test_a_bind_that_is_cut_off_while_its_claim_is_written_keeps_the_slice() -> None:
    world = ready()
    world.api.script("mark_claim", Step())
    world.api.script("write_claim_status", Step(delay=60.0))
    binding = asyncio.ensure_future(world.bound(USER))
    await asyncio.sleep(1.0)
    binding.cancel()
    await settle()
    assert (record(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    await world.claims.writer.look_up_uncertain()
    assert world.cards() == FREE


@in_fake_time
async def test_a_bind_that_is_cut_off_before_its_claims_are_sent_leaves_none_of_them_in_writing() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    for name in ("a", "b"):
        world.claim(name, **PART)
    asking = claiming(pod(), "a", "b")
    world.create(asking)
    world.chosen(asking)
    binding = asyncio.ensure_future(world.bound(asking))
    await asyncio.sleep(0)
    binding.cancel()
    await settle()
    assert [record(world, name) for name in ("a", "b")] == [WriteState.UNCERTAIN] * 2
    await world.claims.writer.look_up_uncertain()
    assert world.cards() == FREE
    world.watch()
    await world.run(asking)


@in_fake_time
async def test_a_binding_of_unknown_effect_is_not_void_because_a_claim_is_gone() -> None:
    asking = using_downward_api(claiming(gpu_pod(mem=1000), "c"))
    world = ready(asking=asking)
    world.api.always("bind", lost_answer())
    world.api.always("get_pod", never_sent())
    assert await world.bound(asking) != ""
    world.api.delete_claim("default/c")
    world.watch()
    assert await world.bound(asking) == "ResourceClaim default/c was deleted"
    assert world.cycle_state(asking) is CycleState.UNCERTAIN
    assert world.cards()["n1-0"][1] == 5096, "it may be bound, and use the claim's part"


@in_fake_time
async def test_an_object_that_is_older_than_what_was_written_changes_nothing() -> None:
    world = ready()
    old = world.stored("c")
    await world.bound(USER)
    world.claims.claims.put("default/c", old)
    assert world.cards() == HELD


@in_fake_time
async def test_a_claim_that_was_made_again_is_known_when_the_informer_shows_it() -> None:
    world = ready()
    world.api.delete_claim("default/c")
    world.api.add_claim(resource_claim("c", uid="uid-again", **PART))
    assert "409" in await world.bound(USER)
    found = world.claims.book.get("default/c")
    assert (found is not None and found.uid) == "uid-claim-c"
    world.watch()
    assert world.cards() == FREE
    await world.bound(USER, world.chosen(USER, ["n1"]))
    assert world.held() == {"uid-again": 4096}
    assert world.agrees()


@in_fake_time
async def test_an_answer_that_comes_after_the_claim_is_gone_changes_nothing() -> None:
    world = ready()

    def delete() -> None:
        world.api.delete_claim("default/c")
        world.watch()

    world.api.script("bind", Step(meanwhile=delete))
    found = world.claims.book.get("default/c")
    assert found is not None
    await world.bound(USER)
    world.claims.book.finish(found, found.claim)
    world.claims.book.learn(found, found.claim)
    assert (world.cards(), world.claims.book.get("default/c")) == (HELD, None)
    assert world.held() == {"uid-p": 4096}


@in_fake_time
async def test_a_claim_is_not_written_by_a_replica_that_does_not_lead_any_more() -> None:
    world = ready()
    world.api.script("mark_claim", Step(meanwhile=world.stop_leading))
    assert await world.bound(USER) != ""
    assert world.stored("c").status == ClaimStatus()


@in_fake_time
async def test_a_write_of_unknown_effect_is_kept_by_a_replica_that_does_not_lead_any_more() -> None:
    world = ready()
    world.api.script("write_claim_status", Step(lost_answer(), meanwhile=world.stop_leading))
    assert await world.bound(USER) != ""
    assert (record(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    await world.claims.writer.look_up_uncertain()
    assert record(world) is WriteState.UNCERTAIN, "only the decider may touch it"


@in_fake_time
async def test_a_pod_that_another_client_has_reserved_a_claim_for_keeps_it() -> None:
    world = ready()
    await world.bound(USER)
    world.create(other := claiming(pod("q"), "c"))
    assert world.chosen(other, ["n1"]) == "n1"
    status = world.stored("c").status
    third = Consumer(resource="pods", name="r", uid="uid-r")
    world.api.change_claim("default/c", ClaimStatus(status.allocation, (*(status.reserved_for or ()), third)))
    assert "409" in await world.bound(other)
    assert reserved_for(world.stored("c")) == ["uid-p", "uid-r"]
    assert world.chosen(other, ["n1"]) == "n1"
    assert await world.bound(other) == ""
    assert reserved_for(world.stored("c")) == ["uid-p", "uid-r", "uid-q"]


@in_fake_time
async def test_a_pod_that_was_changed_after_its_claim_was_written_is_bound_in_its_new_version() -> None:
    world = ready()
    world.api.script("bind", Step(meanwhile=lambda: world.api.mark_pod("default/p", {"note": "changed"})))
    assert await world.bound(USER) == ""
    assert world.agrees()


# -- alternatives


def _either(name: str = "c") -> ResourceClaim:
    large = {"name": "large", **exact_request(memory=60000)}
    small = {"name": "small", **exact_request(memory=4096)}
    spec = {"devices": {"requests": [{"name": "gpu", "firstAvailable": [large, small]}]}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-claim-{name}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)


@in_fake_time
async def test_the_first_alternative_that_fits_is_allocated() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    for name in ("c", "d"):
        world.api.add_claim(_either(name))
        await world.run(claiming(pod(name), name))
    results = [each.request for name in ("c", "d") for each in world.stored(name).devices_of(DRIVER)]
    assert results == ["gpu/large", "gpu/small"]
    assert world.agrees()


@in_fake_time
async def test_a_pod_is_woken_when_one_of_its_alternatives_fits() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(holder := gpu_pod("q", mem=50000), other := gpu_pod("r", mem=30000))
    assert [world.chosen(each) for each in (holder, other)] == ["n1", "n1"]
    world.api.add_claim(_either())
    world.create(USER)
    assert "CardInsufficientMemory" in refusal(world, USER)
    assert [each.uid async for each in world.unschedulable.wake(world.selector)] == []
    world.api.delete_pod("default/r")
    world.watch()
    assert [each.uid async for each in world.unschedulable.wake(world.selector)] == ["uid-p"]


# -- without --dra


def test_without_dra_claims_are_another_scheduler_s() -> None:
    world = ClaimWorld(agent_node().gpus(1), node("plain"))
    world.engine.request_reader.joins = ()
    assert world.filtered(USER)["NodeNames"] == ["n1", "plain"]
