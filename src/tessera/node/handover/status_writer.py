"""Writes behind the answers: tells the API how far handovers are, after kubelet has its answer.

What to write is worked out from memory when it is written, so any number of answers become one patch. Repeated with
back-off until the API says so or the pod is gone. One task a pod, a few of them at a time; `run` holds them all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import structlog

from tessera.kube.backoff import Backoff
from tessera.kube.errors import ApiError, KubeError
from tessera.node.handover.bound_pod import BoundPod, read_pod
from tessera.node.handover.ending import owed
from tessera.node.handover.kube_api import Cluster
from tessera.node.handover.locks import NodeLockRelease
from tessera.node.handover.pods import NodePods
from tessera.node.handover.progress import Progress
from tessera.wire import keys

log = structlog.get_logger(__name__)

RETRIES = Backoff(initial=0.2, cap=10.0)
AT_ONCE = 4
"""patches in flight"""
ROUNDS = 3
"""patches of one pod in a row: each answer may show that another vendor finished meanwhile"""
POD_IS_ANOTHER = frozenset({404, 409, 422})
"""answers for a pod that is gone, or whose name another one has: its uid cannot be changed"""


class _Written(NamedTuple):
    """A patch that was taken."""

    seen: BoundPod
    """the very object that it was worked out from"""
    changes: dict[str, str]
    after: BoundPod


class HandoverWriter:
    """`owe` from the event loop; the writing happens while `run` runs."""

    def __init__(
        self,
        cluster: Cluster,
        pods: NodePods,
        progress: Progress,
        locks: NodeLockRelease,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`before` is awaited ahead of every patch: what must be on disk before the API knows."""
        self._cluster = cluster
        self._pods = pods
        self._progress = progress
        self._locks = locks
        self._before = before
        self._rng = rng or random.Random()
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._busy: set[str] = set()
        """uids that are queued or being written"""
        self._dirty: set[str] = set()
        """uids that changed while they were being written"""
        self._written: dict[str, _Written] = {}
        """the last patch of every pod that the watch has not shown since"""
        self._idle = asyncio.Event()
        self._idle.set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def owe(self, uid: str) -> bool:
        """Something about this pod may have to be written; whether that is news."""
        if uid in self._busy:
            self._dirty.add(uid)
            return False
        self._busy.add(uid)
        self._idle.clear()
        self._queue.put_nowait(uid)
        return True

    async def flush(self, deadline: float) -> int:
        """Wait until nothing is owed, no longer than so many seconds; how many pods are left. `run` has to run."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        return len(self._busy)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._until_written(await self._queue.get()))

    async def write(self, pod: BoundPod) -> BoundPod:
        """Bring the API up to date about one pod, once; the pod as it is then. Raises KubeError."""
        for _ in range(ROUNDS):
            changes = self._owed(pod)
            if not changes:
                break
            known = self._written.get(pod.key.uid)
            if known is not None and known.seen is pod and known.changes == changes:
                # The watch does not show it yet.
                pod = known.after
                continue
            if self._before is not None:
                await self._before()
            answered = read_pod(await self._cluster.annotate_pod(pod.key, changes), self._pods.node)
            if answered is None:
                break
            self._remember(_Written(pod, changes, answered))
            pod = answered
        return pod

    def _remember(self, written: _Written) -> None:
        known = {uid: each for uid, each in self._written.items() if self._pods.get(uid) is each.seen}
        self._written = {**known, written.seen.key.uid: written}

    def _owed(self, pod: BoundPod) -> dict[str, str]:
        uid = pod.key.uid
        return owed(pod, done=self._progress.done(uid), failed=self._progress.has_failed(uid))

    async def _until_written(self, uid: str) -> None:
        failures = 0
        try:
            while True:
                self._dirty.discard(uid)
                pod = self._pods.get(uid)
                if pod is None:
                    return
                try:
                    async with self._slots:
                        after = await self.write(pod)
                except KubeError as error:
                    if isinstance(error, ApiError) and error.status in POD_IS_ANOTHER:
                        # The watch will say so.
                        return
                    failures += 1
                    log.warning("handover not written", pod=str(pod.key), error=str(error), failures=failures)
                    await asyncio.sleep(RETRIES.delay(failures, self._rng))
                    continue
                if after.phase != keys.PHASE_ALLOCATING and self._pods.lock.concerns(pod.key[:2]):
                    await self._locks.release(pod.key[:2])
                if uid not in self._dirty:
                    return
        finally:
            self._dirty.discard(uid)
            self._busy.discard(uid)
            if not self._busy:
                self._idle.set()
