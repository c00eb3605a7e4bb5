"""Rounds on the embedded API server, in fake time. The scheduler is a stand-in that holds all it is asked for.

With the real scheduler: tests/integration/test_defragmenter.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec import structs

from tessera.inspect.collector import collect
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Setup
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.kube.lease_election import LeaseElection, LeaseLost
from tessera.kube.resources import NODES, PODS
from tessera.lab.sandbox.api.server import ApiServer, ServerOptions
from tessera.maintenance.defragmenter.controller import LEFT_ALONE_S, Defragmenter, Outcome, RoundOptions
from tessera.maintenance.defragmenter.eviction_budget import EvictionBudget
from tessera.wire import keys
from tessera.wire.moves import HeldCard, HoldState, MoveHold, decode_move_hold, encode_move_hold
from tessera.wire.objects import Pod
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time

OPTIONS = RoundOptions(patience_s=60.0, max_moves=5, step_timeout_s=20.0)
SMALL = gpu_pod("small", mem=10_000).on("n1", "n1-0,NVIDIA,10000,0:;")
LARGE = gpu_pod("large", mem=20_000).on("n2", "n2-0,NVIDIA,20000,0:;")
WAITING = gpu_pod("waiting", mem=75_000)


class StubElection:
    """Of a process that holds its Lease until it is told otherwise."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}
        self.is_lost = False

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        if self.is_lost:
            raise LeaseLost
        self.annotations |= annotations


@dataclass
class Stage:
    """Two nodes with one card each."""

    client: KubeClient
    now: float = NOW + 1000
    answers: bool = True
    """whether the scheduler answers"""
    looks: int = 0
    asked: list[MoveHold] = field(default_factory=list)
    """each hold as it was first seen by the scheduler"""
    extended: list[MoveHold] = field(default_factory=list)
    election: StubElection = field(default_factory=StubElection)
    on_held: Callable[[], Awaitable[object]] | None = None
    """called once a place is held"""

    def __post_init__(self) -> None:
        budget = EvictionBudget(
            cast("LeaseElection", self.election), per_hour=3, now=lambda: self.now, clock=lambda: self.now
        )
        self.controller = Defragmenter(self.client, self.look, budget, OPTIONS, lambda: self.now)
        self.budget = budget
        self.apply, self.client.patch = self.client.patch, self._answer  # type: ignore[method-assign]

    async def add(self, *pods: PodBuilder, owned: bool = True) -> None:
        owner = {"kind": "Job", "apiVersion": "batch/v1", "controller": True}
        for pod in pods:
            body = pod.manifest()
            del body["metadata"]["uid"]
            if owned:
                body["metadata"]["ownerReferences"] = [{**owner, "name": pod.name, "uid": pod.name}]
            for each in body["spec"]["containers"]:
                each["image"] = "i"
            body["spec"]["schedulerName"] = "hami-scheduler"
            await self.client.create(PODS.path("default"), body)
            refused = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2023-11-14T22:13:20Z"}
            status: dict[str, Any] = {"phase": "Running"}
            if not body["spec"].get("nodeName"):
                status = {"phase": "Pending", "conditions": [refused]}
            await self.apply(PODS.path("default", pod.name, "status"), {"status": status})

    async def look(self) -> OfflineCluster:
        self.looks += 1
        state = await collect(self.client, source="s", now=lambda: self.now, override=lambda _: Setup(), namespace=None)
        return OfflineCluster(state)

    async def _answer(self, path: str, body: Any, **more: Any) -> Any:
        """The patch, and the scheduler's answer to it."""
        await self.apply(path, body, **more)
        for key, text in body["metadata"]["annotations"].items():
            hold = decode_move_hold(text) if text else None
            if hold is not None and hold.state is HoldState.HELD:
                self.extended.append(hold)
            if hold is not None and hold.state is HoldState.ASKED:
                self.asked.append(hold)
                self.now += 7  # The scheduler takes its time.
                held = encode_move_hold(structs.replace(hold, state=HoldState.HELD))
                if self.answers:
                    await self.apply(path, {"metadata": {"annotations": {key: held}}})
                if self.on_held is not None:
                    then, self.on_held = self.on_held, None
                    await then()

    async def names(self) -> list[str]:
        pods = (await self.client.list(PODS.path(), dict[str, Any])).items
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def holds(self) -> list[str]:
        nodes = (await self.client.list(NODES.path(), dict[str, Any])).items
        return [key for each in nodes for key in each["metadata"]["annotations"] if key.startswith(keys.MOVE_PREFIX)]


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with ApiServer(ServerOptions(seed=1, now=lambda: NOW)) as server, KubeClient(Access(server.url)) as client:
        for name in ("n1", "n2"):
            await client.create(NODES.path(), node(name).gpus(1, memory=80_000).manifest())
        yield Stage(client)


@in_fake_time
async def test_what_is_gained_is_held_before_the_first_eviction_and_given_back_if_the_plan_stops() -> None:
    async with stage() as on:
        await on.add(SMALL, LARGE, WAITING)
        assert await on.controller.make_round() is Outcome.STOPPED, "no successor comes"
        gained, target = on.asked
        assert [card.uuid for card in gained.cards] == ["n1-0"]
        assert (gained.name, bool(gained.pod), len(gained.leaving)) == ("waiting", True, 1)
        assert (target.kind, target.name, [card.uuid for card in target.cards]) == ("Job", "small", ["n2-0"])
        assert [(hold.pod, hold.until - gained.until) for hold in on.extended] == [(gained.pod, 14.0)]
        assert await on.names() == ["large", "waiting"]
        assert await on.holds() == []
        assert on.budget.left() == 2


