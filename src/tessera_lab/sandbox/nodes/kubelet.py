"""Simulates kubelet on one node: admits pods one at a time, calls Allocate per container, runs and stops pods.

    bound --> waiting --admitted--> starting --> running --run-seconds over--> succeeded, or failed
                 |  \\--Allocate failed--> failed
                 +--- deleted at any point: after a short while the final DELETE, and the devices are free

No container is executed; `containers` tells what each would see. Reports are strategic merge patches of the status,
repeated until the apiserver accepts them. A restart forgets nothing, like the real kubelet with its checkpoint.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.client import STRATEGIC_PATCH, KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.resources import PODS
from tessera.wire.quantity import Whole, read
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.subresources import LogLine
from tessera_lab.sandbox.nodes.allocation import AllocateError, DeviceIds, SimulatedPlugin, Unavailable
from tessera_lab.sandbox.nodes.containers import ClaimDriver, NodeClaims, container_environment, container_log
from tessera_lab.sandbox.objects import (
    annotations_of,
    containers_of,
    format_timestamp,
    has_ended,
    is_being_deleted,
    is_sidecar,
    name_of,
    namespace_of,
    phase_of,
    uid_of,
)

ADMISSION_ERROR = "UnexpectedAdmissionError"

INITIALIZED, READY, CONTAINERS_READY, SCHEDULED = "Initialized", "Ready", "ContainersReady", "PodScheduled"


def initializing(pod: Json, done: int, *, at: str, address: str) -> Json:
    """Init containers run one after the other; `done` of them have ended, or keep running as sidecars."""
    inits: Sequence[Json] = pod["spec"].get("initContainers") or ()
    states = [_after_start(each, at) if index < done else _running(at) for index, each in enumerate(inits[: done + 1])]
    states += [_waiting("PodInitializing")] * (len(inits) - len(states))
    apps = [_waiting("PodInitializing") for _ in pod["spec"]["containers"]]
    return _body(
        pod,
        "Pending",
        _conditions(at, initialized=False, ready=False),
        inits=_statuses(inits, states),
        apps=_statuses(pod["spec"]["containers"], apps),
        startTime=at,
        hostIP=address,
    )


def running(pod: Json, *, at: str, address: str) -> Json:
    inits: Sequence[Json] = pod["spec"].get("initContainers") or ()
    apps = pod["spec"]["containers"]
    return _body(
        pod,
        "Running",
        _conditions(at, initialized=True, ready=True),
        inits=_statuses(inits, [_after_start(each, at) for each in inits]),
        apps=_statuses(apps, [_running(at) for _ in apps]),
        startTime=at,
        hostIP=address,
    )


def ended(pod: Json, *, exit_code: int, since: str, at: str) -> Json:
    """The app containers have all ended with this code."""
    inits: Sequence[Json] = pod["spec"].get("initContainers") or ()
    apps = pod["spec"]["containers"]
    conditions = _conditions(at, initialized=True, ready=False, reason="PodFailed" if exit_code else "PodCompleted")
    return _body(
        pod,
        "Failed" if exit_code else "Succeeded",
        conditions,
        inits=_statuses(inits, [_terminated(0, since, at)] * len(inits)),
        apps=_statuses(apps, [_terminated(exit_code, since, at)] * len(apps)),
    )


def rejected(pod: Json, message: str, *, at: str) -> Json:
    """kubelet's message for a pod whose Allocate failed. kubelet does not try again."""
    said = f"Pod was rejected: Allocate failed due to {message}, which is unexpected"
    status = {"phase": "Failed", "reason": ADMISSION_ERROR, "message": said, "startTime": at}
    return {"metadata": {"uid": uid_of(pod)}, "status": status}


def _body(pod: Json, phase: str, conditions: list[Json], *, inits: list[Json], apps: list[Json], **more: str) -> Json:
    status: Json = {"phase": phase, "conditions": conditions, "containerStatuses": apps, **more}
    if inits:
        status["initContainerStatuses"] = inits
    return {"metadata": {"uid": uid_of(pod)}, "status": status}


def _conditions(at: str, *, initialized: bool, ready: bool, reason: str = "") -> list[Json]:
    states = {INITIALIZED: initialized, READY: ready, CONTAINERS_READY: ready, SCHEDULED: True}
    return [
        {"type": kind, "status": str(state), "lastProbeTime": None, "lastTransitionTime": at}
        | ({"reason": reason} if reason and not state else {})
        for kind, state in states.items()
    ]


def _statuses(containers: Iterable[Json], states: Sequence[Json]) -> list[Json]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": "running" in state,
            "started": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        for container, state in zip(containers, states, strict=True)
    ]


def _running(at: str) -> Json:
    return {"running": {"startedAt": at}}


def _waiting(reason: str) -> Json:
    return {"waiting": {"reason": reason}}


def _after_start(container: Json, at: str) -> Json:
    """An init container that is done with: ended, or beside the others from now on."""
    if is_sidecar(container):
        return _running(at)
    return _terminated(0, at, at)


