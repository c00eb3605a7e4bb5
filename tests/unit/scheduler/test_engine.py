"""What the parts do together when a write to the apiserver fails, and what only time changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC

import pytest

from tessera.core.model.demand_forecast import PRIOR, DemandForecast
from tessera.core.policies.demand_history import FIRST
from tessera.kube.errors import KubeError
from tessera.scheduler.clock import Clock
from tessera.scheduler.engine import WAKE_AGAIN_S, Engine
from tessera.scheduler.features.moves.holds import PlaceHeld, asked_facts, hold_all
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.scheduler.settings import Settings
from tessera.scheduler.tenure import Tenure
from tessera.wire import keys
from tessera.wire.moves import HeldCard, MovePlace
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster, never_sent, not_found, refused
from tests.support.logs import Logs, captured
from tests.support.stepwise_scheduler import filter_body, uid

HANDSHAKE = "hami.io/node-handshake"
REPORTED = "Reported 2026-01-01T00:00:00Z"


@dataclass
class World:
    """An engine with one card on one node, which `full` holds in full."""

    engine: Engine
    api: FakeCluster
    logs: Logs

    def filtered(self, pod: PodBuilder) -> None:
        self.engine.filter.answer(filter_body(pod, ["n1"]))

    def retried(self, pod: PodBuilder) -> str | None:
        """What kube-scheduler sees change on the pod, if anything."""
        found = self.api.pods[f"default/{pod.name}"].annotations.get(keys.RETRY)
        # Before the point is the fence of the decider, after it the number of the waking.
        return found.partition(".")[2] if found is not None else None

    def make_room(self) -> None:
        self.engine.pods.drop("default/full")


def new_engine(
    settings: Settings, api: FakeCluster, tasks: asyncio.TaskGroup, observer: SchedulerObserver | None = None
) -> Engine:
    clock = Clock(lambda: NOW, asyncio.get_running_loop().time, UTC)
    return Engine(
        settings,
        api,
        clock=clock,
        spawn=tasks.create_task,
        observer=observer or SchedulerObserver(),
        tenure=Tenure.unlimited(),
    )


@asynccontextmanager
async def world(**annotations: str) -> AsyncIterator[World]:
    api = FakeCluster()
    api.add_node(node("n1").gpus(1, memory=1000).annotate(*annotations.items()))
    with captured() as logs:
        async with asyncio.TaskGroup() as tasks:
            engine = new_engine(Settings(), api, tasks)
            engine.nodes.put("n1", api.nodes["n1"])
            full = gpu_pod("full", mem=1000).on("n1", "n1-0,NVIDIA,1000,0:;").api()
            engine.pods.put("default/full", full)
            for sink in (engine.pods, engine.nodes, engine.quotas):
                sink.synced()
            waking = tasks.create_task(engine.waker.run())
            yield World(engine, api, logs)
            waking.cancel()


@in_fake_time
async def test_a_refused_pod_is_woken_when_there_is_room() -> None:
    async with world() as here:
        pod = gpu_pod("p", mem=1000)
        here.api.add_pod(pod)
        here.filtered(pod)
        await asyncio.sleep(1)
        assert here.retried(pod) is None
        here.make_room()
        await asyncio.sleep(1)
        assert here.retried(pod) == "1"


@in_fake_time
async def test_deciders_that_started_in_the_same_second_wake_a_pod_by_different_values() -> None:
    pod, values = gpu_pod("p", mem=1000), list[str]()
    for fence in ("1700000000-1f2e", "1700000000-3d4c"):
        async with world() as here:
            here.engine.tenure.begin(0, fence)
            here.api.add_pod(pod)
            here.filtered(pod)
            here.make_room()
            await asyncio.sleep(1)
            values.append(here.api.pods["default/p"].annotations[keys.RETRY])
    assert len(set(values)) == 2, "a patch that changes nothing wakes no pod"


@in_fake_time
async def test_a_pod_is_woken_when_the_pods_have_left_that_were_moved_for_it() -> None:
    async with world() as here:
        pod = gpu_pod("p", mem=1000)
        here.api.add_pod(pod)
        here.filtered(pod)
        held = MovePlace("n1", ("n1-0",), (HeldCard("n1-0", "NVIDIA", 1, 1000),))
        place = PlaceHeld(asked_facts("uid-p", "p", held), "uid-p", frozenset({"uid-full"}))
        assert hold_all(here.engine.ledger, [place], deadline=1e6) == ""
        await asyncio.sleep(1)
        assert here.retried(pod) is None
        here.make_room()
        await asyncio.sleep(1)
        assert here.retried(pod) == "1"


@pytest.mark.parametrize("fault", [refused(500), refused(429), never_sent()])
@in_fake_time
async def test_a_pod_that_could_not_be_woken_is_woken_later(fault: KubeError) -> None:
    async with world() as here:
        pod = gpu_pod("p", mem=1000)
        here.api.add_pod(pod)
        here.filtered(pod)
        here.api.script("annotate_pod", fault)
        here.make_room()
        await asyncio.sleep(WAKE_AGAIN_S / 2)
        assert here.retried(pod) is None
        [told] = here.logs.of("pod not woken")
        assert told["pod"] == "default/p"
        await asyncio.sleep(WAKE_AGAIN_S)
        assert here.retried(pod) == "2"


@in_fake_time
async def test_a_backlog_does_not_hammer_an_apiserver_that_refuses_to_wake_it() -> None:
    async with world() as here:
        pods = [gpu_pod(f"p{number}", mem=10 + number) for number in range(20)]
        for pod in pods:
            here.api.add_pod(pod)
            here.filtered(pod)
        here.api.always("annotate_pod", refused(429))
        here.make_room()
        await asyncio.sleep(600)
        tries = len(here.logs.of("pod not woken"))
        assert 20 * 30 <= tries <= 20 * 50
        here.api.always("annotate_pod", None)
        await asyncio.sleep(15)
        assert all(here.retried(pod) for pod in pods)


@in_fake_time
async def test_a_pod_that_is_gone_is_not_woken_again_and_the_others_are() -> None:
    async with world() as here:
        gone, there = gpu_pod("gone", mem=500), gpu_pod("there", mem=500)
        for pod in (gone, there):
            here.filtered(pod)
        here.api.add_pod(there)
        here.api.script("annotate_pod", not_found("pod"))
        here.make_room()
        await asyncio.sleep(1)
        assert uid(gone) not in here.engine.unschedulable
        assert here.retried(there) is not None
        assert here.logs.of("pod not woken") == []


@in_fake_time
async def test_no_pod_is_woken_before_all_lists_are_complete() -> None:
    async with world() as here:
        pod = gpu_pod("p", mem=1000)
        here.api.add_pod(pod)
        here.filtered(pod)
        here.engine.nodes.has_synced = False
        here.make_room()
        await asyncio.sleep(1)
        assert here.engine.missing() == "the first list of nodes is not complete"
        assert here.retried(pod) is None


@in_fake_time
async def test_a_standby_looks_for_room_once_a_second_however_often_pods_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as here:
        looks: list[str] = []

        def missing() -> str:
            looks.append("another replica leads")
            return looks[-1]

        monkeypatch.setattr(here.engine, "missing", missing)
        for _ in range(10):
            here.engine.unschedulable.on_room()
            await asyncio.sleep(WAKE_AGAIN_S / 20)
        assert len(looks) == 10
        await asyncio.sleep(20.5 * WAKE_AGAIN_S)
        assert len(looks) == 30


@pytest.mark.parametrize("fault", [refused(403), never_sent(), None])
@in_fake_time
async def test_a_handshake_that_is_not_written_does_no_harm(fault: KubeError | None) -> None:
    async with world() as here:
        if fault is not None:
            here.api.script("annotate_node", fault)
        here.api.annotate("n1", **{HANDSHAKE: REPORTED})
        here.engine.nodes.put("n1", here.api.nodes["n1"])
        await asyncio.sleep(1)
        assert here.api.nodes["n1"].annotations[HANDSHAKE].startswith("Reported" if fault else "Requesting")
        assert len(here.logs.of("handshake not written")) == (fault is not None)
        assert here.engine.ledger.node_names() == ("n1",)


@in_fake_time
async def test_a_handshake_is_written_for_the_version_of_the_node_that_was_seen() -> None:
    """A late stamp has an old time: a plugin that has reported meanwhile would be taken for dead."""
    async with world() as here:
        here.api.annotate("n1", **{HANDSHAKE: REPORTED})
        seen = here.api.nodes["n1"]
        here.api.annotate("n1", other="change")
        here.engine.nodes.put("n1", seen)
        await asyncio.sleep(1)
        assert here.api.nodes["n1"].annotations[HANDSHAKE] == REPORTED
        here.engine.nodes.put("n1", here.api.nodes["n1"])
        await asyncio.sleep(1)
        assert here.api.nodes["n1"].annotations[HANDSHAKE].startswith("Requesting")
        assert here.logs.of("handshake not written") == []


@in_fake_time
async def test_a_reservation_that_is_never_bound_makes_room_when_it_expires() -> None:
    async with world() as here:
        here.make_room()
        first, second = gpu_pod("first", mem=1000), gpu_pod("second", mem=1000)
        here.api.add_pod(second)
        here.filtered(first)
        here.filtered(second)
        here.engine.tick()
        await asyncio.sleep(Settings().reservation_s)
        assert here.retried(second) is None
        here.engine.tick()
        await asyncio.sleep(1)
        assert here.retried(second) is not None
        assert here.logs.of("reservations expired")[0]["pods"] == 1


@in_fake_time
async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    api = FakeCluster()
    api.add_node(node("n1").gpus(1).annotate((HANDSHAKE, REPORTED)))
    async with asyncio.TaskGroup() as tasks:
        engine = new_engine(Settings(), api, tasks)
        engine.step_down()
        engine.nodes.put("n1", api.nodes["n1"])
        engine.tick()
    assert [write.verb for write in api.writes] == []


class Told(SchedulerObserver):
    def __init__(self) -> None:
        self.all: list[str] = []

    def on_cards(self, node: str) -> None:
        self.all.append(node)

    def on_tenure(self) -> None:
        self.all.append("a tenure")


@in_fake_time
async def test_observers_hear_of_cards_and_of_the_begin_of_a_tenure() -> None:
    api, told = FakeCluster(), Told()
    api.add_node(node("n1").gpus(1))
    async with asyncio.TaskGroup() as tasks:
        engine = new_engine(Settings(), api, tasks, ObserverGroup(told))
        engine.nodes.put("n1", api.nodes["n1"])
        await engine.take_over(0, lambda: None)
        engine.nodes.drop("n1")
    assert told.all == ["n1", "a tenure", "n1"]


# -- learning


def forecast(engine: Engine) -> DemandForecast | None:
    prepared = engine.request_reader.read(gpu_pod("next").api())
    assert isinstance(prepared, PreparedRequest)
    return prepared.request.forecast


@pytest.mark.parametrize("nodes_first", [True, False])
@in_fake_time
async def test_a_scheduler_that_begins_knows_what_the_pods_before_it_asked_for(nodes_first: bool) -> None:
    ahead = Settings(node_policy="fragmentation", device_policy="fragmentation")
    async with asyncio.TaskGroup() as tasks:
        engine = new_engine(ahead, FakeCluster(), tasks)
        engine.nodes.put("n1", node("n1").gpus(8, memory=1000).api())
        for number in range(FIRST):
            pod = gpu_pod(f"p{number}", mem=100).on("n1", f"n1-{number % 8},NVIDIA,100,0:;")
            engine.pods.put(f"default/p{number}", pod.api())
        before = forecast(engine)
        assert before is not None
        assert before.slices == PRIOR.slices
        for sink in (engine.nodes, engine.pods) if nodes_first else (engine.pods, engine.nodes):
            sink.synced()
        learned = forecast(engine)
        assert learned is not None
        assert [(part.memory, part.weight) for part in learned.slices] == [(10, 1.0)]
        for sink in (engine.nodes, engine.pods):
            sink.synced()
        assert forecast(engine) == learned, "a later list is no first list"
