"""Plans as files, and when a move is not begun. The whole way of a move: tests/integration/test_defrag.py."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tessera.inspect.defragmentation import DefragmentationReport, plan_cards
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.documents import encode_document, make_document
from tessera.inspect.state import InspectionError
from tessera.kube.client import KubeClient
from tessera.maintenance.defrag import ApplyOptions, MoveProgress, MoveStage, PlanRun, read_plan
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of

NODES = [node("n1").gpus(1, memory=80000), node("n2").gpus(1, memory=80000)]


def held(name: str, on: str, memory: int) -> PodBuilder:
    return gpu_pod(name, mem=memory).on(on, f"{on}-0,NVIDIA,{memory},0:;").of("Job", name)


SMALL, LARGE = held("small", "n1", 10_000), held("large", "n2", 20_000)


def cluster(*pods: PodBuilder) -> OfflineCluster:
    return OfflineCluster(state_of(NODES, pods))


def plan() -> DefragmentationReport:
    found = plan_cards(cluster(SMALL, LARGE), most_moves=9, with_bare=False)
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
