"""kube-scheduler's loop with an extender: one filter call at a time, binds in parallel.

It does the I/O for `attempts`, which decides. Pods that request managed resources go to the extender; all others go to
the emptiest node. Time is the event loop's. Left out: preemption, scores of extenders, affinity between pods.

Why a pod has no node is written as the condition PodScheduled=False without holding up the loop: only the latest, only
if it changed, and never to a pod that is being bound. A failed write is dropped; the next refusal writes again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tessera.kube.client import STRATEGIC_PATCH, KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.event_broadcaster import EventBroadcaster, ObjectRef
from tessera.kube.reflector import Reflector
from tessera.kube.resources import NODES, PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import (
    JSON_ACCESSOR,
    condition_of,
    format_timestamp,
    key_of,
    name_of,
    namespace_of,
    uid_of,
)
from tessera_lab.sandbox.scheduling.attempts import Attempt, Attempts, Reasons, fit_error
from tessera_lab.sandbox.scheduling.extender_client import Extender, ExtenderError, Filtered

SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class UnscheduledReason:
    """Why a pod has no node."""

    reason: str
    """Unschedulable or SchedulerError"""
    message: str


class ConditionWriter:
    """Queues and writes conditions."""

    def __init__(self, client: KubeClient, *, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._waiting: dict[str, tuple[Json, UnscheduledReason]] = {}
        self._some = asyncio.Event()
        self._writing: tuple[str, asyncio.Event] | None = None

    def note(self, pod: Json, why: UnscheduledReason) -> None:
        """Queues the condition; never blocks."""
        said = condition_of(pod, SCHEDULED) or {}
        uid = uid_of(pod)
        if (said.get("status"), said.get("reason"), said.get("message")) == ("False", why.reason, why.message):
            self._waiting.pop(uid, None)
        else:
            self._waiting[uid] = (pod, why)
            self._some.set()

    async def settled(self, uid: str) -> None:
        """Drops the pod's queued condition, and waits for one that is being written."""
        self._waiting.pop(uid, None)
        if self._writing is not None and self._writing[0] == uid:
            await self._writing[1].wait()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                uid = next(iter(self._waiting))
                pod, why = self._waiting.pop(uid)
                done = asyncio.Event()
                self._writing = (uid, done)
                try:
                    await self._write(pod, why)
                except KubeError:
                    # The pod may be gone; if not, it will be refused and written again.
                    pass
                finally:
                    self._writing = None
                    done.set()

    async def _write(self, pod: Json, why: UnscheduledReason) -> None:
        said = condition_of(pod, SCHEDULED) or {}
        since = said.get("lastTransitionTime") if said.get("status") == "False" else None
        condition = {
            "type": SCHEDULED,
            "status": "False",
            "reason": why.reason,
            "message": why.message,
            "lastProbeTime": None,
            "lastTransitionTime": since or format_timestamp(self._now()),
        }
        body = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": [condition]}}
        await self._client.patch(
            PODS.path(namespace_of(pod), name_of(pod), "status"), body, content_type=STRATEGIC_PATCH
        )


