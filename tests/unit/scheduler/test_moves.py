"""Moves that are made: by request, and in rounds for pods that wait. In fake time, on a fake apiserver."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tessera.core.relocation import MovablePod
from tessera.core.selection import Selector
from tessera.kube.errors import ApiError, KubeError
from tessera.scheduler.features.moves.eviction_budget import ANNOTATION, LEASE, EvictionBudget
from tessera.scheduler.features.moves.feature import BUSY
from tessera.scheduler.features.moves.rounds import LEFT_ALONE_S, Outcome, Rounds
from tessera.scheduler.kube_api import Record
from tessera.scheduler.settings import DefragSettings
from tessera.wire.moves import HeldCard, MoveAsked, MovePlace, MovesRequest, MoveStage, MoveUpdate
from tessera.wire.objects import Metadata, Pod
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.features import moves_of
from tests.support.stepwise_scheduler import World, serving_downward_api

CARD = 80_000
DEFRAG = DefragSettings(
    enabled=True, interval_s=300.0, evictions_per_hour=3, patience_s=60.0, max_moves=5, step_timeout_s=60.0,
    dry_run=False, lease_namespace=None,
)  # fmt: skip


def held(name: str, on: str, memory: int) -> PodBuilder:
    return gpu_pod(name, mem=memory).of("Job", name).on(on, f"{on}-0,NVIDIA,{memory},0:;")


SMALL, LARGE = held("small", "n1", 10_000), held("large", "n2", 20_000)
WAITING = gpu_pod("waiting", mem=75_000)


def one_card(name: str) -> NodeBuilder:
    return serving_downward_api(node(name).gpus(1, memory=CARD))


class Cluster(World):
    """A scheduler, controllers that create evicted pods again, and kube-scheduler."""

    def __init__(self, *pods: PodBuilder, names: tuple[str, ...] = ("n1", "n2")) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        super().__init__(*map(one_card, names))
        self.settings = replace(self.settings, defrag=DEFRAG)
        self.restart()
        for handler in (*self.engine.awaited.values(), self.engine.budgets):
            handler.synced()
        self.replaced = True
        """whether evicted pods are created again"""
        self.elsewhere = ""
        """a node that their successors are bound to by another scheduler"""
        self.create(*pods)

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def live(self) -> None:
        """For ever."""
        number = 0
        while True:
            await asyncio.sleep(1)
            self.watch()
            for key, pod in list(self.api.pods.items()):
                if pod.metadata.deletion_timestamp:
                    number += 1
                    self.api.delete_pod(key)
                    self.watch()
                    if self.replaced:
                        await self._replace(pod, number)
            for pod in list(self.api.pods.values()):
                if not pod.spec.node_name and pod.metadata.name == WAITING.name:
                    await self._schedule(WAITING)

    async def _replace(self, pod: Pod, number: int) -> None:
        name = pod.metadata.name
        new = gpu_pod(name, mem=10_000 if name == "small" else 20_000).of("Job", name).called(name, uid=f"new-{number}")
        if self.elsewhere:
            self.create(new.on(self.elsewhere, f"{self.elsewhere}-0,NVIDIA,10000,0:;"))
            return
        self.create(new)
        await self._schedule(new)

    async def _schedule(self, pod: PodBuilder) -> None:
        answer = self.filtered(pod)
        if answer["NodeNames"]:
            await self.bound(pod, answer["NodeNames"][0])
        self.watch()

    @property
    def places(self) -> dict[str, str]:
        return {pod.metadata.name: pod.spec.node_name for pod in self.api.pods.values()}

    @property
    def evictions(self) -> int:
        return self.api.calls.count("evict")

    @property
    def rounds(self) -> Rounds:
        return moves_of(self.engine).rounds


@asynccontextmanager
async def living(*pods: PodBuilder, names: tuple[str, ...] = ("n1", "n2")) -> AsyncIterator[Cluster]:
    found = Cluster(*pods, names=names)
    life = asyncio.create_task(found.live())
    try:
        yield found
    finally:
        life.cancel()
        for task in found.tasks:
            task.cancel()
        await asyncio.gather(life, *found.tasks, return_exceptions=True)
        for task in found.tasks:
            assert task.cancelled() or task.exception() is None, task


# -- a person asks


def asked(pod: PodBuilder, source: str, target: str, *, step: int = 1, memory: int = 10_000) -> MoveAsked:
    place = MovePlace(target, (f"{target}-0",), (HeldCard(f"{target}-0", "NVIDIA", 1, memory),))
    uid = pod.api().metadata.uid
    return MoveAsked(step, "default", pod.name, uid, MovePlace(source, (f"{source}-0",)), place)


MOVE = MovesRequest((asked(SMALL, "n1", "n2"),), step_timeout_s=60.0)


async def updates(cluster: Cluster, request: MovesRequest = MOVE) -> list[MoveUpdate]:
    lines = moves_of(cluster.engine).apply(request)
    assert not isinstance(lines, str), lines
    found = [msgspec.json.decode(each, type=MoveUpdate) async for piece in lines for each in piece.splitlines() if each]
    assert found.pop() == MoveUpdate(is_last=True)
    assert not cluster.ledger.holds.has_moves
    return found


async def end(cluster: Cluster, request: MovesRequest = MOVE) -> tuple[MoveStage, str]:
    """Of the first move."""
    last = [each for each in await updates(cluster, request) if each.uid == request.moves[0].uid][-1]
    return last.stage, last.reason


@in_fake_time
async def test_a_pod_is_evicted_and_its_successor_takes_what_is_held() -> None:
    async with living(SMALL, LARGE) as cluster:
        stages = [each.stage for each in await updates(cluster)]
        assert stages == [MoveStage.HELD, MoveStage.EVICTED, MoveStage.MOVED]
        assert cluster.places == {"small": "n2", "large": "n2"}
        assert await end(cluster) == (MoveStage.MOVED, "it is gone already, or leaves")
        assert cluster.evictions == 1


@pytest.mark.parametrize("pod", [SMALL.terminating(), SMALL.called("small", uid="another"), LARGE])
@in_fake_time
async def test_a_pod_that_is_gone_or_leaves_is_not_evicted_again(pod: PodBuilder) -> None:
    async with living(pod) as cluster:
        assert (await end(cluster))[0] is MoveStage.MOVED
        assert cluster.evictions == 0


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ((held("small", "n2", 10_000),), "it does not hold what the plan says on n1 any more"),
        ((gpu_pod("small", mem=10_000).on("n1", "n1-0,NVIDIA,10000,0:;"),), "nothing creates it again"),
        ((SMALL, held("full", "n2", 75_000)), "no place is held on n2: the cards are not free any more"),
    ],
)
@in_fake_time
async def test_a_move_that_is_not_as_planned_is_not_begun(pods: tuple[PodBuilder, ...], reason: str) -> None:
    for dry_run in (False, True)[: 2 if "held" not in reason else 1]:
        async with living(*pods) as cluster:
            stage, why = await end(cluster, msgspec.structs.replace(MOVE, dry_run=dry_run))
            assert (stage, reason in why, cluster.evictions) == (MoveStage.STOPPED, True, 0)


@in_fake_time
async def test_a_gang_of_several_controllers_is_not_begun() -> None:
    """Which of them would take which place is not known."""
    async with living(SMALL, held("large", "n1", 20_000)) as cluster:
        both = MovesRequest((*MOVE.moves, asked(LARGE, "n1", "n2", memory=20_000)))
        assert await end(cluster, both) == (MoveStage.STOPPED, "the pods of its gang have several controllers")


@in_fake_time
async def test_a_dry_run_asks_about_the_eviction_and_changes_nothing() -> None:
    async with living(SMALL, LARGE) as cluster:
        dry = msgspec.structs.replace(MOVE, dry_run=True)
        assert await end(cluster, dry) == (MoveStage.WAITING, "would move to n2")
        cluster.api.script("evict_dry_run", refused(429))
        assert await end(cluster, dry) == (MoveStage.STOPPED, "scripted")
        assert cluster.evictions == 0


@pytest.mark.parametrize("verb", ["list_pods", "evict"])
@pytest.mark.parametrize("fault", [lost_answer(), refused(503), refused(429)])
@in_fake_time
async def test_an_apiserver_that_is_away_for_a_moment_does_not_end_a_plan(verb: str, fault: KubeError) -> None:
    async with living(SMALL, LARGE) as cluster:
        cluster.api.script(verb, fault)
        assert (await end(cluster))[0] is MoveStage.MOVED


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [(refused(429), 61.0), (ApiError(status=403, message="scripted"), 5.0)],
    ids=["budget", "right"],
)
@in_fake_time
async def test_an_eviction_that_stays_refused_ends_the_plan_in_time(fault: KubeError, seconds: float) -> None:
    async with living(SMALL, LARGE) as cluster:
        cluster.api.always("evict", fault)
        cluster.api.always("evict_dry_run", fault)
        began = asyncio.get_running_loop().time()
        stage, reason = await end(cluster)
        assert (stage, "scripted" in reason) == (MoveStage.STOPPED, True)
        assert asyncio.get_running_loop().time() - began <= seconds


@in_fake_time
async def test_a_successor_that_goes_elsewhere_or_never_comes_ends_the_plan() -> None:
    async with living(SMALL, LARGE) as cluster:
        cluster.elsewhere = "n1"
        assert await end(cluster) == (MoveStage.STOPPED, "its successor small went to n1")
    async with living(SMALL, LARGE) as cluster:
        cluster.replaced = False
        assert await end(cluster) == (MoveStage.STOPPED, "no successor has come to n2 in time")


TWO = MovesRequest((*MOVE.moves, asked(LARGE, "n2", "n3", step=2, memory=20_000)), interval_s=30.0)


@in_fake_time
async def test_a_caller_that_goes_away_stops_the_moves_before_the_next_one() -> None:
    async with living(SMALL, LARGE, names=("n1", "n2", "n3")) as cluster:
        lines = moves_of(cluster.engine).apply(TWO)
        assert not isinstance(lines, str)
        async for piece in lines:
            if b"moved" in piece:
                break
        await lines.aclose()
        await asyncio.sleep(60)
        assert (cluster.places["small"], cluster.places["large"], cluster.evictions) == ("n2", "n2", 1)
        stages = [each.stage for each in await updates(cluster, TWO)]
        assert stages[-1] is MoveStage.MOVED, "the same plan again goes on"
        assert cluster.places["large"] == "n3"


@in_fake_time
async def test_the_same_request_is_followed_and_another_one_refused() -> None:
    async with living(SMALL, LARGE) as cluster:
        first, second = asyncio.create_task(updates(cluster)), asyncio.create_task(updates(cluster))
        await asyncio.sleep(0)
        assert moves_of(cluster.engine).apply(TWO) == BUSY
        assert await cluster.rounds.make_round() is Outcome.BUSY
        assert await first == await second
        assert cluster.evictions == 1


@in_fake_time
async def test_moves_end_with_the_term() -> None:
    async with living(SMALL, LARGE) as cluster:
        cluster.replaced = False
        following = asyncio.create_task(updates(cluster))
        while not cluster.evictions:
            await asyncio.sleep(0.1)
        cluster.stop_leading()
        assert not cluster.ledger.holds.has_moves
        last = (await following)[-1]
        assert (last.stage, last.reason) == (MoveStage.STOPPED, "this replica does not decide any more")
        assert isinstance(moves_of(cluster.engine).apply(MOVE), str)


@in_fake_time
async def test_a_term_that_ended_in_the_middle_of_a_move_ends_it_though_another_has_begun() -> None:
    async with living(SMALL, LARGE) as cluster:
        cluster.replaced = False
        following = asyncio.create_task(updates(cluster))
        while not cluster.evictions:
            await asyncio.sleep(0.1)
        cluster.lead_again()
        last = (await following)[-1]
        assert (last.stage, last.reason) == (MoveStage.STOPPED, "this replica does not decide any more")


@in_fake_time
async def test_a_pod_stays_if_another_one_has_taken_the_place_of_its_successor() -> None:
    async with living(SMALL, LARGE) as cluster:

        def scale_up() -> None:
            other = gpu_pod("other", mem=10_000).of("Job", "small")
            cluster.create(other)
            assert cluster.chosen(other) == "n2"

        cluster.api.script("evict_dry_run", Step(meanwhile=scale_up))
        assert await end(cluster) == (MoveStage.STOPPED, "the place that was held for its successor is taken")
        assert cluster.evictions == 0


# -- rounds


async def wait(cluster: Cluster, pod: PodBuilder = WAITING, seconds: float = 61.0) -> None:
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


def budget(cluster: Cluster, per_hour: int = 3) -> EvictionBudget:
    return EvictionBudget(cluster.api, cluster.engine.clock, per_hour=per_hour)


@in_fake_time
async def test_an_hour_slides_over_the_lives_of_processes() -> None:
    cluster = Cluster()
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
    cluster = Cluster()
    cluster.api.record = Record(Metadata(annotations={ANNOTATION: text}, resource_version="7"))
    found = budget(cluster)
    await found.load()
    assert found.left() == 0


@in_fake_time
async def test_a_clock_that_is_set_gives_no_evictions_and_takes_none_for_longer_than_an_hour() -> None:
    for skew in (-7200.0, 7200.0):
        cluster = Cluster()
        found = budget(cluster, per_hour=1)
        assert await found.spend(1)
        cluster.skew = skew
        assert not await found.spend(1)
        await asyncio.sleep(3601.0)
        assert await found.spend(1)


async def test_of_two_processes_that_believe_to_decide_one_spends() -> None:
    cluster = Cluster()
    one, other = budget(cluster, per_hour=1), budget(cluster, per_hour=1)
    assert sorted(await asyncio.gather(one.spend(1), other.spend(1))) == [False, True]


async def test_nothing_is_spent_that_could_not_be_written() -> None:
    cluster = Cluster()
    cluster.api.script("write_record", refused(403))
    with pytest.raises(KubeError):
        await budget(cluster).spend(1)
