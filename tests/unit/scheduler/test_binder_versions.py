from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera.scheduler.pod_cycle import CycleState
from tessera.scheduler.tenure import NOT_LEADING
from tessera.scheduler.versioned_write import ATTEMPTS
from tessera.wire import keys
from tests.support.binding import FREE, KEY, POD, agent, change, node_of, ready, seconds, unknown
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import (
    World,
    filter_body,
)

# -- the version of the pod


@in_fake_time
async def test_a_binding_is_for_the_version_that_filter_saw() -> None:
    world = ready()
    seen = world.api.pods[KEY].metadata.resource_version
    assert await world.bound(POD) == ""
    assert world.api.writes[0].version == seen


@in_fake_time
async def test_a_pod_that_another_client_changed_costs_one_read_and_one_write() -> None:
    world = ready()
    change(world, note="x")
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind", "get_pod", "bind"]
    assert seconds() == 0.0
    assert world.agrees()


@in_fake_time
async def test_a_pod_that_changes_all_the_time_is_given_up_after_some_attempts() -> None:
    world = ready()
    world.api.always("bind", Step(meanwhile=lambda: change(world, note=str(len(world.api.calls)))))
    assert await world.bound(POD) == "409 Conflict: scripted"
    assert world.api.calls.count("bind") == ATTEMPTS
    assert world.cycle_state(POD) is CycleState.RESERVED


@in_fake_time
async def test_a_filter_request_without_a_version_makes_bind_read_the_pod() -> None:
    world = World(agent())
    world.create(POD)
    assert world.asked(filter_body(POD, ["n1"]))["NodeNames"] == ["n1"]
    assert await world.bound(POD) == ""
    assert world.api.calls == ["get_pod", "bind"]
    assert world.agrees()


def gone(world: World) -> None:
    world.api.delete_pod(KEY)


def being_deleted(world: World) -> None:
    world.api.add_pod(POD.terminating())


def unreadable(world: World) -> None:
    world.api.always("get_pod", never_sent())


@pytest.mark.parametrize(
    ("trouble", "state"),
    [(gone, CycleState.PENDING), (being_deleted, CycleState.PENDING), (unreadable, CycleState.RESERVED)],
)
@in_fake_time
async def test_a_pod_whose_version_cannot_be_read_is_not_said_to_be_bound(
    trouble: Callable[[World], None], state: CycleState
) -> None:
    world = World(agent())
    world.create(POD)
    assert world.asked(filter_body(POD, ["n1"]))["NodeNames"] == ["n1"]
    trouble(world)
    assert await world.bound(POD) == "pod default/p is gone, being deleted, or cannot be read"
    assert (world.api.writes, world.cycle_state(POD)) == ([], state)


@in_fake_time
async def test_a_pod_whose_request_changed_after_filter_is_not_given_what_it_asked_for_before() -> None:
    world = ready()
    change(world, **{"nvidia.com/use-gputype": "H100"})
    assert await world.bound(POD) == "pod default/p was changed after it was placed"
    assert (node_of(world), world.cards()) == ("", FREE)
    assert world.agrees()


@in_fake_time
async def test_a_write_that_was_not_answered_cannot_land_once_the_pod_has_another_version() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), meanwhile=lambda: change(world, note="x")), refused(403, "Forbidden"))
    assert await world.bound(POD) == "403 Forbidden: scripted"
    assert world.cycle_state(POD) is CycleState.RESERVED, "the first one cannot land, the second one was refused"


@in_fake_time
async def test_a_replica_that_was_deposed_does_not_write_for_the_version_that_its_successor_left() -> None:
    """Even while the lease looks valid from here: the watch that shows its end may be late."""
    world = ready()
    change(world, **{keys.FENCE: "another-replica"})
    assert await world.bound(POD) == "pod default/p: another replica has taken over"
    assert (node_of(world), world.cards()) == ("", FREE)
    assert await world.bound(POD) == "pod default/p: another replica has taken over", "without a reservation"
    assert node_of(world) == ""
    assert await world.bound(POD) == "", "it was a late touch: this replica still leads, and has fenced the pod again"


@in_fake_time
async def test_what_this_replica_fenced_itself_is_written() -> None:
    world = ready()
    change(world, **{keys.FENCE: "fence-0.7"})
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_a_fence_that_filter_has_seen_already_is_no_reason_to_refuse() -> None:
    """Of a manifest that was copied from another pod."""
    copied = POD.annotate((keys.FENCE, "copied"))
    world = ready(asking=copied)
    change(world, note="x")
    assert await world.bound(copied) == ""
    assert world.agrees()


@in_fake_time
async def test_a_pod_with_a_foreign_fence_is_left_alone_by_a_replica_that_no_longer_leads() -> None:
    world = ready()
    world.restart()
    change(world, **{keys.FENCE: "another-replica"})
    world.api.script("get_pod", Step(meanwhile=world.stop_leading))
    await world.bound(POD)
    assert world.api.pods[KEY].annotations[keys.FENCE] == "another-replica"


@in_fake_time
async def test_the_lease_is_judged_at_the_moment_of_the_write() -> None:
    world = ready()
    world.leads = None  # Nothing has told the engine.
    assert await world.bound(POD) == NOT_LEADING
    assert (world.api.calls, node_of(world)) == ([], "")
    world.leads = 0
    assert await world.bound(POD) == ""


@in_fake_time
async def test_a_replica_that_does_not_lead_finds_out_about_its_last_write_without_touching_the_pod() -> None:
    world = ready()
    await unknown(world, done=False)
    world.stop_leading()
    world.api.calls.clear()
    await world.binder.look_up_unconfirmed()
    assert (world.api.calls, world.cycle_state(POD)) == (["get_pod"], CycleState.UNCERTAIN)
    change(world, **{keys.FENCE: "another-replica"})
    await world.binder.look_up_unconfirmed()
    assert world.cards() == FREE
    assert world.agrees()
