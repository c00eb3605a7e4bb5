"""What other pods see of a starving gang's turn, with fake time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tessera.core.fit.quota import QuotaFacts
from tests.support.builders import PodBuilder, gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.gangs import STARVING, bind_all, gang, held, machine, nodes_of, woken
from tests.support.stepwise_scheduler import World, gangs_of, tick_gangs, using_downward_api

TURN = 600.0


def single(name: str = "other", *, priority: int = 0) -> PodBuilder:
    return using_downward_api(gpu_pod(name)).with_priority(priority, policy="Never")


async def starving(*, priority: int = 0, name: str = "g") -> World:
    """Three of four cards are free, and held for a gang that needs four."""
    world = World(machine("n1", cards=4))
    await world.run(using_downward_api(gpu_pod("runs")))
    pods = [pod.with_priority(priority) for pod in gang(4, name=name)]
    world.create(*pods)
    for pod in pods:
        assert "3 of 4 members fit" in world.reason(pod)
    await asyncio.sleep(STARVING)
    assert await woken(world) == []
    assert held(world) == 3
    return world


@in_fake_time
async def test_a_pod_that_a_turn_keeps_out_is_told_for_whom_and_until_when() -> None:
    world = await starving()
    asked = single()
    world.create(asked)
    assert world.reason(asked) == "held for gang default/g until 22:28 UTC"
    [event] = [each for each in world.reports.refused if each.request.name == "other"]
    assert event.describe().startswith("held for gang default/g until 22:28 UTC; ")


@in_fake_time
async def test_a_pod_that_would_not_fit_anyway_is_not_told_of_the_turn() -> None:
    world = await starving()
    asked = using_downward_api(gpu_pod("large", gpu=4))
    world.create(asked)
    assert "held for gang" not in world.reason(asked)


@in_fake_time
async def test_a_turn_makes_way_for_a_pod_of_higher_priority_and_goes_on() -> None:
    world = await starving()
    asked = single(priority=1)
    world.create(asked)
    assert world.chosen(asked) == "n1"
    assert held(world) == 0
    assert await woken(world) == []
    assert held(world) == 2, "what is left"


@in_fake_time
async def test_a_pod_of_higher_priority_that_waits_is_woken_when_a_turn_could_make_way_for_it() -> None:
    world = World(machine("n1", cards=2))
    for i in range(2):
        await world.run(using_downward_api(gpu_pod(f"runs-{i}")))
    waiting, pods = single(priority=1), gang(2)
    world.create(waiting, *pods)
    for pod in (*pods, waiting):
        world.reason(pod)
    await asyncio.sleep(STARVING)
    assert await woken(world) == []
    world.api.delete_pod("default/runs-0")
    world.watch()
    assert await woken(world) == ["other"]
    assert held(world) == 1
    assert world.chosen(waiting) == "n1"


@in_fake_time
async def test_a_turn_makes_way_for_a_gang_of_higher_priority() -> None:
    world = await starving(name="low")
    pods = [pod.with_priority(1) for pod in gang(2, name="high")]
    world.create(*pods)
    assert await bind_all(world, pods) == ["", ""]
    assert await woken(world) == []
    assert held(world) == 1, "what is left for the gang that has the turn"


@in_fake_time
async def test_a_gang_of_higher_priority_that_does_not_fit_leaves_a_turn_as_it_is() -> None:
    world = await starving(name="low")
    pods = [pod.with_priority(1, policy="Never") for pod in gang(5, name="high")]
    world.create(*pods)
    assert "3 of 5 members fit" in world.reason(pods[0])
    assert held(world) == 3
    account = gangs_of(world.engine).holds.accounts
    assert account.held_by("default") == 3


@in_fake_time
async def test_a_gang_that_its_quota_never_allows_gets_no_turn() -> None:
    world = World(machine("n1", cards=4))
    quota = QuotaFacts("default", "q", {"nvidia.com/gpumem": 3 * 81_920})
    world.ledger.observe_quota(quota)
    pods = gang(4)
    world.create(*pods)
    for pod in pods:
        world.reason(pod)
    await asyncio.sleep(STARVING)
    assert await woken(world) == []
    assert held(world) == 0
    assert "never fits, even with all other pods gone: 4 x 1 NVIDIA: 3 of 4 members fit" in world.reason(pods[0])
    world.ledger.observe_quota(replace(quota, limits={"nvidia.com/gpumem": 4 * 81_920}))
    assert sorted(await woken(world)) == [pod.name for pod in pods]


@in_fake_time
async def test_namespaces_take_turns() -> None:
    world = World(machine("n1", cards=4))
    await world.run(using_downward_api(gpu_pod("runs")))
    waiting = [gang(4, name="a"), gang(4, name="b"), [one.called(one.name, namespace="late") for one in gang(4)]]
    for pods in waiting:
        world.create(*pods)
        for pod in pods:
            world.reason(pod)
        for _ in range(2):
            await asyncio.sleep(5)
            await woken(world)
    await asyncio.sleep(STARVING)
    had = []
    for _ in range(3):
        await woken(world)
        favoured = gangs_of(world.engine).turns.favoured
        assert favoured is not None
        had.append(favoured.name)
        while gangs_of(world.engine).turns.favoured is favoured:
            await asyncio.sleep(15)
            tick_gangs(world.engine)
        assert held(world) == 0
    assert had == ["default/a", "late/g", "default/b"]


@in_fake_time
async def test_a_gang_waits_since_it_began_to_whatever_turns_it_had() -> None:
    world = await starving()
    waiting = gangs_of(world.engine).registry.get("default", "g")
    assert waiting is not None
    before = waiting.wait.since
    await asyncio.sleep(TURN)
    tick_gangs(world.engine)
    assert (waiting.wait.since, held(world)) == (before, 0)


@in_fake_time
async def test_a_turn_ends_when_the_account_of_the_namespace_does_not_pay_for_it() -> None:
    world = await starving()
    began = asyncio.get_running_loop().time()
    while held(world):
        await asyncio.sleep(15)
        tick_gangs(world.engine)
    # 4 cards of the cluster for 300 s, and 10 % of them refilled; 3 are held.
    assert 360 <= asyncio.get_running_loop().time() - began <= 450
    assert world.chosen(single()) == "n1"


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
        assert "0 of 4 members fit" in world.reason(pod)
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
        world.reason(pod)
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
        world.reason(pod)
    await asyncio.sleep(STARVING)
    assert await woken(world) == []
    for i in range(2):
        world.api.delete_pod(f"default/small-{i}")
        world.watch()
        assert world.filtered(using_downward_api(gpu_pod("thief")))["NodeNames"] is None
    assert held(world) == 2
    assert await woken(world) == ["g-0", "g-1"]
    assert await bind_all(world, pods) == ["", ""]
