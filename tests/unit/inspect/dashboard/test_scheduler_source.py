"""A pod on the page of a scheduler: the answer of `tessera explain`, from the scheduler's own engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tessera.inspect.dashboard import scheduler_page, steps, waiting
from tessera.inspect.dashboard.pods import NO_ORIGIN, PodOrigin
from tessera.inspect.dashboard.scheduler_page import MAX_REFUSED, NOT_ASKED, EngineSource, Refusals, SchedulerPage
from tessera.inspect.dashboard.source import FixedSource, PodAnswer
from tessera.inspect.dashboard.steps import TooLong, pause_for
from tessera.inspect.dashboard.waiting import NOT_YET, WaitingPods
from tessera.inspect.explanation import PodVerdict, explain
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.service import Service
from tessera.scheduler.settings import Settings
from tessera.wire.objects import Metadata, OwnerReference, Pod
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.cluster_states import plain, state_of
from tests.support.event_loops import in_fake_time
from tests.support.gangs import gang, machine
from tests.support.stepwise_scheduler import World


class Client:
    """Shows the pods that a test gives it."""

    def __init__(self, *pods: PodBuilder) -> None:
        self._pods = {pod.name: plain(pod) for pod in pods}

    async def find(self, path: str, _kind: object) -> Any:
        return self._pods.get(path.rpartition("/")[2])


async def answered(world: World, pod: PodBuilder) -> PodAnswer:
    service = SimpleNamespace(
        view=EngineView(world.engine), client=Client(pod), settings=Settings(), journal=SimpleNamespace(begin=0.0)
    )
    before = world.ledger.state(), world.ledger.arrays.now
    found = await EngineSource(cast("Service", service), SchedulerPage()).explain("default", pod.name)
    assert (world.ledger.state(), world.ledger.arrays.now) == before
    assert found is not None
    return found


@in_fake_time
async def test_a_pod_that_waits_is_explained_as_the_command_does() -> None:
    nodes = [node("n1").gpus(1, memory=24_000), node("n2").gpus(2, memory=16_000)]
    world, pod = World(*nodes), gpu_pod("large", mem=30_000)
    world.create(pod)
    world.filtered(pod)
    answer = await answered(world, pod)
    command = explain(OfflineCluster(state_of(nodes, [pod])), "default/large")
    assert (answer.found.status, answer.cycle) == (PodVerdict.REFUSED, "refused")
    assert (answer.found.verdict, answer.found.request) == (command.verdict, command.request)


@in_fake_time
async def test_nodes_that_kube_scheduler_leaves_out_are_not_judged() -> None:
    world, pod = World(node("n1").gpus(1, memory=24_000), node("n2").gpus(1, memory=24_000)), gpu_pod(mem=30_000)
    world.create(pod)
    world.filtered(pod, ["n2"])
    found = (await answered(world, pod)).found
    assert [(group.reason, group.nodes) for group in found.kept_off] == [(NOT_ASKED, ("n1",))]


@in_fake_time
async def test_a_reservation_is_shown_and_nothing_is_tried_for_it() -> None:
    world, pod = World(node("n1").gpus(1)), gpu_pod(mem=3_000)
    world.create(pod)
    assert world.chosen(pod) == "n1"
    answer = await answered(world, pod)
    assert (answer.found.status, answer.found.node, answer.cycle) == (PodVerdict.PLACED, "n1", "reserved")
    assert [one.memory_mib for one in answer.found.slices] == [3_000]
    assert answer.found.notes[-1] == "its devices are reserved; the Binding is not written yet"
    assert answer.found.verdict is None


@in_fake_time
async def test_a_member_is_told_what_the_scheduler_has_decided_about_its_gang() -> None:
    world, pods = World(machine("n1", cards=2)), gang(3)
    world.create(*pods)
    for pod in pods:
        world.filtered(pod)
    found = (await answered(world, pods[0])).found
    assert found.status is PodVerdict.GANG_WAITING
    assert found.gang is not None
    assert (found.gang.fits, found.gang.fitting, found.gang.pending) == (False, 2, 3)
    assert "2 of 3 members fit" in found.gang.text


# -- work that takes too long


@pytest.fixture
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SLICE_S", -1.0)
    monkeypatch.setattr(scheduler_page, "MAX_EXPLAIN_S", 0.0)
    monkeypatch.setattr(waiting, "MAX_S", 0.0)


@pytest.mark.usefixtures("_no_time")
@in_fake_time
async def test_an_explanation_that_takes_too_long_is_left_to_the_command() -> None:
    world, pod = World(node("n1").gpus(1)), gpu_pod(gpu=2)
    world.create(pod)
    world.filtered(pod)
    with pytest.raises(TooLong, match="use `tessera explain`"):
        await answered(world, pod)


@pytest.mark.usefixtures("_no_time")
@in_fake_time
async def test_a_pod_whose_judgement_takes_too_long_is_not_judged() -> None:
    found = WaitingPods(FixedSource(OfflineCluster(state_of([node("n1").gpus(1)], [gpu_pod(gpu=2)]))))
    found.refresh()
    await found.judge(pause_for(1.0))
    found.refresh()
    assert [row.why for row in found.rows.values()] == [NOT_YET.why]


# -- how long pods wait


def test_refusals_are_bounded_without_a_viewer_and_the_longest_silent_pod_is_forgotten() -> None:
    refusals = Refusals()
    for number in range(MAX_REFUSED):
        refusals.add(f"uid-{number}", None, float(number))
    refusals.add("uid-0", None, 1e6)
    refusals.add("uid-new", None, 1e6)
    assert refusals.get("uid-0") == (PodOrigin(since=0.0), 2)
    assert refusals.get("uid-1") == (NO_ORIGIN, None)
    assert refusals.get("uid-new") == (PodOrigin(since=1e6), 1)


def test_a_pod_waits_since_it_was_created_and_has_its_owner() -> None:
    refusals, owner = Refusals(), OwnerReference(kind="Job", name="train", controller=True)
    metadata = Metadata(name="train-0", creation_timestamp="1970-01-01T00:01:40Z", owner_references=[owner])
    refusals.add("u", Pod(metadata=metadata), 500.0)
    refusals.add("u", None, 600.0)
    assert refusals.get("u") == (PodOrigin("Job", "train", 100.0, 100.0), 2)
