"""Gangs that hold what they never use, beside pods of another namespace, for up to an hour of fake time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from tessera.scheduler.features.gangs.accounts import FULL_S
from tessera.scheduler.features.gangs.feature import Gangs
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.support.stepwise_scheduler import (
    World,
    assert_accounts_match,
    filter_body,
    serving_downward_api,
    using_downward_api,
)

TICK = 15.0
ASLEEP = 300.0
"""seconds after which kube-scheduler asks for a refused pod by itself"""
HALF_AN_HOUR, ONE_HOUR = 120, 240
"""ticks"""

pytestmark = pytest.mark.no_cover


def machines(count: int = 4, cards: int = 8) -> list[NodeBuilder]:
    return [serving_downward_api(node(f"n{i}").gpus(cards, slots=10)) for i in range(count)]


def members(size: int, *, name: str, cards: int, namespace: str = "mallory", **more: str) -> list[PodBuilder]:
    asking = using_downward_api(gpu_pod(gpu=cards))
    return [asking.called(f"{name}-{i}", namespace=namespace).in_gang(name, size, **more) for i in range(size)]


def impossible(name: str) -> list[PodBuilder]:
    """Four members that take a node each, and one that asks for nine cards of eight."""
    return [*members(5, name=name, cards=8)[:4], members(5, name=name, cards=9)[4]]


class Cluster(World):
    """With a kube-scheduler that asks for pods that were woken, and for all others every five minutes."""

    def __init__(self, *nodes: NodeBuilder) -> None:
        super().__init__(*nodes)
        for informer in (self.pods, self.nodes, self.quotas):
            informer.synced()
        self._asked: dict[str, tuple[str, float]] = {}
        self._running: list[asyncio.Future[None]] = [asyncio.ensure_future(self.engine.waker.run())]
        self._binds: set[asyncio.Future[str]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        return asyncio.ensure_future(work)

    def stop(self) -> None:
        for task in self._running:
            task.cancel()
        for bind in self._binds:
            bind.cancel()

    def run_beside(self, work: Awaitable[None]) -> None:
        self._running.append(asyncio.ensure_future(work))

    def delete(self, *pods: PodBuilder) -> None:
        for pod in pods:
            self.api.delete_pod(f"{pod.namespace}/{pod.name}")
        self.watch()

    def serve(self, pods: Sequence[PodBuilder], names: Sequence[str] | None = None) -> None:
        """Ask for those of the pods that it is time for."""
        for pod in pods:
            stored = self.api.pods.get(f"{pod.namespace}/{pod.name}")
            if stored is None or stored.spec.node_name:
                continue
            retry = stored.annotations.get("tessera.io/retry", "")
            known = self._asked.get(pod.name)
            if known is not None and known[0] == retry and self.time() - known[1] < ASLEEP:
                continue
            self._asked[pod.name] = retry, self.time()
            chosen = self.filtered(pod, names)["NodeNames"]
            if chosen:
                bind = asyncio.ensure_future(self.bound(pod, chosen[0]))
                self._binds.add(bind)
                bind.add_done_callback(self._binds.discard)

    async def tick(self) -> None:
        await asyncio.sleep(TICK)
        self.engine.tick()
        self.watch()
        await asyncio.sleep(0)


async def refusals(cluster: Cluster, other: PodBuilder, serve: Callable[[], None], *, attempts: int) -> list[str]:
    """The texts with which a pod of another namespace is refused, of so many attempts, one per tick."""
    texts = []
    for number in range(attempts):
        serve()
        await cluster.tick()
        asked = other.called(f"other-{number}", namespace="other")
        cluster.create(asked)
        answer = cluster.filtered(asked)
        if answer["NodeNames"] is None:
            reasons = (answer["FailedNodes"] or {}) | (answer["FailedAndUnresolvableNodes"] or {})
            texts.append(answer["Error"] or next(iter(reasons.values())))
        cluster.api.delete_pod(f"other/{asked.name}")
        cluster.watch()
        assert_accounts_match(cluster.engine)
    cluster.stop()
    return texts


# -- gangs that can never fit


@pytest.mark.parametrize(
    ("attackers", "said"),
    [
        (
            impossible("a") + impossible("b"),
            "1 x 9 NVIDIA, 4 x 8 NVIDIA: 4 of 5 members fit; short of 9 cards; most nodes: NodeInsufficientDevice",
        ),
        (members(33, name="a", cards=1), "33 x 1 NVIDIA: 32 of 33 members fit; short of 1 card"),
        (members(5, name="a", cards=8), "5 x 8 NVIDIA: 4 of 5 members fit; short of 8 cards"),
    ],
    ids=["two gangs with nine-card pods", "33 of 32 cards", "five of four nodes"],
)
@in_fake_time
async def test_gangs_that_can_never_fit_hold_nothing_and_say_so(attackers: list[PodBuilder], said: str) -> None:
    cluster = Cluster(*machines())
    cluster.create(*attackers)
    other = using_downward_api(gpu_pod(gpu=1, mem=1_000))
    found = await refusals(cluster, other, lambda: cluster.serve(attackers), attempts=HALF_AN_HOUR)
    assert found == []
    assert cluster.reason(attackers[0]) == f"gang mallory/a: never fits, even with all other pods gone: {said}"


# -- plans that come to nothing


async def late_second_member(cluster: Cluster) -> None:
    """Two pods at a time, under a new name each time: the second one comes shortly before the timeout, and may use a
    node that has no room."""
    for number in range(10_000):
        pods = members(2, name=f"g{number}", cards=4)
        cluster.create(pods[0])
        cluster.filtered(pods[0])
        await asyncio.sleep(19)
        cluster.create(pods[1])
        cluster.filtered(pods[1], ["full"])
        cluster.delete(*pods)


async def one_of_many(cluster: Cluster) -> None:
    """One pod of a gang that is never complete, created again and again."""
    for number in range(10_000):
        pod = members(8, name=f"g{number}", cards=1)[0]
        cluster.create(pod)
        cluster.filtered(pod)
        await asyncio.sleep(19)
        cluster.delete(pod)


async def running_member(cluster: Cluster) -> None:
    """A pod that runs is annotated into gangs whose other members kube-scheduler can place nowhere."""
    runs = using_downward_api(gpu_pod(mem=1)).called("runs", namespace="mallory")
    cluster.create(runs)
    assert await cluster.bound(runs, cluster.chosen(runs, ["full"])) == ""
    cluster.watch()
    for number in range(10_000):
        waiting = members(9, name=f"g{number}", cards=1)[1:]
        cluster.create(*waiting)
        cluster.api.mark_pod("mallory/runs", {"tessera.io/gang": f"g{number}", "tessera.io/gang-size": "9"})
        cluster.watch()
        cluster.filtered(waiting[0], ["full"])
        await asyncio.sleep(200)
        cluster.delete(*waiting)


async def optional_members(cluster: Cluster) -> None:
    """One member is bound; places are held for seven others that kube-scheduler can place nowhere."""
    for number in range(10_000):
        pods = members(8, name=f"g{number}", cards=1, gang_min="1")
        cluster.create(*pods)
        chosen = cluster.filtered(pods[0])["NodeNames"]
        if chosen:
            await cluster.bound(pods[0], chosen[0])
        await asyncio.sleep(100)
        cluster.delete(*pods)


@pytest.mark.parametrize("attack", [late_second_member, one_of_many, running_member, optional_members])
@in_fake_time
async def test_what_gangs_hold_without_being_bound_is_bounded(attack: Callable[[Cluster], Awaitable[None]]) -> None:
    cluster = Cluster(*machines(1), serving_downward_api(node("full").gpus(1)))
    cluster.run_beside(attack(cluster))
    other = using_downward_api(gpu_pod(gpu=8))
    found = await refusals(cluster, other, lambda: None, attempts=ONE_HOUR)
    assert len(found) * TICK <= FULL_S * 9 / 8 + 0.1 * ONE_HOUR * TICK * 9 / 8


# -- groups without an object


@in_fake_time
async def test_groups_without_an_object_are_looked_up_at_a_bounded_rate_and_delay_no_wake_up() -> None:
    cluster = Cluster(*machines(1, cards=1))
    cluster.api.always("get_pod_group", Step(refused(404), delay=0.01))
    cluster.run_beside(cluster.engine.feature(Gangs).registry.look_up_sizes(cluster.engine))
    await cluster.run(using_downward_api(gpu_pod("runs")))
    waits = using_downward_api(gpu_pod("waits"))
    lost = [
        using_downward_api(gpu_pod())
        .called(f"lost-{i}", namespace="mallory")
        .annotate(("scheduling.x-k8s.io/pod-group", f"g{i}"))
        for i in range(1_000)
    ]
    cluster.create(waits, *lost)
    assert cluster.filtered(waits)["NodeNames"] is None
    assert "its size is not known" in cluster.reason(lost[0])
    await asyncio.sleep(30)
    assert 200 <= cluster.api.calls.count("get_pod_group") <= 300, "ten a second at most"
    honest = using_downward_api(gpu_pod("honest")).annotate(("scheduling.x-k8s.io/pod-group", "train"))
    cluster.create(honest)
    before = len(cluster.api.calls)
    await asyncio.sleep(0.5)
    assert ("default", "train") in cluster.api.looked_up[-5:], "namespaces take turns"
    cluster.api.delete_pod("default/runs")
    cluster.watch()
    await asyncio.sleep(0.1)
    assert "tessera.io/retry" in cluster.api.pods["default/waits"].annotations
    assert len(cluster.api.calls) - before <= 10
    cluster.stop()


# -- gangs that are meant


@in_fake_time
async def test_a_gang_as_large_as_the_cluster_may_restart_as_often_as_it_likes() -> None:
    """Its members are created over twenty seconds, so that it holds most of the cluster for minutes in all."""
    cluster = Cluster(*machines())
    for number in range(40):
        pods = members(32, name=f"train-{number}", cards=1)
        binds = []
        for pod in pods:
            cluster.create(pod)
            answer = cluster.engine.answer_filter(filter_body(pod, sorted(cluster.api.nodes)))
            [chosen] = json.loads(answer if isinstance(answer, bytes) else await answer)["NodeNames"]
            binds.append(asyncio.ensure_future(cluster.bound(pod, chosen)))
            await asyncio.sleep(0.6)
        assert set(await asyncio.gather(*binds)) == {""}
        cluster.watch()
        assert_accounts_match(cluster.engine)
        cluster.delete(*pods)
    cluster.stop()
