"""Which gangs there are, and where their sizes come from."""

from __future__ import annotations

import asyncio

import pytest

from tessera.wire.pod_groups import GangPolicy, GroupObject, PodGroupObject, PodGroupSpec, SchedulingPolicy
from tests.support.builders import gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.gangs import bind_all, gang, held, machine, state
from tests.support.stepwise_scheduler import World, gangs_of, uid, using_downward_api


@in_fake_time
async def test_members_that_disagree_about_the_size_are_told_so() -> None:
    world = World(machine("n1", cards=4))
    pods = gang(3)
    odd = pods[2].in_gang("g", 5)
    world.create(*pods[:2], odd)
    assert "this pod says 5 of 5 members, the others say 3 of 3" in world.reason(odd)


@pytest.mark.parametrize(
    ("kind", "key", "found"),
    [
        (GroupObject.COSCHEDULING, "scheduling.x-k8s.io/pod-group", PodGroupSpec(min_member=2)),
        (GroupObject.VOLCANO, "scheduling.k8s.io/group-name", PodGroupSpec(min_member=2)),
        (
            GroupObject.COSCHEDULING,
            "scheduling.x-k8s.io/pod-group",
            PodGroupSpec(scheduling_policy=SchedulingPolicy(GangPolicy(2))),
        ),
    ],
)
@in_fake_time
async def test_the_size_is_read_from_the_object_of_the_group(kind: GroupObject, key: str, found: PodGroupSpec) -> None:
    world = World(machine("n1"))
    pods = [using_downward_api(gpu_pod(f"g-{i}")).annotate((key, "g")) for i in range(2)]
    world.create(*pods)
    assert "its size is not known" in world.reason(pods[0])
    world.api.pod_groups[kind, "default", "g"] = PodGroupObject(found)
    for informer in (world.pods, world.nodes, world.quotas):
        informer.synced()
    tasks = [asyncio.ensure_future(work()) for work in world.engine.work()]
    await asyncio.sleep(6)
    for task in tasks:
        task.cancel()
    assert "tessera.io/retry" in world.api.pods["default/g-0"].annotations
    assert await bind_all(world, pods) == ["", ""]


@in_fake_time
async def test_a_group_without_an_object_is_looked_up_every_five_seconds() -> None:
    world = World(machine("n1"))
    for informer in (world.pods, world.nodes, world.quotas):
        informer.synced()
    pod = using_downward_api(gpu_pod("g-0")).annotate(("scheduling.x-k8s.io/pod-group", "g"))
    world.create(pod)
    assert "its size is not known" in world.reason(pod)
    tasks = [asyncio.ensure_future(work()) for work in world.engine.work()]
    await asyncio.sleep(21)
    for task in tasks:
        task.cancel()
    assert world.api.calls.count("get_pod_group") == 5
    assert not world.unschedulable.room.is_set(), "nothing has to be done at once"


@in_fake_time
async def test_a_gang_is_forgotten_with_its_last_member() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(*pods)
    world.chosen(pods[0])
    for pod in pods:
        world.api.delete_pod(f"default/{pod.name}")
    world.watch()
    assert (state(world), world.ledger.pods()) == (None, [])
    assert gangs_of(world.engine).registry.of(uid(pods[0])) is None


def test_a_gang_with_a_name_of_many_characters_is_refused() -> None:
    world = World(machine("n1"))
    pod = gang(2, name="g" * 254)[0].called("p")
    world.create(pod)
    assert "the gang's name has 254 characters; write at most 253" in world.reason(pod)
    assert held(world) == 0
