"""One run of the scheduler in the model: an engine, its informers and ticks, and a checker at its shoulder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC
from typing import Any

from tessera.scheduler.clock import Clock
from tessera.scheduler.engine import Engine
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.settings import Settings
from tests.model.apiserver import SimulatedApiserver
from tests.model.bindings import Bindings
from tests.model.checker import Checker
from tests.model.tables import Informer

TICK = 15.0
"""seconds, as in the service"""


class Process:
    """Begins with lists that are taken but not delivered."""

    def __init__(self, api: SimulatedApiserver, bindings: Bindings, *, now: Callable[[], float]) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        """in a fixed order, so that a life can be lived again"""
        self._bindings = bindings
        clock = Clock(now, asyncio.get_running_loop().time, UTC)
        engine = self.engine = Engine(Settings(), api, clock=clock, spawn=self._spawn, observer=SchedulerObserver())
        self.checker = Checker(api, bindings, engine, now=now, lag=lambda: self.pods.behind + self.quotas.behind)
        self.pods = Informer(api.pods, engine.pods, after=self.checker.shown.pod)
        self.nodes = Informer(api.nodes, engine.nodes, after=self.checker.saw_node)
        self.quotas = Informer(api.quotas, engine.quotas, after=self.checker.shown.quota)
        bindings.is_running = True
        self._spawn(engine.wake_pods())
        self._spawn(self._tick())

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self.pods, self.nodes, self.quotas)

    def stop(self) -> None:
        """All memory is gone; calls that were sent are the apiserver's."""
        self._bindings.is_running = False
        for task in list(self._tasks):
            task.cancel()
        for informer in self.informers:
            informer.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.result()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.engine.tick()
            self.checker.shown.tick()
