"""Moves in rounds, for pods that wait, and the budget of their evictions. In fake time, on a fake apiserver."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tessera.core.search.relocation import MovablePod
from tessera.core.search.selection import Selector
from tessera.kube.errors import KubeError
from tessera.scheduler.features.moves.rounds import ANNOTATION, LEASE, LEFT_ALONE_S, EvictionBudget, Outcome
from tessera.scheduler.kube_api import Record
from tessera.wire.objects import Metadata
from tests.support.builders import PodBuilder, gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.support.moving_cluster import LARGE, SMALL, WAITING, MovingCluster, held, living
from tests.support.stepwise_scheduler import moves_of

# -- rounds


async def wait(cluster: MovingCluster, pod: PodBuilder = WAITING, seconds: float = 61.0) -> None:
    cluster.create(pod)
    cluster.filtered(pod)
    await asyncio.sleep(seconds)


@in_fake_time
async def test_what_one_move_frees_is_held_for_the_pod_that_waits() -> None:
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)
        assert await cluster.rounds.make_round() is Outcome.MOVED
        assert len(set(cluster.places.values())) == 2
        assert cluster.places["small"] == cluster.places["large"] != cluster.places["waiting"]
        figures = cluster.rounds.figures
        assert (figures.plans, figures.moves, figures.stops, cluster.rounds.budget.left()) == (1, 1, 0, 2)
        assert not cluster.ledger.holds.has_moves


@in_fake_time
async def test_the_copy_of_the_ledger_is_kept_from_the_garbage_collector_while_it_lives() -> None:
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)
        seen: list[bool] = []
        listed = cluster.rounds._movable

        async def look(selector: Selector) -> dict[str, MovablePod]:
            seen.append(gc.isenabled())
            return await listed(selector)

        cluster.rounds._movable = look  # type: ignore[method-assign]
        await cluster.rounds.make_round()
        assert (seen[0], gc.isenabled()) == (False, True)


@in_fake_time
async def test_rounds_are_made_every_so_often_while_this_replica_decides() -> None:
    async with living(SMALL, LARGE) as cluster:
        [run] = moves_of(cluster.engine).work()
        cluster.tasks.append(asyncio.create_task(run()))
        await wait(cluster, seconds=290.0)
        assert cluster.evictions == 0
        await asyncio.sleep(60.0)
        assert (cluster.evictions, cluster.rounds.figures.rounds[Outcome.MOVED]) == (1, 1)
        cluster.stop_leading()
        await asyncio.sleep(1000.0)
        assert sum(cluster.rounds.figures.rounds.values()) == 1


@in_fake_time
async def test_nothing_moves_for_a_pod_that_waits_for_a_moment_only_or_not_any_more() -> None:
    async with living(SMALL, LARGE) as cluster:
        assert await cluster.rounds.make_round() is Outcome.IDLE
        await wait(cluster, seconds=50.0)
        assert await cluster.rounds.make_round() is Outcome.IDLE
        await asyncio.sleep(20.0)
        cluster.api.delete_pod("default/waiting")
        cluster.watch()
        assert await cluster.rounds.make_round() is Outcome.IDLE
        assert cluster.evictions == 0


@pytest.mark.parametrize(
    "pods",
    [
        (SMALL.with_priority(9), LARGE.with_priority(9)),
        (held("small", "n1", 50_000), held("large", "n2", 50_000)),
        tuple(gpu_pod(name, mem=9_000).on(on, f"{on}-0,NVIDIA,9000,0:;") for name, on in (("a", "n1"), ("b", "n2"))),
        tuple(pod.annotate(("tessera.io/preemptible", "false")) for pod in (SMALL, LARGE)),
    ],
    ids=["of a higher priority", "no other place", "bare", "opted out"],
)
@in_fake_time
async def test_pods_that_may_not_move_stay(pods: tuple[PodBuilder, ...]) -> None:
    async with living(*pods) as cluster:
        await wait(cluster)
        assert await cluster.rounds.make_round() is Outcome.NO_GAIN
        assert cluster.evictions == 0


@in_fake_time
async def test_a_pod_moves_only_where_kube_scheduler_lets_its_successor_go() -> None:
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)
        cluster.api.taints = [{"key": "k", "effect": "NoSchedule"}]
        assert await cluster.rounds.make_round() is Outcome.NO_GAIN
        cluster.api.taints = []
        assert await cluster.rounds.make_round() is Outcome.MOVED


@pytest.mark.no_cover
@in_fake_time
async def test_no_pod_is_evicted_once_the_budget_of_the_hour_is_spent() -> None:
    async with living(SMALL, LARGE) as cluster:
        spent = msgspec.json.encode([round(cluster.now())] * 3).decode()
        cluster.api.record = Record(Metadata(name=LEASE, annotations={ANNOTATION: spent}, resource_version="7"))
        await wait(cluster)
        assert await cluster.rounds.make_round() is Outcome.NO_GAIN
        await asyncio.sleep(3600.0)
        assert await cluster.rounds.make_round() is Outcome.MOVED


@pytest.mark.no_cover
@in_fake_time
async def test_a_pod_for_which_evictions_were_in_vain_is_left_alone_for_an_hour() -> None:
    async with living(SMALL, LARGE) as cluster:
        cluster.elsewhere = "n1"
        await wait(cluster)
        assert await cluster.rounds.make_round() is Outcome.STOPPED
        assert (cluster.rounds.figures.stops, cluster.evictions) == (1, 1)
        cluster.elsewhere = ""
        await asyncio.sleep(LEFT_ALONE_S - 100)
        assert await cluster.rounds.make_round() is Outcome.NO_GAIN
        await asyncio.sleep(101)
        assert await cluster.rounds.make_round() is Outcome.MOVED
        assert cluster.evictions == 2


@in_fake_time
async def test_a_pod_that_preemption_has_nominated_is_left_to_it() -> None:
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)
        cycle = cluster.cycles.get("uid-waiting")
        assert cycle is not None
        facts = WAITING.on("n1", "n1-0,NVIDIA,75000,0:;").facts()
        cluster.cycles.nominate(cycle, facts, frozenset({"uid-small"}), deadline=1e6)
        assert await cluster.rounds.make_round() is Outcome.IDLE


@in_fake_time
async def test_nothing_is_planned_for_a_pod_that_asks_for_no_card_any_more() -> None:
    """Its claims are all allocated, and their node does not take it."""
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)
        pod = cluster.unschedulable.get("uid-waiting")
        assert pod is not None
        pod.request = replace(pod.request, containers=())
        assert await cluster.rounds.make_round() is Outcome.IDLE


@in_fake_time
async def test_nothing_is_spent_for_a_pod_that_has_gone_while_moves_were_planned() -> None:
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)

        def leave() -> None:
            cluster.api.delete_pod("default/waiting")
            cluster.watch()

        cluster.api.script("find_record", Step(meanwhile=leave))
        assert await cluster.rounds.make_round() is Outcome.STOPPED
        assert (cluster.api.record, cluster.evictions) == (None, 0)


@in_fake_time
async def test_no_pod_is_evicted_for_one_that_is_gone_by_then() -> None:
    async with living(SMALL, LARGE) as cluster:
        await wait(cluster)
        write = cluster.api.write_record

        async def gone(*args: Any, **more: Any) -> None:
            await write(*args, **more)
            cluster.api.delete_pod("default/waiting")
            cluster.watch()

        cluster.api.write_record = gone  # type: ignore[method-assign]
        assert await cluster.rounds.make_round() is Outcome.STOPPED
        assert cluster.evictions == 0


# -- the budget


def budget(cluster: MovingCluster, per_hour: int = 3) -> EvictionBudget:
    return EvictionBudget(cluster.api, cluster.engine.clock, per_hour=per_hour)


@in_fake_time
async def test_an_hour_slides_over_the_lives_of_processes() -> None:
    cluster = MovingCluster()
    passed = 0.0
    for minutes, count, is_allowed, left in (
        (0, 1, True, 2),
        (30, 2, True, 0),
        (59, 1, False, 0),
        (61, 2, False, 1),
        (61, 1, True, 0),
        (91, 2, True, 0),
    ):
        await asyncio.sleep(60 * minutes - passed)
        passed = 60.0 * minutes
        of_another_process = budget(cluster)
        assert await of_another_process.spend(count) is is_allowed
        assert of_another_process.left() == left


@pytest.mark.parametrize("text", ["", "[", "{}", '["a"]', "[1.5]", "[" + "1," * 40_000 + "1]", "[1e400]"])
async def test_a_record_that_cannot_be_read_is_a_full_hour(text: str) -> None:
    cluster = MovingCluster()
    cluster.api.record = Record(Metadata(annotations={ANNOTATION: text}, resource_version="7"))
    found = budget(cluster)
    await found.load()
    assert found.left() == 0


@in_fake_time
async def test_a_clock_that_is_set_gives_no_evictions_and_takes_none_for_longer_than_an_hour() -> None:
    for skew in (-7200.0, 7200.0):
        cluster = MovingCluster()
        found = budget(cluster, per_hour=1)
        assert await found.spend(1)
        cluster.skew = skew
        assert not await found.spend(1)
        await asyncio.sleep(3601.0)
        assert await found.spend(1)


async def test_of_two_processes_that_believe_to_decide_one_spends() -> None:
    cluster = MovingCluster()
    one, other = budget(cluster, per_hour=1), budget(cluster, per_hour=1)
    assert sorted(await asyncio.gather(one.spend(1), other.spend(1))) == [False, True]


async def test_nothing_is_spent_that_could_not_be_written() -> None:
    cluster = MovingCluster()
    cluster.api.script("write_record", refused(403))
    with pytest.raises(KubeError):
        await budget(cluster).spend(1)
