"""Gangs whose members have ResourceClaims: placed together, and asked for again when a claim has changed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tessera.scheduler.features.gangs.gang import GangState, MemberState
from tessera.wire.resource_api import ClaimStatus, Consumer, DeviceClass
from tests.support.builders import PodBuilder, pod
from tests.support.claim_scheduler import ClaimWorld, agent_node, claiming, device_class, templated
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.support.gangs import bind_all
from tests.support.stepwise_scheduler import gangs_of

BIG: dict[str, Any] = {"memory": 60000, "cores": 30}
"""two of it do not fit one card"""

NO_DEVICE = "device.driver == 'gpu.tessera.io' && device.attributes['gpu.tessera.io'].model == 'none'"
REFUSAL = "gang default/g: a gang allocates only claims of templates, and ResourceClaim default/c is not allocated"


def member(number: int, *, size: int = 2) -> PodBuilder:
    """With a claim of a template, which is named after the pod."""
    return templated(pod(f"g-{number}"), claim=f"own-{number}").in_gang("g", size)


def world_with(*members: PodBuilder, nodes: tuple[str, ...] = ("n1",), **asks: Any) -> ClaimWorld:
    world = ClaimWorld(*(agent_node(name).gpus(1) for name in nodes))
    for each in members:
        for status in each.status.get("resourceClaimStatuses", ()):
            world.claim(status["resourceClaimName"], owner=each, **{**BIG, **asks})
    world.create(*members)
    return world


def woken(world: ClaimWorld) -> list[str]:
    return [each.name for each in world.claims.take_ready().values()]


@in_fake_time
async def test_a_gang_with_claims_is_bound_together() -> None:
    members = [member(0), member(1)]
    world = world_with(*members, nodes=("n1", "n2"))
    assert await bind_all(world, members) == ["", ""]
    assert [world.stored(f"own-{i}").status.allocation is not None for i in range(2)] == [True, True]
    assert world.agrees()


@in_fake_time
async def test_a_gang_is_asked_for_again_when_a_member_needs_less_because_its_claim_was_allocated() -> None:
    members = [member(0), member(1)]
    world = world_with(*members)
    for each in members:
        assert "1 of 2 members fit" in world.reason(each)
    other = Consumer(resource="pods", name="other", uid="other")
    allocated = world.allocation("n1", "own-0", memory=1000)
    world.api.change_claim("default/own-0", ClaimStatus(allocated.allocation, (other,)))
    world.watch()
    assert woken(world) == ["g-0"]
    assert await bind_all(world, members) == ["", ""]


@in_fake_time
async def test_a_gang_is_planned_again_when_a_member_asks_for_something_else_on_the_same_cards() -> None:
    members = [member(0), member(1)]
    world = world_with(*members, memory=1000, of_class="special")
    none = {"metadata": {"name": "special"}, "spec": {"selectors": [{"cel": {"expression": NO_DEVICE}}]}}
    world.claims.classes.put("special", msgspec.convert(none, DeviceClass))
    for each in members:
        assert "0 of 2 members fit" in world.reason(each)
    world.claims.classes.put("special", device_class("special"))
    assert sorted(woken(world)) == ["g-0", "g-1"]
    assert await bind_all(world, members) == ["", ""]


@in_fake_time
async def test_a_gang_allocates_no_claim_that_several_members_may_use() -> None:
    """The first would wait in its bind for the second, and the second for the claim."""
    members = [claiming(pod(f"g-{i}"), "c").in_gang("g", 2) for i in range(2)]
    world = world_with(*members)
    world.claim("c", memory=1000)
    for each in members:
        assert world.reason(each) == REFUSAL
    assert gangs_of(world.engine).count(GangState.PLANNED) == 0
    world.api.change_claim("default/c", world.allocation("n1", memory=1000))
    world.watch()
    assert sorted(woken(world)) == ["g-0", "g-1"]
    assert await bind_all(world, members) == ["", ""]


@in_fake_time
async def test_a_plan_is_given_up_for_a_member_with_a_claim_that_others_may_use() -> None:
    members = [member(0), claiming(pod("g-1"), "c").in_gang("g", 2)]
    world = world_with(members[0], nodes=("n1", "n2"))
    world.claim("c", memory=1000)
    world.chosen(members[0])
    assert gangs_of(world.engine).count(GangState.PLANNED) == 1
    assert world.reason(members[1]) == REFUSAL
    assert [*world.ledger.pods()] == []


@pytest.mark.parametrize("happens", ["released", "deleted", "pod deleted"])
@in_fake_time
async def test_no_member_is_bound_before_the_claims_of_all_are_theirs(happens: str) -> None:
    members = [member(0), claiming(pod("g-1"), "c").in_gang("g", 2)]
    world = world_with(*members, nodes=("n1", "n2"))
    world.claim("c", memory=1000)
    world.api.change_claim("default/c", world.allocation("n1", memory=1000))
    world.watch()
    chosen = [world.chosen(each) for each in members]
    if happens == "released":
        world.api.change_claim("default/c", ClaimStatus())
    elif happens == "deleted":
        world.api.delete_claim("default/c")
    else:
        world.api.delete_pod("default/g-1")
        world.api.delete_claim("default/c")
    binds = [world.bound(each, at) for each, at in zip(members, chosen, strict=True)]
    assert all(await asyncio.gather(*binds))
    assert not any(each.spec.node_name for each in world.api.pods.values())
    world.watch()
    await world.work()
    assert gangs_of(world.engine).count(GangState.WAITING) == 1
    assert world.agrees()


@in_fake_time
async def test_a_member_that_could_not_be_read_for_a_while_is_not_bound_alone() -> None:
    members = [member(0), member(1)]
    world = world_with(*members, nodes=("n1", "n2"))
    at = world.chosen(members[0])
    claim = world.api.claims["default/own-0"]
    world.claims.claims.drop("default/own-0")
    world.api.mark_pod("default/g-0", {"changed": "later"})
    world.watch()
    world.claims.claims.put("default/own-0", claim)
    assert await world.bound(members[0], at) == "gang default/g does not count this pod yet"
    assert not world.api.pods["default/g-0"].spec.node_name
    await world.work()


@in_fake_time
async def test_a_place_is_not_held_again_for_a_member_whose_claim_has_it() -> None:
    members = [member(0), member(1)]
    world = world_with(*members, nodes=("n1", "n2"))
    world.api.script("bind", Step(), *[refused(429)] * 20)
    assert sorted(map(bool, await bind_all(world, members))) == [False, True]
    world.watch()
    await world.work()
    for each in members:
        world.filtered(each)
        assert max(sum(world.held(name).values()) for name in ("n1", "n2")) == BIG["memory"], "each claim once"
    await world.work()


@in_fake_time
async def test_a_member_gives_back_the_claim_of_an_earlier_process_while_its_gang_waits() -> None:
    members = [member(0), member(1)]
    world = world_with(*members)
    mine = Consumer(resource="pods", name="g-0", uid="uid-g-0")
    allocated = world.allocation("n1", "own-0", memory=60000)
    world.api.change_claim("default/own-0", ClaimStatus(allocated.allocation, (mine,)))
    world.watch()
    world.reason(members[0])
    await world.work()
    assert world.stored("own-0").status == ClaimStatus()
    assert woken(world) == ["g-0"]
    assert "1 of 2 members fit" in world.reason(members[0])


@in_fake_time
async def test_a_member_that_is_bound_stays_one_when_its_claim_is_gone() -> None:
    members = [member(0), member(1)]
    world = world_with(*members, nodes=("n1", "n2"))
    await bind_all(world, members)
    world.watch()
    world.api.delete_claim("default/own-0")
    world.watch()
    world.api.mark_pod("default/g-0", {"changed": "later"})
    world.watch()
    [gang] = gangs_of(world.engine).registry
    found = [(each.request.name, each.state) for each in gang.members.values()]
    assert sorted(found) == [("g-0", MemberState.BOUND), ("g-1", MemberState.BOUND)]


def test_a_pod_that_is_gone_is_no_member_because_its_claim_appears() -> None:
    asking = claiming(pod("g-0"), "c").in_gang("g", 2)
    world = ClaimWorld(agent_node("n1").gpus(1))
    world.create(asking)
    world.api.delete_pod("default/g-0")
    world.watch()
    assert world.reason(asking) == "ResourceClaim c does not exist yet", "kube-scheduler's cache is late"
    world.claim("c", **BIG)
    assert woken(world) == ["g-0"]
    assert len(gangs_of(world.engine).registry) == 0
