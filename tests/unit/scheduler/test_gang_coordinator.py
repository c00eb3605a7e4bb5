"""Gangs with fake time: what filter answers, when binds go on, and what is held meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holders import HolderKind
from tessera.scheduler.features.gangs.gang import GangState
from tessera.wire.pod_groups import GangPolicy, GroupObject, PodGroupObject, PodGroupSpec, SchedulingPolicy
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.builders import pod as pod_builder
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.features import gangs_of, tick_gangs
from tests.support.stepwise_scheduler import (
    World,
    assert_cycles_match,
    filter_body,
    serving_downward_api,
    uid,
    using_downward_api,
)

PATIENCE = 20.0
STARVING = 300.0


def machine(name: str = "n1", cards: int = 2) -> NodeBuilder:
    return serving_downward_api(node(name).gpus(cards, slots=1))


def gang(size: int, *, name: str = "g", cards: int = 1, **more: str) -> list[PodBuilder]:
    asking = using_downward_api(gpu_pod(gpu=cards))
    return [asking.called(f"{name}-{i}").in_gang(name, size, **more) for i in range(size)]


def reason(world: World, pod: PodBuilder) -> str:
    """With which a pod is refused, the same for every node."""
    answer = world.filtered(pod)
    assert answer["NodeNames"] is None
    [text] = set(answer["FailedNodes"].values())
    assert isinstance(text, str)
    return text


def state(world: World, name: str = "g") -> GangState | None:
    found = gangs_of(world.engine).registry.get("default", name)
    return found.state if found is not None else None


def held(world: World) -> int:
    """Holds in the ledger."""
    assert_cycles_match(world.engine)
    return sum(entry.kind is HolderKind.GANG for entry in world.ledger.pods())


def nodes_of(world: World, pods: Sequence[PodBuilder]) -> list[str]:
    return [world.api.pods[f"{pod.namespace}/{pod.name}"].spec.node_name for pod in pods]


async def bind_all(world: World, pods: Sequence[PodBuilder]) -> list[str]:
    chosen = [world.chosen(pod) for pod in pods]
    return list(await asyncio.gather(*(world.bound(pod, at) for pod, at in zip(pods, chosen, strict=True))))


async def woken(world: World) -> list[str]:
    """Names of the members that are woken now."""
    return [member.name async for members in gangs_of(world.engine).wake() for member in members]


# -- all or nothing


@in_fake_time
async def test_a_gang_is_bound_together() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    assert await bind_all(world, pods) == [""] * 4
    assert sorted(nodes_of(world, pods)) == ["n1", "n1", "n2", "n2"]
    assert world.agrees()
    assert state(world) is GangState.WHOLE
    assert (gangs_of(world.engine).lifecycle.bound, gangs_of(world.engine).lifecycle.given_up) == (1, 0)


@in_fake_time
async def test_no_binding_is_written_before_the_last_member_has_come() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    binds = [asyncio.ensure_future(world.bound(pod, world.chosen(pod))) for pod in pods[:3]]
    await asyncio.sleep(PATIENCE / 2)
    assert "bind" not in world.api.calls
    assert state(world) is GangState.PLANNED
    assert await world.bound(pods[3], world.chosen(pods[3])) == ""
    assert await asyncio.gather(*binds) == [""] * 3


@in_fake_time
async def test_a_gang_that_does_not_fit_holds_nothing_and_says_what_is_short() -> None:
    world = World(machine("n1"))
    pods = gang(4)
    world.create(*pods)
    assert reason(world, pods[0]) == (
        "gang default/g: 4 x 1 NVIDIA: 2 of 4 members fit; short of 2 cards; "
        "needs 81920 MiB on one card; nearest is n1 (n1-0) with 0 of 81920 MiB and 0 of 1 slots free"
    )
    assert held(world) == 0
    assert world.chosen(using_downward_api(gpu_pod("small"))) == "n1"


@in_fake_time
async def test_a_gang_that_waits_for_quota_is_woken_once_there_is_more() -> None:
    world = World(machine("n1"), machine("n2"))
    quota = QuotaFacts("default", "q", {"nvidia.com/gpumem": 4 * 81_920})
    world.ledger.observe_quota(replace(quota, limits={"nvidia.com/gpumem": 81_920}))
    pods = gang(4)
    world.create(*pods)
    for pod in pods:
        assert world.filtered(pod)["NodeNames"] is None
    for _ in range(2):
        assert await woken(world) == []
    world.ledger.observe_quota(quota)
    assert sorted(await woken(world)) == [pod.name for pod in pods]


@in_fake_time
async def test_members_that_do_not_exist_yet_are_planned_with_the_first_one() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(pods[0])
    assert world.chosen(pods[0]) == "n1"
    assert held(world) == 3
    for pod in pods[1:]:
        world.create(pod)
    assert await bind_all(world, pods) == [""] * 4


@in_fake_time
async def test_members_that_never_come_are_given_up_and_next_time_all_must_exist() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods[:3])
    began = asyncio.get_running_loop().time()
    errors = await bind_all(world, pods[:3])
    assert asyncio.get_running_loop().time() - began == PATIENCE
    assert set(errors) == {
        "gang default/g: the plan was given up: 3 of 4 members exist, 3 of them came to be bound in time"
    }
    assert (held(world), world.api.calls) == (0, [])
    assert (gangs_of(world.engine).lifecycle.bound, gangs_of(world.engine).lifecycle.given_up) == (0, 1)
    assert world.ledger.pods() == []
    assert reason(world, pods[0]) == "gang default/g: 3 of 4 members exist"
    assert held(world) == 0
    world.create(pods[3])
    await asyncio.sleep(10)
    assert reason(world, pods[3]) == "gang default/g: 4 of 4 members exist; kube-scheduler asks for 2 of them"
    assert reason(world, pods[1]) == "gang default/g: 4 of 4 members exist; kube-scheduler asks for 3 of them"
    assert await woken(world) == []
    assert world.chosen(pods[2])
    assert sorted(await woken(world)) == ["g-0", "g-1", "g-3"]
    assert await bind_all(world, pods) == [""] * 4


@in_fake_time
async def test_a_member_that_kube_scheduler_places_nowhere_makes_the_gang_wait_and_hold_nothing() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    assert all(await bind_all(world, pods[:3]))
    await asyncio.sleep(100)
    for pod in pods[:3]:
        reason(world, pod)
    assert (held(world), await woken(world)) == (0, [])


@in_fake_time
async def test_two_gangs_that_fit_alone_but_not_together_never_hold_parts_of_each_other() -> None:
    world = World(machine("n1"), machine("n2"))
    one, other = gang(3, name="a"), gang(3, name="b")
    world.create(*one, *other)
    first = asyncio.ensure_future(world.bound(one[0], world.chosen(one[0])))
    assert reason(world, other[0]).startswith("gang default/b: 3 x 1 NVIDIA: 1 of 3 members fit; short of 2 cards")
    assert await bind_all(world, one[1:]) == [""] * 2
    assert await first == ""
    assert state(world, "b") is GangState.WAITING
    for pod in one:
        world.api.delete_pod(f"default/{pod.name}")
    world.watch()
    assert sorted(await woken(world)) == ["b-0"]
    assert await bind_all(world, other) == [""] * 3


@in_fake_time
async def test_only_the_minimum_must_be_there() -> None:
    world = World(machine("n1"))
    pods = gang(4, gang_min="2")
    world.create(*pods)
    assert await bind_all(world, pods[:2]) == ["", ""]
    world.watch()
    assert state(world) is GangState.WHOLE
    assert world.filtered(pods[2])["NodeNames"] is None


@in_fake_time
async def test_pods_beyond_the_size_of_a_gang_are_not_planned_and_follow_as_single_ones() -> None:
    world = World(machine("n1"), machine("n2"), machine("n3"))
    pods = [pod.in_gang("g", 2) for pod in gang(5)]
    world.create(*pods)
    first = world.chosen(pods[4])
    assert held(world) == 1
    one, others = await asyncio.gather(world.bound(pods[4], first), bind_all(world, pods[:1]))
    assert (one, others) == ("", [""])
    world.watch()
    assert await bind_all(world, pods[1:4]) == [""] * 3
    assert all(nodes_of(world, pods))


@in_fake_time
async def test_members_may_differ() -> None:
    world = World(machine("n1", cards=4), machine("n2", cards=2))
    large = using_downward_api(gpu_pod("large", gpu=4)).in_gang("g", 3)
    small = [using_downward_api(gpu_pod(f"small-{i}")).in_gang("g", 3) for i in range(2)]
    world.create(*small, large)
    assert await bind_all(world, [*small, large]) == [""] * 3
    assert nodes_of(world, [large, *small]) == ["n1", "n2", "n2"]


# -- kube-scheduler's own reasons


@in_fake_time
async def test_a_planned_node_that_kube_scheduler_does_not_allow_is_replaced() -> None:
    world = World(machine("n1"), machine("n2"), machine("n3"))
    pods = gang(4)
    world.create(*pods)
    first = world.chosen(pods[0])
    others = [name for name in ("n1", "n2", "n3") if name != first]
    chosen = [first, *(world.chosen(pod, others) for pod in pods[1:])]
    assert first not in chosen[1:]
    binds = [world.bound(pod, at) for pod, at in zip(pods, chosen, strict=True)]
    assert await asyncio.gather(*binds) == [""] * 4
    assert world.agrees()


@in_fake_time
async def test_a_plan_that_kube_scheduler_makes_impossible_is_given_up_with_the_reason() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    binds = [asyncio.ensure_future(world.bound(pod, world.chosen(pod))) for pod in pods[:2]]
    await asyncio.sleep(0)
    answer = world.filtered(pods[2], [world.placement(pods[0]).node])
    assert answer["NodeNames"] is None
    [text] = set(answer["FailedNodes"].values())
    assert "kube-scheduler does not allow the planned node for pod g-2" in text
    assert [text.partition(":")[0] for text in await asyncio.gather(*binds)] == ["gang default/g"] * 2
    assert (held(world), world.ledger.pods(), world.api.calls) == (0, [], [])


@in_fake_time
async def test_members_that_ask_for_the_same_leave_a_restricted_one_its_node() -> None:
    world = World(machine("n1"), machine("n2"))
    pods, blocker = gang(4), using_downward_api(gpu_pod("blocker"))
    world.create(blocker.on("n1", "n1-0,NVIDIA,81920,0:;"), *pods)
    allowed = [None, None, None, ["n1"]]
    for pod, names in zip(pods, allowed, strict=True):
        assert world.filtered(pod, names)["NodeNames"] is None
    world.api.delete_pod("default/blocker")
    world.watch()
    assert len(await woken(world)) == 4
    chosen = [world.chosen(pod, names) for pod, names in zip(pods, allowed, strict=True)]
    assert (chosen[3], sorted(chosen)) == ("n1", ["n1", "n1", "n2", "n2"])


@in_fake_time
async def test_members_exchange_their_places_before_one_goes_to_another_node() -> None:
    names = ["n1", "n2", "n3", "n4"]
    world = World(*(machine(name, cards=1) for name in names))
    pods = gang(3)
    world.create(*pods)
    found = gangs_of(world.engine).registry.get("default", "g")
    assert found is not None
    world.chosen(pods[0])
    planned = {str(hold.meant_for): hold.node for hold in gangs_of(world.engine).holds.of(found)}
    own, others = planned[uid(pods[1])], planned[uid(pods[2])]
    assert world.chosen(pods[1], [name for name in names if name != own]) == others
    world.api.add_node(machine("n0", cards=1))
    world.watch()
    assert world.chosen(pods[2]) == own, "it has that place now, and looks for no other one"


@in_fake_time
async def test_the_next_plan_respects_the_node_that_a_member_could_not_get() -> None:
    world = World(machine("n1", cards=1), machine("n2", cards=1))
    pods = gang(2)
    world.create(*pods)
    first = world.chosen(pods[0])
    bind = asyncio.ensure_future(world.bound(pods[0], first))
    await asyncio.sleep(0)
    assert world.filtered(pods[1], [first])["NodeNames"] is None
    assert "does not allow the planned node for pod g-1" in await bind
    await asyncio.sleep(10)
    other = world.chosen(pods[0])
    assert other != first
    binds = [world.bound(pods[0], other), world.bound(pods[1], world.chosen(pods[1], [first]))]
    assert await asyncio.gather(*binds) == ["", ""]


@in_fake_time
async def test_what_an_earlier_plan_was_not_allowed_makes_no_later_one_impossible() -> None:
    world = World(machine("n1", cards=1), machine("n2", cards=1))
    pods = gang(2)
    world.create(*pods)
    first = world.chosen(pods[0])
    assert world.filtered(pods[1], [first])["NodeNames"] is None
    world.create(using_downward_api(gpu_pod("other")).on(first, f"{first}-0,NVIDIA,81920,0:;"))
    world.api.add_node(machine("n3", cards=1))
    world.watch()
    await asyncio.sleep(10)
    assert await bind_all(world, pods) == ["", ""]


@in_fake_time
async def test_a_member_gets_the_place_that_was_found_by_preferring_other_cards() -> None:
    """Spread over both cards, the small container takes the place of the large one; packed, both fit."""
    nodes = [
        node(name).gpu(f"{name}-0", memory=81920, slots=1).gpu(f"{name}-1", memory=30000, slots=1)
        for name in ("n1", "n2")
    ]
    world = World(*map(serving_downward_api, nodes))
    asking = using_downward_api(pod_builder().container(gpu=1, mem=20000).container(gpu=1, mem=60000))
    pods = [asking.called(f"g-{i}").in_gang("g", 2) for i in range(2)]
    world.create(*pods)
    alone = using_downward_api(asking.called("alone"))
    assert world.filtered(alone)["NodeNames"] is None
    assert await bind_all(world, pods) == ["", ""]


@pytest.mark.parametrize("had_more_nodes", [False, True])
@in_fake_time
async def test_a_plan_that_one_member_can_never_follow_is_not_made_again_and_again(had_more_nodes: bool) -> None:
    world = World(machine("n1", cards=1), machine("n2", cards=1))
    whole, most = (using_downward_api(gpu_pod(f"g-{mem}", mem=mem)).in_gang("g", 2) for mem in (81920, 81000))
    world.create(whole, most)
    if had_more_nodes:
        world.create(using_downward_api(gpu_pod("other")).on("n1", "n1-0,NVIDIA,81920,0:;"))
        assert world.filtered(most, ["n1", "n2"])["NodeNames"] is None
        world.api.delete_pod("default/other")
        world.watch()
    for _ in range(2):
        assert world.chosen(whole, ["n1"]) == "n1"
        assert world.filtered(most, ["n1"])["NodeNames"] is None
        await asyncio.sleep(10)
    assert world.filtered(whole, ["n1"])["NodeNames"] is None


@in_fake_time
async def test_an_optional_member_that_comes_first_takes_the_place_of_another_one() -> None:
    world = World(machine("n1"))
    pods = gang(3, gang_min="2")
    world.create(*pods)
    asked = [pods[2], pods[1]]
    assert await bind_all(world, asked) == ["", ""]


# -- pods that come and go


@in_fake_time
async def test_gated_members_are_not_counted_until_the_gate_is_gone() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(pods[0], pods[1].gated())
    errors = await bind_all(world, pods[:1])
    assert "1 of 2 members exist" in errors[0]
    assert reason(world, pods[0]) == "gang default/g: 1 of 2 members exist"
    world.create(pods[1])
    await asyncio.sleep(10)
    assert await bind_all(world, pods[::-1]) == ["", ""]


@in_fake_time
async def test_a_member_deleted_while_its_bind_waits_is_not_written_and_its_replacement_completes_the_gang() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(3)
    world.create(*pods)
    binds = [asyncio.ensure_future(world.bound(pod, world.chosen(pod))) for pod in pods[:2]]
    await asyncio.sleep(1)
    world.api.delete_pod("default/g-1")
    world.watch()
    assert "gone" in await binds[1]
    again = pods[1].called("g-1b")
    world.create(again)
    assert await bind_all(world, [again, pods[2]]) == ["", ""]
    assert await binds[0] == ""
    assert world.agrees()


@in_fake_time
async def test_a_replacement_for_a_member_of_a_whole_gang_waits_for_no_other() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(*pods)
    assert await bind_all(world, pods) == ["", ""]
    world.watch()
    world.api.delete_pod("default/g-0")
    world.watch()
    again = pods[0].called("g-0b")
    world.create(again)
    assert await world.bound(again, world.chosen(again)) == ""


@in_fake_time
async def test_a_gang_that_failed_as_a_whole_starts_as_a_whole() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(*pods)
    assert await bind_all(world, pods) == ["", ""]
    world.watch()
    for pod in pods:
        world.api.delete_pod(f"default/{pod.name}")
    again = [pod.called(f"{pod.name}b") for pod in pods]
    world.create(*again)
    assert state(world) is GangState.WAITING
    first = asyncio.ensure_future(world.bound(again[0], world.chosen(again[0])))
    await asyncio.sleep(1)
    assert not first.done()
    assert await bind_all(world, again[1:]) == [""]
    assert await first == ""


@in_fake_time
async def test_members_that_succeeded_need_not_come_again() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(pods[0].on("n1").ended("Succeeded"), pods[1])
    assert await bind_all(world, pods[1:]) == [""]


@in_fake_time
async def test_a_member_without_cards_is_not_waited_for() -> None:
    world = World(machine("n1"))
    launcher = gpu_pod("launcher", gpu=None).in_gang("g", 3)
    pods = [pod.in_gang("g", 3) for pod in gang(2)]
    world.create(launcher, *pods)
    assert await bind_all(world, pods) == ["", ""]


# -- faults


@in_fake_time
async def test_a_process_that_ended_while_it_wrote_leaves_a_gang_that_the_next_one_completes_first() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    world.api.script("bind", Step(), Step(), *[Step(refused(500))] * 8)
    await bind_all(world, pods)
    assert sorted(map(bool, nodes_of(world, pods))) == [False, False, True, True]
    world.restart()
    gangs_of(world.engine).recover()
    assert (state(world), held(world)) == (GangState.COMPLETING, 2)
    thief = using_downward_api(gpu_pod("thief"))
    world.create(thief)
    assert world.filtered(thief)["NodeNames"] is None
    left = [pod for pod in pods if not world.api.pods[f"default/{pod.name}"].spec.node_name]
    for pod in left:
        assert await world.bound(pod, world.chosen(pod)) == ""
    assert all(nodes_of(world, pods))
    assert held(world) == 0


@in_fake_time
async def test_the_rest_of_a_gang_that_is_bound_in_part_gets_what_there_is_and_other_gangs_nothing() -> None:
    world = World(machine("n1"), machine("n2", cards=1))
    pods, other = gang(4), gang(1, name="other")
    world.create(pods[0].on("n1", "n1-0,NVIDIA,81920,0:;"), *pods[1:], *other)
    world.restart()
    gangs_of(world.engine).recover()
    assert (state(world), state(world, "other")) == (GangState.COMPLETING, GangState.WAITING)
    assert held(world) == 2


@in_fake_time
async def test_a_starving_gang_that_is_bound_in_part_has_its_places_once_and_the_next_one_gets_its_turn() -> None:
    world = World(machine("n1", cards=5))
    for i in range(5):
        await world.run(using_downward_api(gpu_pod(f"small-{i}")))
    pods, other = gang(3), gang(3, name="other")
    world.create(*pods, *other)
    for pod in (*pods, *other):
        reason(world, pod)
    await asyncio.sleep(STARVING)
    for i in range(2):
        world.api.delete_pod(f"default/small-{i}")
        world.watch()
        assert await woken(world) == []
    assert held(world) == 2, "for the gang that has its turn"
    for i in range(2, 4):
        world.api.delete_pod(f"default/small-{i}")
    world.watch()
    view = world.ledger.node("n1")
    assert view is not None
    free = next(card.device.uuid for card in view.cards if not card.used)
    world.create(pods[0].on("n1", f"{free},NVIDIA,81920,0:;"))
    assert "g-1" in await woken(world)
    assert (state(world), held(world)) == (GangState.COMPLETING, 2)
    await asyncio.sleep(5)
    await woken(world)
    assert held(world) == 3, "one for the other gang"


@in_fake_time
async def test_what_is_held_for_the_rest_of_a_gang_is_free_again_after_a_while() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    world.api.script("bind", Step(), Step(), *[Step(refused(500))] * 8)
    await bind_all(world, pods)
    world.restart()
    gangs_of(world.engine).recover()
    await asyncio.sleep(301)
    world.engine.cycles.tick()
    assert held(world) == 0


@in_fake_time
async def test_a_gang_none_of_whose_bindings_could_be_written_is_planned_again() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(*pods)
    world.api.always("bind", refused(429))
    assert all(await bind_all(world, pods))
    world.api.always("bind", None)
    first = asyncio.ensure_future(world.bound(pods[0], world.chosen(pods[0])))
    await asyncio.sleep(1)
    assert not first.done()
    assert await bind_all(world, pods[1:]) == [""]
    assert await first == ""
    assert world.agrees()


@in_fake_time
async def test_a_lost_answer_leaves_the_member_to_be_looked_up() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(*pods)
    world.api.script("bind", Step(lost_answer(), done=True))
    assert await bind_all(world, pods) == ["", ""]
    assert world.agrees()


@in_fake_time
async def test_a_replica_that_stops_deciding_releases_everything() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    binds = [asyncio.ensure_future(world.bound(pod, world.chosen(pod))) for pod in pods[:2]]
    await asyncio.sleep(1)
    world.stop_leading()
    assert all("stopped deciding" in text for text in await asyncio.gather(*binds))
    assert (world.ledger.pods(), world.api.calls) == ([], [])


@in_fake_time
async def test_a_node_that_loses_its_cards_while_binds_wait_keeps_the_gang_from_being_written() -> None:
    world = World(machine("n1"), machine("n2"), machine("n3"))
    pods = gang(3)
    world.create(*pods)
    chosen = [world.chosen(pod) for pod in pods]
    binds = [asyncio.ensure_future(world.bound(p, at)) for p, at in zip(pods[:2], chosen[:2], strict=True)]
    await asyncio.sleep(1)
    world.api.delete_node(chosen[0])
    world.watch()
    last = asyncio.ensure_future(world.bound(pods[2], chosen[2]))
    await asyncio.sleep(1)
    assert "bind" not in world.api.calls
    lost = [pod for pod, at in zip(pods, chosen, strict=True) if at == chosen[0]]
    again = [asyncio.ensure_future(world.bound(pod, world.chosen(pod))) for pod in lost]
    await asyncio.gather(*again, last, *binds)
    assert all(nodes_of(world, pods))
    assert chosen[0] not in nodes_of(world, pods)


@in_fake_time
async def test_a_hold_whose_node_takes_nothing_any_more_is_replaced() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(2)
    world.create(*pods)
    first = world.chosen(pods[0])
    other = "n2" if first == "n1" else "n1"
    world.api.add_node(machine(first).cordon(f"{first}-0", f"{first}-1"))
    world.watch()
    assert world.chosen(pods[1]) == other


@in_fake_time
async def test_a_bind_that_the_plan_does_not_know_is_refused() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(pods[0])
    gangs_of(world.engine).registry.get("default", "g").must_ask = True  # type: ignore[union-attr]
    assert await world.bound(pods[0], "n1") == "gang default/g is not planned"
    assert world.ledger.pods() == []


# -- starvation


@in_fake_time
async def test_a_starving_gang_gets_what_becomes_free_for_a_bounded_time() -> None:
    world = World(machine("n1"), machine("n2"))
    small = [using_downward_api(gpu_pod(f"small-{i}")) for i in range(4)]
    for pod in small:
        await world.run(pod)
    pods = gang(4)
    world.create(*pods)
    for pod in pods:
        assert "0 of 4 members fit" in reason(world, pod)
    world.api.delete_pod("default/small-0")
    world.watch()
    assert await woken(world) == []
    assert world.chosen(using_downward_api(gpu_pod("next"))) == nodes_of(world, small[1:2])[0]
    world.cycles.give_up(world.cycles.get("uid-next"))  # type: ignore[arg-type]
    await asyncio.sleep(STARVING)
    assert await woken(world) == []
    assert held(world) == 1
    assert world.filtered(using_downward_api(gpu_pod("thief")))["NodeNames"] is None
    world.api.delete_pod("default/small-1")
    world.watch()
    assert await woken(world) == []
    assert held(world) == 2
    await asyncio.sleep(601)
    tick_gangs(world.engine)
    assert held(world) == 0
    assert world.filtered(using_downward_api(gpu_pod("thief")))["NodeNames"] is not None


@in_fake_time
async def test_a_starving_gang_is_woken_when_all_is_held() -> None:
    world = World(machine("n1"))
    for i in range(2):
        await world.run(using_downward_api(gpu_pod(f"small-{i}")))
    pods = gang(2)
    world.create(*pods)
    for pod in pods:
        reason(world, pod)
    await asyncio.sleep(STARVING)
    for i in range(2):
        world.api.delete_pod(f"default/small-{i}")
        world.watch()
        assert await woken(world) == ([] if i == 0 else ["g-0", "g-1"])
    assert await bind_all(world, pods) == ["", ""]


@in_fake_time
async def test_what_becomes_free_is_the_starving_gangs_though_another_pod_is_asked_for_first() -> None:
    """kube-scheduler sees the end of a pod as early as Tessera does, and asks at once for the pods that wait."""
    world = World(machine("n1"))
    for i in range(2):
        await world.run(using_downward_api(gpu_pod(f"small-{i}")))
    pods = gang(2)
    world.create(*pods)
    for pod in pods:
        reason(world, pod)
    await asyncio.sleep(STARVING)
    assert await woken(world) == []
    for i in range(2):
        world.api.delete_pod(f"default/small-{i}")
        world.watch()
        assert world.filtered(using_downward_api(gpu_pod("thief")))["NodeNames"] is None
    assert held(world) == 2
    assert await woken(world) == ["g-0", "g-1"]
    assert await bind_all(world, pods) == ["", ""]


# -- groups


@in_fake_time
async def test_members_that_disagree_about_the_size_are_told_so() -> None:
    world = World(machine("n1", cards=4))
    pods = gang(3)
    odd = pods[2].in_gang("g", 5)
    world.create(*pods[:2], odd)
    assert "this pod says 5 of 5 members, the others say 3 of 3" in reason(world, odd)


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
    assert "its size is not known" in reason(world, pods[0])
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
    assert "its size is not known" in reason(world, pod)
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


@in_fake_time
async def test_members_stay_close_together() -> None:
    racks = [machine(f"n{i}").label("rack", f"r{i % 3}") for i in range(6)]
    world = World(*racks)
    pods = gang(4, gang_topology="rack")
    world.create(*pods)
    assert await bind_all(world, pods) == [""] * 4
    assert len({int(at[1]) % 3 for at in nodes_of(world, pods)}) == 1


# -- autoscalers


@in_fake_time
async def test_a_template_node_is_judged_for_a_member_of_a_gang_that_waits_without_effects() -> None:
    """What an autoscaler asks: whether a new node would help. The gang waits for more cards than there are."""
    world = World(machine("n1"))
    pods = gang(4)
    world.create(*pods)
    assert "short of 2 cards" in reason(world, pods[0])
    before = world.ledger.state()
    template, small = machine("template"), serving_downward_api(node("no-cards"))
    answer = world.asked(filter_body(pods[0], nodes=[template.manifest(), small.manifest()]))
    assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["template"]
    assert (world.ledger.state(), held(world)) == (before, 0)
    world.api.add_node(machine("n2"))
    world.watch()
    assert await woken(world) == ["g-0"]
    assert await bind_all(world, pods) == [""] * 4


# -- tenants that hold what they do not use: see `test_gang_tenants`


@in_fake_time
async def test_a_namespace_whose_gang_did_not_come_still_gets_the_next_one_bound() -> None:
    world = World(machine("n1"), machine("n2"))
    first = gang(4, name="never")[0]
    world.create(first)
    world.chosen(first)
    world.api.delete_pod("default/never-0")
    world.watch()
    pods = gang(4)
    world.create(*pods)
    assert await bind_all(world, pods) == [""] * 4


def test_a_gang_with_a_name_of_many_characters_is_refused() -> None:
    world = World(machine("n1"))
    pod = gang(2, name="g" * 254)[0].called("p")
    world.create(pod)
    assert "the gang's name has 254 characters; write at most 253" in reason(world, pod)
    assert held(world) == 0
