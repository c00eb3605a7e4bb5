"""Gangs with fake time: what filter answers, when binds go on, and what is held meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tessera.core.fit.quota import QuotaFacts
from tessera.scheduler.features.gangs.gang import GangState
from tests.support.builders import gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.gangs import PATIENCE, STARVING, bind_all, gang, held, machine, nodes_of, state, woken
from tests.support.stepwise_scheduler import (
    World,
    filter_body,
    gangs_of,
    serving_downward_api,
    using_downward_api,
)

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
    assert (gangs_of(world.engine).barrier.bound, gangs_of(world.engine).lifecycle.given_up) == (1, 0)


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
    assert world.reason(pods[0]) == (
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
    assert (gangs_of(world.engine).barrier.bound, gangs_of(world.engine).lifecycle.given_up) == (0, 1)
    assert world.ledger.pods() == []
    assert world.reason(pods[0]) == "gang default/g: 3 of 4 members exist"
    assert held(world) == 0
    world.create(pods[3])
    await asyncio.sleep(10)
    assert world.reason(pods[3]) == "gang default/g: 4 of 4 members exist; kube-scheduler asks for 2 of them"
    assert world.reason(pods[1]) == "gang default/g: 4 of 4 members exist; kube-scheduler asks for 3 of them"
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
        world.reason(pod)
    assert (held(world), await woken(world)) == (0, [])


@in_fake_time
async def test_two_gangs_that_fit_alone_but_not_together_never_hold_parts_of_each_other() -> None:
    world = World(machine("n1"), machine("n2"))
    one, other = gang(3, name="a"), gang(3, name="b")
    world.create(*one, *other)
    first = asyncio.ensure_future(world.bound(one[0], world.chosen(one[0])))
    assert world.reason(other[0]).startswith("gang default/b: 3 x 1 NVIDIA: 1 of 3 members fit; short of 2 cards")
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


# -- pods that come and go


@in_fake_time
async def test_gated_members_are_not_counted_until_the_gate_is_gone() -> None:
    world = World(machine("n1"))
    pods = gang(2)
    world.create(pods[0], pods[1].gated())
    errors = await bind_all(world, pods[:1])
    assert "1 of 2 members exist" in errors[0]
    assert world.reason(pods[0]) == "gang default/g: 1 of 2 members exist"
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
        world.reason(pod)
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
    assert "short of 2 cards" in world.reason(pods[0])
    before = world.ledger.state()
    template, small = machine("template"), serving_downward_api(node("no-cards"))
    answer = world.asked(filter_body(pods[0], nodes=[template.manifest(), small.manifest()]))
    assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["template"]
    assert (world.ledger.state(), held(world)) == (before, 0)
    world.api.add_node(machine("n2"))
    world.watch()
    assert await woken(world) == ["g-0"]
    assert await bind_all(world, pods) == [""] * 4


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
