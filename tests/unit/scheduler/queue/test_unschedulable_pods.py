from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from tessera.core.fit.quota import QuotaFacts
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Selector
from tessera.scheduler import filter as filtering
from tessera.scheduler.filter import UNFINISHED
from tessera.scheduler.queue import unschedulable_pods
from tessera.scheduler.queue.unschedulable_pods import LISTS_AT_ONCE, WAKE_AT_ONCE, UnschedulablePods
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.stepwise_scheduler import World, uid


def full(*names: str, memory: int = 8000) -> World:
    """Nodes of one card, each taken by a pod `on-<node>`."""
    world = World(*(node(name).gpus(1, memory=memory) for name in names))
    world.create(*(taken_by(name, memory) for name in names))
    return world


def taken_by(name: str, memory: int = 8000) -> PodBuilder:
    return gpu_pod(f"on-{name}").on(name, f"{name}-0,NVIDIA,{memory},0:;")


def free(world: World, name: str) -> None:
    world.api.delete_pod(f"default/on-{name}")
    world.watch()


def woken(world: World) -> list[str]:
    return [request.name for request in all_woken(world.unschedulable, world.selector)]


def all_woken(pods: UnschedulablePods, selector: Selector) -> list[PodRequest]:
    async def wake() -> list[PodRequest]:
        return [request async for request in pods.wake(selector)]

    return asyncio.run(wake())


def pods(count: int, *, namespace: str = "default", mem: int = 100) -> list[PodBuilder]:
    return [
        gpu_pod(f"{namespace}-{mem}-{i:02}", mem=mem).called(f"{namespace}-{mem}-{i:02}", namespace=namespace)
        for i in range(count)
    ]


def test_no_pod_is_woken_while_nothing_fits() -> None:
    world = full("n1")
    world.filtered(gpu_pod("p", mem=100))
    assert woken(world) == []


def test_pods_that_fit_now_are_woken_in_the_order_of_their_first_refusal() -> None:
    world = full("n1")
    for name in ("c", "a", "b", "c"):
        world.filtered(gpu_pod(name, mem=100))
    free(world, "n1")
    assert woken(world) == ["c", "a", "b"]


def test_pods_that_still_do_not_fit_sleep_on() -> None:
    world = full("n1", memory=8000)
    world.filtered(gpu_pod("small", mem=100))
    world.filtered(gpu_pod("large", mem=9000))
    free(world, "n1")
    assert woken(world) == ["small"]


def test_a_change_wakes_only_so_many_of_one_shape() -> None:
    world = full("n1")
    for asking in [*pods(WAKE_AT_ONCE + 3, mem=100), *pods(2, mem=200)]:
        world.filtered(asking)
    free(world, "n1")
    first = woken(world)
    assert first == [f"default-100-{i:02}" for i in range(WAKE_AT_ONCE)] + ["default-200-00", "default-200-01"]
    assert woken(world) == [f"default-100-{i:02}" for i in range(WAKE_AT_ONCE, WAKE_AT_ONCE + 3)]


def test_a_woken_pod_is_woken_again_only_after_another_refusal() -> None:
    world = full("n1")
    asking = gpu_pod("p", mem=8000)
    world.filtered(asking)
    free(world, "n1")
    assert woken(world) == ["p"]
    assert woken(world) == []
    assert world.chosen(gpu_pod("thief", mem=8000)) == "n1"
    world.filtered(asking)
    assert woken(world) == []
    world.cycles.observe_gone("uid-thief")
    assert woken(world) == ["p"]


def test_a_pod_that_could_not_be_told_is_woken_by_the_next_change() -> None:
    world = full("n1")
    asking = gpu_pod("p")
    world.filtered(asking)
    free(world, "n1")
    assert woken(world) == ["p"]
    world.unschedulable.on_wake_failed(uid(asking))
    world.unschedulable.on_wake_failed("missing")
    assert woken(world) == ["p"]


def test_namespaces_do_not_share_their_fate() -> None:
    world = full("n1")
    _quota(world, "poor", 50)
    for asking in (*pods(1, namespace="poor"), *pods(1, namespace="rich")):
        world.filtered(asking)
    free(world, "n1")
    assert woken(world) == ["rich-100-00"]


def _quota(world: World, namespace: str, memory: int) -> None:
    world.ledger.observe_quota(QuotaFacts(namespace, "q", {"nvidia.com/gpumem": memory}))


def test_pods_of_one_shape_with_other_candidates_do_not_share_their_fate() -> None:
    world = full("n1", "n2")
    world.filtered(gpu_pod("wants-n1", mem=100), ["n1"])
    world.filtered(gpu_pod("wants-n2", mem=100), ["n2"])
    world.filtered(gpu_pod("wants-n1-too", mem=100), ["n1"])
    free(world, "n2")
    assert woken(world) == ["wants-n2"]
    free(world, "n1")
    assert woken(world) == ["wants-n1", "wants-n1-too"]


