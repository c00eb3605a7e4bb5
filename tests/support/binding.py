"""A pod with a reservation on one node, which is about to be bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent
from tests.support.stepwise_scheduler import (
    World,
    serving_downward_api,
    using_downward_api,
)

FREE = {"n1-0": (0, 0, 0)}
HELD = {"n1-0": (1, 1000, 10)}
PLAIN = gpu_pod("p", mem=1000, cores=10)
POD = using_downward_api(PLAIN)
KEY = "default/p"


def agent(name: str = "n1", cards: int = 1) -> NodeBuilder:
    return serving_downward_api(node(name).gpus(cards))


def ready(*nodes: NodeBuilder, asking: PodBuilder = POD, on: str = "n1") -> World:
    """A world in which the pod has its reservation."""
    world = World(*(nodes or (agent(),)))
    world.create(asking)
    assert world.chosen(asking, [on]) == on
    return world


def run(case: Callable[[], Awaitable[None]]) -> None:
    in_fake_time(case)()


def seconds() -> float:
    return asyncio.get_running_loop().time()


def node_of(world: World, key: str = KEY) -> str:
    return world.api.pods[key].spec.node_name


async def unknown(world: World, *, done: bool) -> None:
    world.api.always("bind", Step(lost_answer(), done=done))
    world.api.always("get_pod", never_sent())
    assert await world.bound(POD) == "no answer within 30 s"
    world.api.always("bind", None)
    world.api.always("get_pod", None)


def change(world: World, **annotations: str) -> None:
    """Another client changes the pod."""
    world.api.mark_pod(KEY, annotations)
