"""Makes kube-scheduler ask again for pods that fit now: it leaves a refused pod asleep for up to five minutes.

Each feature names its pods when room was freed, then `UnschedulablePods` does. A pod is woken by a patch of one
annotation. While no decision can be made, the room stays; a patch that fails is tried again after a pause that grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog

from tessera.core.model.requests import PodRequest
from tessera.kube.backoff import Backoff
from tessera.kube.errors import KubeError, is_not_found
from tessera.scheduler.framework import Feature, Pipeline, methods
from tessera.scheduler.pod_cycle import UNSCHEDULABLE
from tessera.scheduler.takeover import AT_ONCE
from tessera.wire import keys

log = structlog.get_logger(__name__)

WAKE_AGAIN_S = 1.0
"""until pods are woken that could not be woken at once"""
WAKE_PAUSES = Backoff(initial=WAKE_AGAIN_S, cap=15.0)
"""between tries, if nothing else happens: a backlog must not add to what an apiserver cannot serve"""


class Waker:
    """Makes kube-scheduler ask again for refused pods that fit now."""

    def __init__(self, pipeline: Pipeline, features: Sequence[Feature]) -> None:
        self._pipeline = pipeline
        self._cycles = pipeline.cycles
        self._unschedulable = pipeline.cycles.unschedulable
        self._wakes = methods(features, Feature.wake)
        self._on_wake_failed = (*methods(features, Feature.on_wake_failed), self._unschedulable.on_wake_failed)
        self._count = 0
        self._again: asyncio.TimerHandle | None = None
        self._failed_rounds, self._has_failed = 0, False
        """rounds of wake-ups in a row that had failures, and whether this one has"""

    async def run(self) -> None:
        """For ever: when capacity was freed, wake the pods that fit now."""
        room = self._unschedulable.room
        while True:
            await room.wait()
            room.clear()
            if self._pipeline.missing():
                # The room stays; whether it helps is seen once decisions can be made again.
                self._wake_later()
                continue
            self._failed_rounds, self._has_failed = (self._failed_rounds + 1) * self._has_failed, False
            for wake in self._wakes:
                async for pods in wake():
                    await self.wake(pods, self._on_failed)
            async for pod in self._unschedulable.wake(self._pipeline.selector):
                await self._wake(pod, self._on_failed)

    async def wake(self, pods: Sequence[PodRequest], on_failed: Callable[[str], None]) -> None:
        """Several at a time."""
        waking = iter(pods)
        await asyncio.gather(*[self._wake_each(waking, on_failed) for _ in range(min(AT_ONCE, len(pods)))])

    async def _wake_each(self, pods: Iterator[PodRequest], on_failed: Callable[[str], None]) -> None:
        for pod in pods:
            await self._wake(pod, on_failed)

    async def _wake(self, pod: PodRequest, on_failed: Callable[[str], None]) -> None:
        if self._pipeline.missing():
            on_failed(pod.uid)
            self._unschedulable.on_room()
            return
        self._count += 1
        # kube-scheduler may ask before the patch is answered.
        self._pipeline.observer.on_woken(pod)
        try:
            # A value that no other decider wrote: a patch that changes nothing would wake no pod.
            value = f"{self._pipeline.tenure.fence}.{self._count}"
            await self._pipeline.api.annotate_pod(pod.namespace, pod.name, {keys.RETRY: value})
        except KubeError as error:
            if is_not_found(error):
                self._forget_refused(pod.uid)
                return
            on_failed(pod.uid)
            # Perhaps nothing else ever happens: the room that is there must be enough to try again.
            self._has_failed = True
            self._wake_later(WAKE_PAUSES.ceiling(self._failed_rounds + 1))
            log.warning("pod not woken", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    def _on_failed(self, uid: str) -> None:
        for on_wake_failed in self._on_wake_failed:
            on_wake_failed(uid)

    def _wake_later(self, seconds: float = WAKE_AGAIN_S) -> None:
        """One timer for all reasons: each of its own would start the next one, and they would only become more."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(seconds, self._unschedulable.room.set)

    def _forget_refused(self, uid: str) -> None:
        cycle = self._cycles.get(uid)
        if cycle is not None and cycle.state in UNSCHEDULABLE:
            self._cycles.forget(cycle)