def test_a_change_costs_only_so_many_decisions_a_shape() -> None:
    world = full("n1")
    for i in range(LISTS_AT_ONCE):
        world.filtered(gpu_pod(f"p{i}", mem=100), ["n1", f"other-{i}"])
    world.filtered(gpu_pod("one-too-many", mem=100), ["n1", "yet-another"])
    assert len(world.unschedulable) == LISTS_AT_ONCE + 1
    asked: list[str] = []

    class Counting(Selector):
        def select_in_steps(self, *asks: Any) -> Any:
            asked.append("")
            return super().select_in_steps(*asks)

    assert all_woken(world.unschedulable, Counting(world.ledger)) == []
    assert len(asked) == LISTS_AT_ONCE


def test_a_pod_that_is_gone_or_placed_is_not_woken() -> None:
    world = full("n1", "n2")
    for name in ("deleted", "placed", "ended", "left"):
        world.create(gpu_pod(name, mem=100))
        world.filtered(gpu_pod(name, mem=100))
    world.api.delete_pod("default/deleted")
    world.api.add_pod(gpu_pod("ended", mem=100).ended())
    free(world, "n1")
    world.chosen(gpu_pod("placed", mem=100))
    assert woken(world) == ["left"]
    assert len(world.unschedulable) == 1
    world.unschedulable.remove("missing")
    world.unschedulable.remove("uid-left")
    assert "uid-left" not in world.unschedulable
    assert world.unschedulable._shapes == {}


def test_a_pod_whose_request_changed_waits_as_what_it_is_now() -> None:
    world = full("n1")
    world.filtered(gpu_pod("p", mem=100))
    world.filtered(gpu_pod("q", mem=100))
    world.filtered(gpu_pod("p", mem=9000))
    free(world, "n1")
    assert woken(world) == ["q"]
    assert len(world.unschedulable) == 2
    assert [event.request.name for event in world.reports.refused if event.is_first] == ["p", "q", "p"], (
        "its first refusal as that"
    )


def test_a_node_that_registers_wakes_pods_that_had_it_among_their_candidates() -> None:
    world = full("n1")
    world.filtered(gpu_pod("p", mem=100), ["n1", "late"])
    world.api.add_node(node("late").gpus(1))
    world.watch()
    assert woken(world) == ["p"]


def test_there_are_no_unschedulable_pods_at_first() -> None:
    pods = UnschedulablePods()
    assert (len(pods), "x" in pods, all_woken(pods, World().selector)) == (0, False, [])


# -- decisions that take too long


def together(name: str, mem: int = 5000) -> PodBuilder:
    """Fits a card of 8000 MiB container by container, but not as a whole."""
    return gpu_pod(name, mem=mem).container(gpu=1, mem=mem)


@mock.patch.object(filtering, "MAX_WORK", 4)
@mock.patch.multiple(unschedulable_pods, MAX_WORK=4, PAUSE_S=0)
def test_a_decision_that_takes_too_long_is_an_error_and_is_made_between_other_requests() -> None:
    world = World(*(node(f"n{i}").gpus(1, memory=8000) for i in range(6)), node("n9").gpus(2, memory=8000))
    world.create(gpu_pod("on-n9").on("n9", "n9-0,NVIDIA,8000,0:;"))
    asking = together("p")
    assert UNFINISHED in world.filtered(asking)["Error"]
    assert world.unschedulable.room.is_set()
    assert woken(world) == []
    world.api.delete_pod("default/on-n9")
    world.watch()
    assert world.chosen(asking) == "n9"


@mock.patch.object(filtering, "MAX_WORK", 4)
def test_a_refusal_after_several_calls_is_reported_as_the_first() -> None:
    world = World(*(node(f"n{i}").gpus(1, memory=8000) for i in range(6)))
    asking = together("p")
    answers = [world.filtered(asking) for _ in range(3)]
    assert [bool(answer["FailedNodes"]) for answer in answers] == [False, False, True]
    assert [event.is_first for event in world.reports.refused] == [True]


def test_a_pod_of_which_the_search_found_a_node_is_woken() -> None:
    world = World(*(node(f"n{i}").gpus(1, memory=8000) for i in range(6)), node("n9").gpus(2, memory=8000))
    with mock.patch.object(filtering, "MAX_WORK", 4):
        assert UNFINISHED in world.filtered(together("p"))["Error"]
    assert woken(world) == ["p"]
    assert world.chosen(together("p")) == "n9"
