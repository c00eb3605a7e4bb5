"""Plans as files, and when a move is not begun. The whole way of a move: tests/integration/test_defrag.py."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from tessera.inspect.defragmentation import DefragmentationReport, plan_cards
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.documents import encode_document, make_document
from tessera.inspect.state import InspectionError
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.maintenance.defrag import ApplyOptions, MoveProgress, MoveStage, PlanRun, read_plan
from tessera.wire.moves import HoldState, decode_move_hold, encode_move_hold
from tessera.wire.objects import Metadata, Node
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.event_loops import in_fake_time

NODES = [node("n1").gpus(1, memory=80000), node("n2").gpus(1, memory=80000)]


def held(name: str, on: str, memory: int) -> PodBuilder:
    return gpu_pod(name, mem=memory).on(on, f"{on}-0,NVIDIA,{memory},0:;").of("Job", name)


SMALL, LARGE = held("small", "n1", 10_000), held("large", "n2", 20_000)


def cluster(*pods: PodBuilder) -> OfflineCluster:
    return OfflineCluster(state_of(NODES, pods))


def plan() -> DefragmentationReport:
    found = plan_cards(cluster(SMALL, LARGE), max_moves=9, with_bare=False)
    assert [move.name for move in found.moves] == ["small"]
    return found


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_a_plan_is_read_as_it_was_printed(form: str) -> None:
    found = plan()
    text = encode_document(make_document("DefragmentationPlan", cluster().state, found), form)
    assert read_plan(text, file="plan") == found


@pytest.mark.parametrize("text", ["", "[]", "kind: Pod", "{kind: DefragmentationPlan, goal: 3}", "a: ["])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InspectionError):
        read_plan(text, file="plan")


class NoClient:
    """Nothing may be asked or written."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(name)


async def applied(found: DefragmentationReport, *pods: PodBuilder) -> list[MoveProgress]:
    async def look() -> OfflineCluster:
        return cluster(*pods)

    run = PlanRun(cast("KubeClient", NoClient()), look, ApplyOptions(), lambda: NOW, lambda _line: None)
    return await run.run(found.moves)


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ((held("small", "n2", 10_000), LARGE), "it does not hold n1/0 any more"),
        ((gpu_pod("small", mem=10_000).on("n1", "n1-0,NVIDIA,10000,0:;"), LARGE), "nothing creates it again"),
    ],
)
async def test_a_move_that_is_not_as_planned_is_not_begun(pods: tuple[PodBuilder, ...], reason: str) -> None:
    [progress] = await applied(plan(), *pods)
    assert progress.stage is MoveStage.STOPPED
    assert reason in progress.reason


async def test_a_pod_that_is_gone_is_taken_for_moved() -> None:
    [progress] = await applied(plan(), LARGE)
    assert progress.stage is MoveStage.MOVED
    [again] = await applied(plan(), SMALL.called("small", uid="another"), LARGE)
    assert again.stage is MoveStage.MOVED


async def test_a_pod_that_leaves_already_is_not_evicted_again() -> None:
    """The process that evicted it was killed."""
    [progress] = await applied(plan(), SMALL.terminating(), LARGE)
    assert progress.stage is MoveStage.MOVED


# -- faults of the apiserver on the way

UNREACHABLE = Unreachable("connection reset", maybe_done=True)


class FaultyCluster:
    """An apiserver, the scheduler that holds what it is asked for, and a Job controller. Each method fails as told."""

    def __init__(self, **faults: list[KubeError]) -> None:
        self.faults = faults
        self.annotations: dict[str, str] = {}
        self.pods = [SMALL, LARGE]
        self.afterwards = [LARGE, held("small", "n2", 10_000).called("small", uid="next")]
        self.evictions = 0

    def _fail(self, method: str) -> None:
        if self.faults.get(method):
            raise self.faults[method].pop(0)

    async def look(self) -> OfflineCluster:
        self._fail("look")
        return cluster(*self.pods)

    async def patch(self, _path: str, body: Any) -> None:
        for key, text in body["metadata"]["annotations"].items():
            self._fail("patch" if text else "release")
            self.annotations.pop(key, None)
            if text:
                held = structs.replace(decode_move_hold(text), state=HoldState.HELD)
                self.annotations[key] = encode_move_hold(held)

    async def get(self, _path: str, _kind: object) -> Node:
        self._fail("get")
        return Node(Metadata(name="n2", annotations=self.annotations))

    async def evict(self, _namespace: str, name: str, *, uid: str, dry_run: bool) -> None:
        self._fail("evict")
        assert (name, uid) == ("small", "uid-small")
        self.evictions += 1
        self.pods = self.afterwards

    async def list(self, _path: str, _kind: object) -> SimpleNamespace:
        self._fail("list")
        return SimpleNamespace(items=[pod.api() for pod in self.pods])

    async def apply(self) -> MoveProgress:
        client = cast("KubeClient", self)
        run = PlanRun(client, self.look, ApplyOptions(step_timeout_s=60.0), lambda: NOW, lambda _line: None)
        [progress] = await run.run(plan().moves)
        return progress


