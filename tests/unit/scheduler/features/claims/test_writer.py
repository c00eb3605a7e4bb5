"""How claims are written: faults, other writers, restarts and other deciders."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tessera.scheduler.features.claims.book import WriteState
from tessera.scheduler.pod_cycle import CycleState
from tessera.wire import keys
from tessera.wire.resource_api import ClaimStatus, Consumer
from tests.support.builders import gpu_pod, pod
from tests.support.claim_scheduler import (
    FREE,
    HELD,
    PART,
    USER,
    ClaimWorld,
    agent_node,
    claiming,
    device_class,
    ready,
    reserved_for,
    resource_claim,
    settle,
    templated,
    woken,
    write_state,
)
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import using_downward_api

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
    assert (write_state(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    world.api.delete_pod("default/p")
    world.api.changes.clear()
    world.pods.drop("default/p")
    assert world.cards() == HELD, "the write may land although its pod is gone"
    await world.claims.writer.look_up_uncertain()
    assert (write_state(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    world.api.always("mark_claim", None)
    await world.claims.writer.look_up_uncertain()
    assert (write_state(world), world.cards()) == (WriteState.IDLE, HELD if done else FREE)
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
    assert world.reason(USER) == "ResourceClaim c is being written"
    await world.claims.writer.look_up_uncertain()
    assert woken(world) == ["uid-p"]


@in_fake_time
async def test_a_change_of_the_claim_shows_what_became_of_an_uncertain_write() -> None:
    world = ready()
    world.api.always("write_claim_status", lost_answer())
    world.api.script("mark_claim", Step(), never_sent())
    await world.bound(USER)
    world.watch()
    assert (write_state(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    world.api.change_claim("default/c", annotations={"note": "changed"})
    world.watch()
    assert (write_state(world), world.cards()) == (WriteState.IDLE, FREE)


@in_fake_time
async def test_a_bind_that_is_cut_off_while_its_claim_is_written_keeps_the_slice() -> None:
    world = ready()
    world.api.script("mark_claim", Step())
    world.api.script("write_claim_status", Step(delay=60.0))
    binding = asyncio.ensure_future(world.bound(USER))
    await asyncio.sleep(1.0)
    binding.cancel()
    await settle()
    assert (write_state(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
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
    assert [write_state(world, name) for name in ("a", "b")] == [WriteState.UNCERTAIN] * 2
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
    assert (write_state(world), world.cards()) == (WriteState.UNCERTAIN, HELD)
    await world.claims.writer.look_up_uncertain()
    assert write_state(world) is WriteState.UNCERTAIN, "only the decider may touch it"


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
