"""A scheduler that moves pods, controllers that create evicted pods again, and kube-scheduler. In fake time.

async with living(SMALL, LARGE) as cluster:
    await cluster.rounds.make_round()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tessera.scheduler.features.moves.rounds import Rounds
from tessera.scheduler.settings import DefragSettings
from tessera.wire.objects import Pod
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.stepwise_scheduler import World, moves_of, serving_downward_api

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


class MovingCluster(World):
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
async def living(*pods: PodBuilder, names: tuple[str, ...] = ("n1", "n2")) -> AsyncIterator[MovingCluster]:
    found = MovingCluster(*pods, names=names)
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