HAMI_SCHEDULER = "hami-scheduler"
DEFAULT_SCHEDULER = "default-scheduler"
MANAGED = frozenset(f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority"))
PARALLEL_BINDS = 500
"""kube-scheduler has no limit; this one keeps a bug from using up the machine's sockets"""

UNSCHEDULABLE, SCHEDULER_ERROR = "Unschedulable", "SchedulerError"
"""reasons of the condition: no node fits, or the attempt itself failed"""
NO_NODES = "no nodes available to schedule pods"


@dataclass(frozen=True, slots=True)
class SchedulerProfile:
    """When the extender is asked."""

    managed: frozenset[str] = MANAGED
    """resources that only the extender counts"""
    asks_about_all: bool = False
    """the extender has no managedResources: it is asked about pods that have ResourceClaims only, and all others"""


class SchedulingLoop:
    """Use it as `async with SchedulingLoop(...) as loop`, then `run` it, or `step` it by hand."""

    def __init__(
        self,
        client: KubeClient,
        extender: Extender | None,
        *,
        profile: SchedulerProfile | None = None,
        now: Callable[[], float] = time.time,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` is called when the loop has learned something."""
        profile, rng = profile or SchedulerProfile(), random.Random(0)
        self.attempts = Attempts(
            profiles={HAMI_SCHEDULER: extender is not None, DEFAULT_SCHEDULER: False},
            managed=profile.managed,
            asks_about_all=profile.asks_about_all,
            rng=rng,
        )
        self._client = client
        self._extender = extender
        self._conditions = ConditionWriter(client, now=now)
        self._recorders = {
            name: EventBroadcaster(client, component=name, host="sandbox", rng=rng, now=now)
            for name in (HAMI_SCHEDULER, DEFAULT_SCHEDULER)
        }
        self._binds = asyncio.Semaphore(PARALLEL_BINDS)
        self._tasks = asyncio.TaskGroup()
        self._watches: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._on_change = on_change
        self._binding: set[asyncio.Task[None]] = set()
        self._pods, self._nodes = _Pods(self), _Nodes(self)

    async def __aenter__(self) -> Self:
        """Starts the watches, and waits until they have listed everything."""
        await self._tasks.__aenter__()
        for resource, sink in ((PODS, self._pods), (NODES, self._nodes)):
            reflector = Reflector(
                self._client,
                resource.path(),
                dict[str, Any],
                sink,
                accessor=JSON_ACCESSOR,
                rng=random.Random(0),
            )
            self._watches.append(self._tasks.create_task(reflector.run()))
        self._watches.append(self._tasks.create_task(self._conditions.run()))
        self._watches += [self._tasks.create_task(recorder.run()) for recorder in self._recorders.values()]
        try:
            await self._pods.is_synced.wait()
            await self._nodes.is_synced.wait()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*self._watches, *self._binding):
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Schedules until cancelled."""
        while True:
            self._wake.clear()
            if not await self.step():
                await self._wait_for_work()
            # A long series of refusals awaits nothing; let other tasks run.
            await asyncio.sleep(0)

    async def step(self) -> bool:
        """Tries one pod, up to the start of its binding; returns whether there was one."""
        attempt = self.attempts.next(self._time())
        if attempt is None:
            return False
        try:
            chosen = await self._chosen(attempt)
        except ExtenderError as error:
            self.attempts.failed(attempt, self._time())
            self._report(attempt, UnscheduledReason(SCHEDULER_ERROR, str(error)))
            return True
        if isinstance(chosen, UnscheduledReason):
            self.attempts.refused(attempt, self._time())
            self._report(attempt, chosen)
            return True
        self.attempts.assume(attempt, chosen)
        task = self._tasks.create_task(self._bind(attempt, chosen))
        self._binding.add(task)
        task.add_done_callback(self._binding.discard)
        return True

    async def settle(self) -> None:
        """Waits until no bind is running."""
        while self._binding:
            await asyncio.wait(self._binding)

    @property
    def binding(self) -> int:
        """How many binds are running."""
        return len(self._binding)

    def changed(self) -> None:
        """The loop has learned something."""
        self._wake.set()
        if self._on_change is not None:
            self._on_change()

    async def _chosen(self, attempt: Attempt) -> str | UnscheduledReason:
        """The node for the pod, or why there is none."""
        if not attempt.nodes:
            return UnscheduledReason(UNSCHEDULABLE, NO_NODES)
        answer = Filtered(attempt.candidates, {})
        if attempt.candidates and attempt.extended and self._extender is not None:
            answer = await self._extender.filter(attempt.pod, attempt.candidates)
        chosen = self.attempts.choose(attempt, answer.nodes)
        if chosen is not None:
            return chosen
        misfits: Reasons = {**attempt.misfits, **{name: (text,) for name, text in answer.misfits.items()}}
        return UnscheduledReason(UNSCHEDULABLE, fit_error(attempt.nodes, misfits))

    async def _bind(self, attempt: Attempt, node: str) -> None:
        pod = attempt.pod
        async with self._binds:
            await self._conditions.settled(attempt.uid)
            try:
                if attempt.extended and self._extender is not None:
                    await self._extender.bind(pod, node)
                else:
                    await self._client.bind(namespace_of(pod), name_of(pod), uid=attempt.uid, node=node)
            except (ExtenderError, KubeError) as error:
                if self.attempts.bind_failed(attempt, self._time()):
                    text = error.message if isinstance(error, ApiError) else str(error)
                    self._report(attempt, UnscheduledReason(SCHEDULER_ERROR, text))
                self.changed()
                return
        self._record(pod, "Normal", "Scheduled", f"Successfully assigned {key_of(pod)} to {node}")

    def _report(self, attempt: Attempt, why: UnscheduledReason) -> None:
        pod = self.attempts.waiting(attempt.uid)
        if pod is not None:
            self._conditions.note(pod, why)
            self._record(pod, "Warning", "FailedScheduling", why.message)

    def _record(self, pod: Json, type: str, reason: str, message: str) -> None:
        ref = ObjectRef("Pod", namespace_of(pod), name_of(pod), uid_of(pod))
        self._recorders[pod["spec"]["schedulerName"]].record(ref, type, reason, message)

    async def _wait_for_work(self) -> None:
        at = self.attempts.queue.next_at(self._time())
        try:
            async with asyncio.timeout_at(at):
                await self._wake.wait()
        except TimeoutError:
            pass

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()


class _Pods:
    """Passes the watch of pods to `attempts`."""

    def __init__(self, loop: SchedulingLoop) -> None:
        self.is_synced = asyncio.Event()
        self._loop = loop
        self._uids: dict[str, str] = {}

    def put(self, key: str, obj: Json) -> None:
        self._uids[key] = uid_of(obj)
        self._loop.attempts.pod_seen(obj, asyncio.get_running_loop().time())
        self._loop.changed()

    def drop(self, key: str) -> None:
        self._loop.attempts.pod_gone(self._uids.pop(key), asyncio.get_running_loop().time())
        self._loop.changed()

    def synced(self) -> None:
        self.is_synced.set()


class _Nodes:
    """Passes the watch of nodes to `attempts`."""

    def __init__(self, loop: SchedulingLoop) -> None:
        self.is_synced = asyncio.Event()
        self._loop = loop

    def put(self, key: str, obj: Json) -> None:
        self._loop.attempts.node_seen(obj, asyncio.get_running_loop().time())
        self._loop.changed()

    def drop(self, key: str) -> None:
        self._loop.attempts.node_gone(key)
        self._loop.changed()

    def synced(self) -> None:
        self.is_synced.set()
