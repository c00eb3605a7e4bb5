"""kube-scheduler as an extender sees it: one filter at a time, concurrent binds, and refused pods that sleep.

As seen on v1.36: a refused pod is asked for again when any pod is bound, a bound pod goes, a node changes, or the pod
itself is patched or names its claims; otherwise it sleeps. It has caches of its own, which are late in their own way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tessera.wire.objects import Node, Pod
from tests.model import virtual_time
from tests.model.apiserver import SimulatedApiserver
from tests.model.machines import STOCK
from tests.model.process import Process
from tests.model.tables import Informer

FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 10.0
FLUSH = 300.0
"""seconds that a refused pod sleeps at most"""

_json = msgspec.json.Encoder()


@dataclass(slots=True)
class Queued:
    """A pod that is not bound, as far as kube-scheduler knows."""

    key: str
    pod: Pod
    allowed: frozenset[str] | None
    """nodes that its selectors allow; None = all"""
    place: str = "active"
    """or backoff, asleep, binding"""
    since: float = 0.0
    attempts: int = 0


class KubeScheduler:
    """Its caches are the sinks of two informers."""

    def __init__(self, api: SimulatedApiserver, rng: random.Random) -> None:
        self._api = api
        self._rng = rng
        self.queue: dict[str, Queued] = {}
        """by uid, in the order of arrival"""
        self.tasks: dict[asyncio.Task[None], str] = {}
        """binds that have not ended, with their pods' uids"""
        self.sent: dict[asyncio.Task[None], Process] = {}
        """those of them that wait for a scheduler, in a fixed order"""
        self.process: Process | None = None
        """the scheduler beside the kube-scheduler that leads, while it runs"""
        self._bound: set[str] = set()
        self.slow_binds = 0.1
        """share of pods that other plugins (volumes, permits) hold up between filter and bind"""
        self.flushes = True
        """whether a timer wakes refused pods"""
        self.on_chosen: Callable[[Process, Pod, str], None] = lambda _process, _pod, _node: None
        self.on_success: Callable[[Pod, str], None] = lambda _pod, _node: None
        self.pods = Informer(api.pods, _Pods(self))
        self.nodes = Informer(api.nodes, _Nodes(self))

    def time(self) -> float:
        return virtual_time.now()

    # -- what the caches say

    def saw_pod(self, key: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        if STOCK in (pod.metadata.labels or {}) and not pod.spec.node_name:
            return  # It is another scheduler's.
        queued = self.queue.get(uid)
        if pod.spec.node_name:
            if queued is not None:
                del self.queue[uid]
            if uid not in self._bound:
                self._bound.add(uid)
                self.move_all()
        elif pod.metadata.deletion_timestamp:
            self.queue.pop(uid, None)
        elif queued is None:
            self.queue[uid] = Queued(key, pod, self._selected(uid))
        else:
            old, new = queued.pod, pod
            changed = (old.annotations, old.status.resource_claim_statuses) != (
                new.annotations,
                new.status.resource_claim_statuses,
            )
            queued.pod = pod
            if changed:
                self._move(queued)

    def lost_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.queue.pop(uid, None)
        if uid in self._bound:
            self._bound.discard(uid)
            self.move_all()

    def move_all(self) -> None:
        for queued in self.queue.values():
            self._move(queued)

    def _move(self, queued: Queued) -> None:
        if queued.place == "asleep":
            queued.place = "backoff"  # Over at once, if it has slept for long enough.

    def _selected(self, uid: str) -> frozenset[str] | None:
        """Some pods have node selectors; the nodes that these allow never change."""
        if self._rng.random() < 0.75:
            return None
        return frozenset(f"n{i}" for i in range(8) if self._rng.random() < 0.6)

    # -- one attempt

    def due(self) -> list[Queued]:
        now = self.time()
        for queued in self.queue.values():
            if queued.place == "backoff":
                pause = min(FIRST_BACKOFF * 2 ** (queued.attempts - 1), LONGEST_BACKOFF)
            elif queued.place == "asleep" and self.flushes:
                pause = FLUSH
            else:
                continue
            if now >= queued.since + pause:
                self._put(queued, "active")
        return [queued for queued in self.queue.values() if queued.place == "active"]

    def schedule(self, queued: Queued) -> str:
        """Filter one pod and start its bind."""
        names = sorted(name for name in self.nodes.seen if queued.allowed is None or name in queued.allowed)
        queued.attempts += 1
        if not names:
            self._put(queued, "asleep")
            return "no candidates"
        process = self.process
        if process is None or process.is_paused:
            self._put(queued, "backoff")
            return "no answer"
        missing = process.engine.missing()
        if missing:
            self._put(queued, "backoff")
            return missing
        body = _json.encode({"Pod": queued.pod, "NodeNames": names})
        answer = msgspec.json.decode(process.engine.filter.answer(body))
        if answer["Error"]:
            self._put(queued, "backoff")
            return str(answer["Error"])
        chosen: list[str] = answer["NodeNames"] or []
        process.checker.raced(queued.pod, names, chosen)
        if not chosen:
            failed = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
            assert sorted(failed) == names, "a refusal has a reason for every candidate"
            self._put(queued, "asleep")
            return f"refused: {next(iter(failed.values()))}"
        assert set(chosen) <= set(names)
        node = chosen[0] if len(chosen) == 1 else self._rng.choice(chosen)
        self.on_chosen(process, queued.pod, node)
        self._put(queued, "binding")
        self._bind(process, queued, node)
        return node

    def _bind(self, process: Process, queued: Queued, node: str) -> None:
        task = asyncio.get_running_loop().create_task(self._await_bind(process, queued, node))
        self.tasks[task] = queued.pod.metadata.uid
        task.add_done_callback(lambda done: self._finished(queued, done))

    async def _await_bind(self, process: Process, queued: Queued, node: str) -> None:
        """`process` chose the node; the kube-scheduler beside it may have ended, or started it anew."""
        if self._rng.random() < self.slow_binds:
            await asyncio.sleep(self._rng.choice((0.5, 5.0, 400.0)))
        task = asyncio.current_task()
        if self.process is None or self.process.name != process.name or task is None:
            self._put(queued, "backoff")
            return
        process = self.process
        self.sent[task] = process
        if process.is_paused:  # It waits in the socket.
            await asyncio.sleep(process.client.resume_at - self.time())
        if process.engine.missing():
            self._put(queued, "backoff")
            return
        metadata = queued.pod.metadata
        body = {"PodName": metadata.name, "PodNamespace": metadata.namespace, "PodUID": metadata.uid, "Node": node}
        error = msgspec.json.decode(await process.engine.binder.answer(_json.encode(body)))["Error"]
        if error:
            self._put(queued, "backoff")
        else:
            self.on_success(queued.pod, node)

    def _finished(self, queued: Queued, task: asyncio.Task[None]) -> None:
        del self.tasks[task]
        self.sent.pop(task, None)
        if task.cancelled():
            self._put(queued, "backoff")
        else:
            task.result()

    def crash(self, process: Process) -> None:
        """A scheduler is gone, with all its connections."""
        if self.process is process:
            self.process = None
        for task, receiver in list(self.sent.items()):
            if receiver is process:
                task.cancel()

    def follow(self, process: Process | None) -> None:
        """Another kube-scheduler leads: it knows nothing of the binds that the old one has sent."""
        self.process = process
        for queued in self.queue.values():
            if queued.place == "binding":
                self._put(queued, "backoff")

    def give_up(self, task: asyncio.Task[None], *, cancel: bool) -> None:
        """kube-scheduler's own timeout: the request is cancelled, or its response is ignored."""
        queued = self.queue.get(self.tasks[task])
        if cancel:
            task.cancel()
        elif queued is not None:
            self._put(queued, "backoff")

    def _put(self, queued: Queued, place: str) -> None:
        queued.place, queued.since = place, self.time()


class _Pods:
    def __init__(self, owner: KubeScheduler) -> None:
        self._owner = owner
        self._known: dict[str, Pod] = {}

    def put(self, key: str, obj: Pod) -> None:
        self._known[key] = obj
        self._owner.saw_pod(key, obj)

    def drop(self, key: str) -> None:
        self._owner.lost_pod(self._known.pop(key))

    def synced(self) -> None: ...


class _Nodes:
    def __init__(self, owner: KubeScheduler) -> None:
        self._owner = owner

    def put(self, key: str, obj: Node) -> None:
        self._owner.move_all()

    def drop(self, key: str) -> None: ...

    def synced(self) -> None: ...
