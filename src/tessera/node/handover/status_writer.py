"""Writes to the API how far handovers are, after kubelet has its answer, and releases the node lock where one is held.

    allocating --its containers have their devices, no vendor has anything left--> success
        |  +-- some have: only what is left is written
        +--Allocate refused, or kubelet rejected the pod--> failed (what was left stays readable)

Only a pod in phase `allocating` is ever written, and not while one of its slices is being made ready: that may fail.
The change is worked out when it is written, so any number of answers become one patch. Writing is repeated with
back-off until the API takes it or the pod is gone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

import structlog

from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.errors import KubeError, is_gone, is_invalid, is_not_found
from tessera.node.handover.allocation_state import AllocationState
from tessera.node.handover.assignments import FAILED, TERMINAL, TO_ALLOCATE, BoundPod, read_pod
from tessera.node.handover.pod_cache import KubeCluster, Owner, PodCache
from tessera.node.watched_value import is_set_within
from tessera.wire import keys
from tessera.wire.pod_devices import encode_pod_devices

log = structlog.get_logger(__name__)

RETRIES = Backoff(initial=0.2, cap=10.0)
AT_ONCE = 4
"""patches in flight"""
ROUNDS = 3
"""patches of one pod in a row: each answer may show that another vendor finished meanwhile"""
OVER = frozenset({keys.PHASE_SUCCESS, keys.PHASE_FAILED})
LOCK_TRIES = 5
LOCK_PAUSES = Backoff(initial=0.1, cap=1.6, floor=0.05)


class _Written(NamedTuple):
    """A patch that was taken."""

    seen: BoundPod
    """the very object that it was worked out from"""
    changes: dict[str, str]
    after: BoundPod


class StatusWriter:
    """`enqueue` from the event loop; the writing happens while `run` runs."""

    def __init__(self, cluster: KubeCluster, pods: PodCache, state: AllocationState) -> None:
        self._cluster = cluster
        self._pods = pods
        self._state = state
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

    def enqueue(self, uid: str) -> bool:
        """Something about this pod may have to be written; False where it was enqueued before."""
        if uid in self._busy:
            self._dirty.add(uid)
            return False
        self._busy.add(uid)
        self._idle.clear()
        self._queue.put_nowait(uid)
        return True

    async def flush(self, deadline: float) -> int:
        """Wait until everything is written, no longer than so many seconds; the number of pods that are left."""
        await is_set_within(self._idle, deadline)
        return len(self._busy)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._until_written(await self._queue.get()))

    def changes(self, pod: BoundPod) -> dict[str, str]:
        """The annotations to write; none where the pod already says it."""
        if not (pod.ours and pod.assigned) or pod.phase != keys.PHASE_ALLOCATING:
            return {}
        if pod.key.uid in self._state.failed or pod.status == FAILED:
            return {keys.BIND_PHASE: keys.PHASE_FAILED}
        if not pod.started and (pod.problem or self._state.is_in_progress(pod.key.uid)):
            return {}
        done = self._state.done(pod)
        left = [() if pod.started or at in done else entries for at, entries in enumerate(pod.entries)]
        changes: dict[str, str] = {}
        if tuple(left) != pod.entries:
            changes[TO_ALLOCATE] = encode_pod_devices(left)
        # What another vendor's plugin has not handed out yet is its to finish.
        if not any(left) and not pod.others_left and (pod.started or pod.assignments):
            changes[keys.BIND_PHASE] = keys.PHASE_SUCCESS
        return changes

    async def write(self, pod: BoundPod) -> BoundPod:
        """Bring the API up to date about one pod, once; the pod as it is then. Raises KubeError."""
        for _ in range(ROUNDS):
            changes = self.changes(pod)
            if not changes:
                break
            known = self._written.get(pod.key.uid)
            if known is not None and known.seen is pod and known.changes == changes:
                # The watch does not show it yet.
                pod = known.after
                continue
            answered = read_pod(await self._cluster.annotate_pod(pod.key, changes), self._pods.node)
            if answered is None:
                break
            self._remember(_Written(pod, changes, answered))
            pod = answered
        return pod

    async def release_lock(self, owner: Owner) -> bool:
        """Release the node lock if it names this pod, or no pod; a lock that another pod took meanwhile stays.

        Whether the lock is not this pod's any more. Never raises: the next sweep tries again, or the lock expires."""
        first: str | None = None

        async def remove() -> None:
            nonlocal first
            node = await self._cluster.get_node(self._pods.node)
            text = node.annotations.get(keys.NODE_LOCK)
            first = first or text
            if text is not None and _is_lock_of(text, owner, first):
                version = node.metadata.resource_version
                await self._cluster.annotate_node(self._pods.node, {keys.NODE_LOCK: None}, resource_version=version)

        try:
            await retry_on_error(remove, backoff=LOCK_PAUSES, is_retriable=lambda _, failures: failures < LOCK_TRIES)
        except KubeError as error:
            log.warning("node lock not released", node=self._pods.node, pod="/".join(owner), error=str(error))
            return False
        return True

    async def release_stale_lock(self) -> bool:
        """Release the node lock of a pod that needs it no more; whether there was one."""
        owner = self._pods.node_view.lock_owner
        if owner is None or not await self._is_finished(owner) or not await self.release_lock(owner):
            return False
        log.info("node lock of a finished pod released", pod="/".join(owner))
        return True

    async def _is_finished(self, owner: Owner) -> bool:
        """Gone, ended, elsewhere or handed over. The API itself is asked: a lock is taken before its pod is bound."""
        try:
            pod = await self._cluster.get_pod(*owner)
        except KubeError as error:
            if is_not_found(error):
                return True
            log.warning("owner of the node lock unknown", pod="/".join(owner), error=str(error))
            return False
        if pod.spec.node_name != self._pods.node:
            return pod.spec.node_name != ""
        return pod.status.phase in TERMINAL or pod.annotations.get(keys.BIND_PHASE) in OVER

    async def _write_newest(self, uid: str) -> None:
        """Until what was written is the newest. Raises KubeError."""
        self._dirty.add(uid)
        while uid in self._dirty and (pod := self._pods.get(uid)) is not None:
            self._dirty.discard(uid)
            async with self._slots:
                after = await self.write(pod)
            if after.phase != keys.PHASE_ALLOCATING and self._pods.node_view.lock_concerns(pod.key[:2]):
                await self.release_lock(pod.key[:2])

    def _report(self, uid: str, error: KubeError, failures: int) -> bool:
        """Whether the pod's handover is to be written again: its uid cannot be changed, so it is another's by now."""
        if is_gone(error) or is_invalid(error):
            return False
        pod = self._pods.get(uid)
        log.warning("handover not written", pod=str(pod.key) if pod else uid, error=str(error), failures=failures)
        return True

    def _remember(self, written: _Written) -> None:
        known = {uid: each for uid, each in self._written.items() if self._pods.get(uid) is each.seen}
        self._written = {**known, written.seen.key.uid: written}

    async def _until_written(self, uid: str) -> None:
        try:
            await retry_on_error(
                partial(self._write_newest, uid), backoff=RETRIES, is_retriable=partial(self._report, uid)
            )
        except KubeError:
            pass  # Another pod has its name, or none: the watch will say so.
        finally:
            self._dirty.discard(uid)
            self._busy.discard(uid)
            if not self._busy:
                self._idle.set()


def _is_lock_of(text: str, owner: Owner, first: str | None) -> bool:
    """A lock without an owner may be any pod's, as long as it is still the one that was there at first."""
    return text.endswith("," + ",".join(owner)) if "," in text else text == first