@in_fake_time
async def test_places_of_a_gang_that_need_no_move_are_held_as_well() -> None:
    async with stage() as on:
        await on.client.create(NODES.path(), node("n3").gpus(1, memory=80_000).manifest())
        await on.add(SMALL, LARGE, *(gpu_pod(f"m{number}", mem=75_000).in_gang("g", 2) for number in (0, 1)))
        assert await on.controller.make_round() is Outcome.STOPPED, "no successor comes"
        fitting, gained, target = on.asked
        assert [card.uuid for card in fitting.cards] == ["n3-0"]
        assert [card.uuid for card in gained.cards] == ["n1-0"]
        assert {fitting.name, gained.name} == {"m0", "m1"}
        assert len(fitting.leaving) == 1, "it is taken together with the other"
        assert fitting.leaving == gained.leaving
        assert (target.name, len(on.extended)) == ("small", 2)
        assert await on.holds() == []


@in_fake_time
async def test_a_pod_for_which_evictions_were_in_vain_is_left_alone_for_an_hour() -> None:
    async with stage() as on:
        await on.add(SMALL, LARGE, WAITING)
        assert await on.controller.make_round() is Outcome.STOPPED
        await on.client.delete(PODS.path("default", "small"), grace_s=0)
        await on.add(SMALL)
        assert await on.controller.make_round() is Outcome.NO_GAIN
        on.now += LEFT_ALONE_S + 1
        assert await on.controller.make_round() is Outcome.STOPPED


@in_fake_time
async def test_a_plan_that_stops_before_an_eviction_is_made_again() -> None:
    async with stage() as on:
        await on.add(SMALL, LARGE, WAITING)
        on.answers = False
        for _ in range(2):
            assert await on.controller.make_round() is Outcome.STOPPED
        assert (on.budget.left(), await on.holds()) == (3, [])
        assert await on.names() == ["large", "small", "waiting"]
        assert on.controller.figures.plans == 2


@pytest.mark.parametrize(
    ("fault", "waits"),
    [
        (Unreachable("connection reset", maybe_done=False), True),
        (ApiError(status=503), True),
        (ApiError(status=404), False),
    ],
)
async def test_a_pod_is_bound_or_gone_only_if_the_apiserver_says_so(fault: KubeError, waits: bool) -> None:
    async def get(*_: object) -> Pod:
        raise fault

    async with stage() as on:
        on.client.get = get  # type: ignore[assignment]
        assert await on.controller._waits("default/waiting", "uid-waiting") is waits


@in_fake_time
async def test_no_pod_is_evicted_for_one_that_does_not_wait_any_more() -> None:
    async with stage() as on:
        await on.add(SMALL, LARGE, WAITING)
        on.on_held = lambda: on.client.delete(PODS.path("default", "waiting"), grace_s=0)
        assert await on.controller.make_round() is Outcome.STOPPED
        assert (await on.names(), await on.holds()) == (["large", "small"], [])
        assert on.budget.left() == 3


@in_fake_time
async def test_a_process_without_its_lease_evicts_no_pod() -> None:
    async with stage() as on:
        await on.add(SMALL, LARGE, WAITING)
        on.election.is_lost = True
        assert await on.controller.make_round() is Outcome.STOPPED
        assert await on.names() == ["large", "small", "waiting"]
        assert await on.holds() == []


@pytest.mark.parametrize(
    ("state", "until", "outcome"),
    [
        (HoldState.HELD, 500.0, Outcome.BUSY),
        (HoldState.ASKED, 500.0, Outcome.BUSY),
        (HoldState.REFUSED, 500.0, Outcome.IDLE),
        (HoldState.HELD, -1.0, Outcome.IDLE),
    ],
)
@in_fake_time
async def test_no_round_begins_while_another_process_has_places_held(
    state: HoldState, until: float, outcome: Outcome
) -> None:
    async with stage() as on:
        hold = MoveHold("d", "Job", "j", on.now + until, (HeldCard("n1-0", "NVIDIA", 1, 1),), state=state)
        annotations = {f"{keys.MOVE_PREFIX}other": encode_move_hold(hold), f"{keys.MOVE_PREFIX}junk": "junk"}
        await on.apply(NODES.path(name="n1"), {"metadata": {"annotations": annotations}})
        assert await on.controller.make_round() is outcome


@pytest.mark.parametrize(
    ("pods", "outcome"),
    [
        ((LARGE, WAITING), Outcome.NO_GAIN),
        ((SMALL, LARGE), Outcome.IDLE),
        ((SMALL.with_priority(5), LARGE.with_priority(5), WAITING), Outcome.NO_GAIN),
        ((SMALL, LARGE.with_priority(5), WAITING.with_priority(5)), Outcome.STOPPED),
    ],
    ids=["it fits already", "nothing waits", "pods of higher priority stay", "others move"],
)
@in_fake_time
async def test_pods_move_only_for_one_that_gains(pods: tuple[PodBuilder, ...], outcome: Outcome) -> None:
    async with stage() as on:
        await on.add(*pods)
        assert await on.controller.make_round() is outcome