REFUSED = ApiError(status=429, message="Cannot evict pod", causes=("the budget small needs 1 healthy pods",))


@pytest.mark.parametrize("method", ["look", "get", "evict", "list", "release"])
@pytest.mark.parametrize("fault", [UNREACHABLE, ApiError(status=503, message="it restarts")])
@in_fake_time
async def test_an_apiserver_that_is_away_for_a_moment_does_not_end_a_plan_in_the_middle(
    method: str, fault: KubeError
) -> None:
    faulty = FaultyCluster(**{method: [fault]})
    progress = await faulty.apply()
    assert (progress.stage, progress.reason, faulty.evictions) == (MoveStage.MOVED, "", 1)


@in_fake_time
async def test_an_eviction_that_a_budget_refuses_for_a_while_is_made_later() -> None:
    faulty = FaultyCluster(evict=[REFUSED] * 5)
    assert (await faulty.apply()).stage is MoveStage.MOVED
    assert faulty.evictions == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ([REFUSED] * 99, "the budget small needs 1 healthy pods"),
        ([ApiError(status=429, message="later", retry_after=3600.0)], "later"),
        ([UNREACHABLE] * 99, "connection reset"),
        ([ApiError(status=403, message="you may not evict")], "you may not evict"),
    ],
    ids=["by a budget", "for an hour", "no apiserver", "no right"],
)
@in_fake_time
async def test_an_eviction_that_stays_refused_ends_the_plan_in_time_and_gives_the_place_back(
    fault: list[KubeError], reason: str
) -> None:
    faulty, clock = FaultyCluster(evict=fault), asyncio.get_running_loop().time
    began = clock()
    progress = await faulty.apply()
    assert (progress.stage, progress.reason) == (MoveStage.STOPPED, reason)
    assert clock() - began <= 60.0
    assert (faulty.annotations, faulty.pods) == ({}, [SMALL, LARGE])


@in_fake_time
async def test_a_successor_that_goes_elsewhere_ends_the_plan() -> None:
    faulty = FaultyCluster()
    faulty.afterwards = [LARGE, SMALL.called("small", uid="next")]
    progress = await faulty.apply()
    assert (progress.stage, progress.reason) == (MoveStage.STOPPED, "its successor small went to n1")
    assert not faulty.annotations


@in_fake_time
async def test_a_pod_whose_owner_is_deleted_meanwhile_ends_the_plan_when_its_time_is_over() -> None:
    faulty = FaultyCluster()
    faulty.afterwards = [LARGE]
    progress = await faulty.apply()
    assert (progress.stage, progress.reason) == (MoveStage.STOPPED, "no pod of Job/small has come to n2 in time")
    assert not faulty.annotations


async def test_a_step_of_several_pods_is_begun_only_if_each_is_as_planned() -> None:
    found = plan()
    [move] = found.moves
    both = replace(found, moves=(move, replace(move, name="large", uid="uid-large")))
    for progress in await applied(both, SMALL, LARGE):
        assert progress.stage is MoveStage.STOPPED
        assert "does not hold n1/0 any more" in progress.reason


async def test_a_plan_that_does_not_say_what_to_hold_is_not_begun() -> None:
    found = plan()
    [move] = found.moves
    old = replace(found, moves=(replace(move, target=replace(move.target, held=())),))
    [progress] = await applied(old, SMALL, LARGE)
    assert (progress.stage, "make it again" in progress.reason) == (MoveStage.STOPPED, True)


async def test_a_gang_of_several_controllers_is_not_begun() -> None:
    """Which of them would take which place is not known."""
    found = plan()
    [move] = found.moves
    entry = cluster(SMALL, LARGE).ledger.pod("uid-large")
    assert entry is not None
    other = replace(move, name="large", uid="uid-large", source=replace(move.target, cards=tuple(entry.holdings)))
    for progress in await applied(replace(found, moves=(move, other)), SMALL, LARGE):
        assert (progress.stage, progress.reason) == (
            MoveStage.STOPPED,
            "the pods of its gang have several controllers",
        )
