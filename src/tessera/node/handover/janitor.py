"""Puts right what a crash, of this agent or of anybody else, left behind on this node.

Handovers that are over but not written so, and locks whose pod is gone, ended or finished. It only ever does what the
agent should have done itself, a bounded amount each time; what it cannot find out for sure it leaves alone.
"""

from __future__ import annotations

import asyncio

import structlog

from tessera.kube.errors import ApiError, KubeError
from tessera.node.handover.bound_pod import TERMINAL
from tessera.node.handover.ending import owed
from tessera.node.handover.holdings import Holdings
from tessera.node.handover.kube_api import Cluster
from tessera.node.handover.locks import NodeLockRelease
from tessera.node.handover.metrics import HandoverMetrics, Repair
from tessera.node.handover.pods import NodePods, Owner
from tessera.node.handover.progress import Progress
from tessera.node.handover.records import Records
from tessera.node.handover.status_writer import HandoverWriter
from tessera.wire import keys

log = structlog.get_logger(__name__)

EVERY_S = 5.0
NOT_FOUND = 404
OVER = frozenset({keys.PHASE_SUCCESS, keys.PHASE_FAILED})


class Janitor:
    """Of one node."""

    def __init__(
        self,
        cluster: Cluster,
        pods: NodePods,
        progress: Progress,
        holdings: Holdings,
        writer: HandoverWriter,
        locks: NodeLockRelease,
        records: Records,
        *,
        metrics: HandoverMetrics,
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._progress = progress
        self._holdings = holdings
        self._writer = writer
        self._locks = locks
        self._records = records
        self._metrics = metrics

    async def run(self) -> None:
        """At once when all pods are known, then every few seconds, until cancelled."""
        await self._pods.ready.wait()
        while True:
            await self.sweep()
            await asyncio.sleep(EVERY_S)

    async def sweep(self) -> None:
        if any(pod.in_handover for pod in self._pods.all()):
            held = await self._holdings.ask()
            if held is not None:
                self._progress.learn(held, self._pods.all())
        self._end_handovers()
        await self._release_lock()
        self._records.prune(lambda uid: self._pods.get(uid) is not None)
        await self._records.save()

    def _end_handovers(self) -> None:
        for pod in self._pods.all():
            uid = pod.key.uid
            if pod.started or pod.terminal:
                self._progress.finish(pod)
            due = owed(pod, done=self._progress.done(uid), failed=self._progress.has_failed(uid))
            if due and self._writer.owe(uid):
                log.info("handover ended late", pod=str(pod.key), phase=due.get(keys.BIND_PHASE, ""))
                self._metrics.repaired(Repair.HANDOVER)

    async def _release_lock(self) -> None:
        owner = self._pods.lock.owner
        if owner is None or not await self._is_finished(owner):
            return
        if await self._locks.release(owner):
            log.info("node lock of a finished pod released", pod="/".join(owner))
            self._metrics.repaired(Repair.LOCK)

    async def _is_finished(self, owner: Owner) -> bool:
        """Gone, ended, elsewhere, or handed over; asked of the API itself: a lock is taken before its pod is bound."""
        try:
            pod = await self._cluster.get_pod(*owner)
        except KubeError as error:
            if isinstance(error, ApiError) and error.status == NOT_FOUND:
                return True
            log.warning("owner of the node lock unknown", pod="/".join(owner), error=str(error))
            return False
        if pod.spec.node_name != self._pods.node:
            return pod.spec.node_name != ""
        return pod.status.phase in TERMINAL or pod.annotations.get(keys.BIND_PHASE) in OVER