def _terminated(exit_code: int, since: str, at: str) -> Json:
    reason = "Error" if exit_code else "Completed"
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": since, "finishedAt": at}}


T = TypeVar("T")

RUN_FOR = "sandbox.tessera.io/run-seconds"
"""annotation: the pod ends after this many seconds; without it, the pod runs until it is deleted"""
EXIT_CODE = "sandbox.tessera.io/exit-code"
"""annotation: the exit code of the containers when they end; 0 without it"""
ADDRESS = "127.0.0.1"

_RETRIES = Backoff(initial=0.1, cap=5.0)


@dataclass(slots=True)
class KubeletTimings:
    """How long things take on a node, in seconds. May be changed at any time."""

    stop_s: float = 0.05
    """how long a pod takes to stop, at most its grace period"""


@dataclass(slots=True)
class KubeletFaults:
    """Injected faults of a node. Tests set and clear them."""

    allocate_errors: int = 0
    """how many of the next Allocate calls fail"""
    wrong_pod: bool = False
    """the plugin answers with another pod's slice, if there is one"""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a container would see."""

    env: dict[str, str]
    device_ids: tuple[str, ...]
    """as kubelet counts them"""


@dataclass(slots=True, eq=False)
class _PodLife:
    pod: Json
    stopping: bool = False
    task: asyncio.Task[None] | None = None


class Kubelet:
    """The pods of one node. A watch calls `seen` and `gone`; everything else happens in `run`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        ids: DeviceIds,
        resource: str,
        pace: KubeletTimings,
        faults: KubeletFaults,
        shuffled: bool,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self.containers: dict[tuple[str, str], ContainerView] = {}
        self._client = client
        self._ids = ids
        self._resource = resource
        self._pace = pace
        self._faults = faults
        self._shuffled = shuffled
        self._rng = rng
        self._now = now
        self._lives: dict[str, _PodLife] = {}
        self._waiting: list[str] = []
        """uids in the order of binding"""
        self._some = asyncio.Event()
        self._up = asyncio.Event()
        self._up.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._claims = NodeClaims(client, None)

    # -- state

    def waiting_pods(self) -> Iterator[Json]:
        """Pods that are not admitted yet, in the order of binding."""
        return (self._lives[uid].pod for uid in self._waiting)

    def pods(self) -> Iterator[Json]:
        return (life.pod for life in self._lives.values())

    def read_log(self, pod: Json, container: str) -> Sequence[LogLine] | None:
        """What a container of the pod wrote so far; None if it has not started."""
        view = self.containers.get((uid_of(pod), container))
        return container_log(pod, container, view.env) if view is not None else None

    def pause(self) -> None:
        """Admits nothing until `resume`; running pods keep running."""
        self._up.clear()

    def resume(self) -> None:
        self._up.set()

    # -- the watch

    def seen(self, pod: Json) -> None:
        uid = uid_of(pod)
        life = self._lives.get(uid)
        if life is None:
            life = self._lives[uid] = _PodLife(pod)
            if phase_of(pod) in ("", "Pending") and not is_being_deleted(pod):
                self._waiting.append(uid)
                self._some.set()
        life.pod = pod
        if has_ended(pod):
            self._ids.release(uid)
        if is_being_deleted(pod) and not life.stopping:
            life.stopping = True
            self._withdraw(uid)
            self._start_stage(life, self._stop(life))

    def gone(self, uid: str) -> None:
        """The pod no longer exists."""
        life = self._lives.pop(uid, None)
        self._withdraw(uid)
        self._ids.release(uid)
        if life is not None and life.task is not None:
            life.task.cancel()
        if self._tasks is not None:
            self._tasks.create_task(self._unprepare(uid))

    async def run(self, agent: SimulatedPlugin, driver: ClaimDriver | None = None) -> None:
        """Admits and runs pods, until cancelled. `driver` serves their ResourceClaims."""
        self._claims = NodeClaims(self._client, driver)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            # Pods whose deletion was seen before `run`.
            for life in [each for each in self._lives.values() if each.stopping and each.task is None]:
                self._start_stage(life, self._stop(life))
            while True:
                await self._some.wait()
                await self._up.wait()
                if self._up.is_set() and self._waiting:
                    await self._admit(self._rng.choice(self._waiting) if self._shuffled else self._waiting[0], agent)
                if not self._waiting:
                    self._some.clear()

    # -- one pod

    async def _admit(self, uid: str, agent: SimulatedPlugin) -> None:
        """Calls Allocate for all containers before any of them starts. No other pod comes in between, as in kubelet."""
        life = self._lives[uid]
        pod = life.pod
        views: dict[tuple[str, str], ContainerView] = {}
        try:
            for position, container in enumerate(containers_of(pod)):
                init = position < len(pod["spec"].get("initContainers") or ())
                views[uid, container["name"]] = await self._view(pod, container, agent, init=init)
        except (AllocateError, Unavailable) as error:
            self._withdraw(uid)
            self._ids.release(uid)
            if life.stopping or uid not in self._lives:
                return
            text = f"rpc error: code = Unknown desc = {error}" if isinstance(error, AllocateError) else str(error)
            body = rejected(pod, text, at=self._stamp())
            self._start_stage(life, self._reject(life, body, agent.rejected(pod)))
            return
        self._withdraw(uid)
        written = agent.admitted(pod)
        if uid in self._lives:
            self.containers |= views
            if not life.stopping:
                self._start_stage(life, self._start(life, written))
        else:
            self._ids.release(uid)

    async def _view(self, pod: Json, container: Json, agent: SimulatedPlugin, *, init: bool) -> ContainerView:
        count = _devices(container, self._resource)
        if not count:
            return ContainerView(container_environment(pod, container, {}), ())
        once = init and not is_sidecar(container)
        ids = self._ids.take(uid_of(pod), count, resource=self._resource, prefer=agent.prefer, init=once)
        if self._faults.allocate_errors > 0:
            self._faults.allocate_errors -= 1
            raise AllocateError("injected fault")
        answer = await agent.allocate(ids)
        return ContainerView(container_environment(pod, container, answer), ids)

    async def _start(self, life: _PodLife, annotations: dict[str, str]) -> None:
        await self._annotate(life, annotations)
        await self._prepare(life)
        pod = life.pod
        for done in range(len(pod["spec"].get("initContainers") or ())):
            await self._report(life, initializing(pod, done, at=self._stamp(), address=ADDRESS))
        since = self._stamp()
        await self._report(life, running(pod, at=since, address=ADDRESS))
        run_s = _number(annotations_of(pod).get(RUN_FOR))
        if run_s is not None:
            await asyncio.sleep(run_s)
            code = int(_number(annotations_of(pod).get(EXIT_CODE)) or 0)
            await self._report(life, ended(pod, exit_code=code, since=since, at=self._stamp()))
            await self._unprepare(uid_of(pod))

    async def _unprepare(self, uid: str) -> None:
        await self._repeat(lambda: self._claims.unprepare(uid))

    async def _prepare(self, life: _PodLife) -> None:
        """Repeats the calls for the pod's claims until they succeed, as kubelet does; then the containers start."""
        prepared = await self._repeat(lambda: self._claims.prepare(life.pod))
        for container in containers_of(life.pod):
            key = uid_of(life.pod), container["name"]
            added = prepared.environment(container)
            if added:
                self.containers[key] = replace(self.containers[key], env={**self.containers[key].env, **added})

    async def _reject(self, life: _PodLife, status: Json, annotations: dict[str, str]) -> None:
        await self._annotate(life, annotations)
        await self._report(life, status)

    async def _stop(self, life: _PodLife) -> None:
        grace = life.pod["metadata"].get("deletionGracePeriodSeconds") or 0
        await asyncio.sleep(min(grace, self._pace.stop_s))
        pod = life.pod
        await self._unprepare(uid_of(pod))
        path = PODS.path(namespace_of(pod), name_of(pod))
        await self._until_accepted(lambda: self._client.delete(path, uid=uid_of(pod), grace_s=0))

    async def _report(self, life: _PodLife, body: Json) -> None:
        path = PODS.path(namespace_of(life.pod), name_of(life.pod), "status")
        await self._until_accepted(lambda: self._client.patch(path, body, content_type=STRATEGIC_PATCH))

    async def _annotate(self, life: _PodLife, annotations: dict[str, str]) -> None:
        if annotations:
            path = PODS.path(namespace_of(life.pod), name_of(life.pod))
            body = {"metadata": {"uid": uid_of(life.pod), "annotations": annotations}}
            await self._until_accepted(lambda: self._client.patch(path, body))

    async def _until_accepted(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeats the write until the apiserver accepts it, or says that the pod is gone or another one."""
        with suppress(KubeError):
            await retry_on_error(write, backoff=_RETRIES, is_retriable=lambda error, _: error.is_transient)

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats a call of a plugin until it succeeds."""
        failures = 0
        while True:
            try:
                return await call()
            except (AllocateError, KubeError):
                failures += 1
            await asyncio.sleep(_RETRIES.delay(failures))

    def _withdraw(self, uid: str) -> None:
        if uid in self._waiting:
            self._waiting.remove(uid)

    def _start_stage(self, life: _PodLife, work: Coroutine[Any, Any, None]) -> None:
        """Starts the next stage of a pod's life, and cancels the one before."""
        if life.task is not None:
            life.task.cancel()
            life.task = None
        if self._tasks is None:
            # Not running yet; `run` starts the deletions later.
            work.close()
        else:
            life.task = self._tasks.create_task(work)

    def _stamp(self) -> str:
        return format_timestamp(self._now())


def _devices(container: Json, resource: str) -> int:
    found = read((container.get("resources", {}).get("limits") or {}).get(resource, 0))
    return found.value if isinstance(found, Whole) else 0


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else None
    except ValueError:
        return None
    return max(0.0, found) if found is not None and math.isfinite(found) else None
