"""Moves that a person asks for. In fake time, on a fake apiserver."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tessera.kube.errors import ApiError, KubeError
from tessera.scheduler.features.moves.feature import BUSY
from tessera.scheduler.features.moves.rounds import Outcome
from tessera.wire.moves import HeldCard, MoveAsked, MovePlace, MovesRequest, MoveStage, MoveUpdate
from tests.support.builders import PodBuilder, gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.moving_cluster import LARGE, SMALL, MovingCluster, held, living
from tests.support.stepwise_scheduler import moves_of


def asked(pod: PodBuilder, source: str, target: str, *, step: int = 1, memory: int = 10_000) -> MoveAsked:
    place = MovePlace(target, (f"{target}-0",), (HeldCard(f"{target}-0", "NVIDIA", 1, memory),))
    uid = pod.api().metadata.uid
    return MoveAsked(step, "default", pod.name, uid, MovePlace(source, (f"{source}-0",)), place)


MOVE = MovesRequest((asked(SMALL, "n1", "n2"),), step_timeout_s=60.0)


async def updates(cluster: MovingCluster, request: MovesRequest = MOVE) -> list[MoveUpdate]:
    lines = moves_of(cluster.engine).apply(request)
    assert not isinstance(lines, str), lines
    found = [msgspec.json.decode(each, type=MoveUpdate) async for piece in lines for each in piece.splitlines() if each]
    assert found.pop() == MoveUpdate(is_last=True)
    assert not cluster.ledger.holds.has_moves
    return found


async def end(cluster: MovingCluster, request: MovesRequest = MOVE) -> tuple[MoveStage, str]:
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
