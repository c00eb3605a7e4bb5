"""Kubernetes Events, queued by `record` and written by a background task.

The queue is bounded. Equal events become one with a count. An event is dropped and counted if the queue is full or the
apiserver refuses it: events never slow down a bind.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

import msgspec

from tessera.kube.backoff import Backoff
from tessera.kube.errors import ApiError, KubeError, is_not_found
from tessera.kube.resources import EVENTS

CAPACITY = 1000
"""events in the queue, and events remembered for counting"""
WINDOW_S = 600.0
"""equal events within this time of each other are one"""
GATHER_S = 0.2
"""between the first event and the write; events repeated within it cost one write"""
PARALLEL_WRITES = 8
ATTEMPTS = 8
"""per event before it is dropped; with the back-off, about a minute"""
MESSAGE_BYTES = 1024
"""the apiserver's own limit for a note"""
_NAME_LENGTH = 253 - 17
"""of the object's name in the event's name, which has a dot and 16 digits more"""


class EventSink(Protocol):
    """What the broadcaster needs of a client, as in client-go."""

    async def create(self, path: str, body: Any) -> None: ...

    async def patch(self, path: str, body: Any) -> None: ...


class ObjectRef(msgspec.Struct, frozen=True):
    """What an event is about."""

    kind: str
    namespace: str
    """empty for objects without one"""
    name: str
    uid: str
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class _EventKey:
    """Events with equal keys are one event that happened several times."""

    ref: ObjectRef
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _QueuedEvent:
    name: str
    count: int
    first: float
    last: float
    attempts: int = 0


class _Outcome(Enum):
    DONE = "written, or refused for good"
    RETRY = "failed, to be retried"
    LOST = "failed too often"


@dataclass(frozen=True, slots=True)
class _WrittenEvent:
    name: str
    count: int
    last: float


class EventBroadcaster:
    """The queue, the counts and the writer."""

    def __init__(
        self,
        client: EventSink,
        *,
        component: str,
        host: str,
        capacity: int = CAPACITY,
        window: float = WINDOW_S,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now` returns seconds since the epoch."""
        self._client = client
        self._component, self._host = component, host
        self._capacity, self._window = capacity, window
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()
        self._now = now
        self._queue: OrderedDict[_EventKey, _QueuedEvent] = OrderedDict()
        self._written: OrderedDict[_EventKey, _WrittenEvent] = OrderedDict()
        self._has_queued = asyncio.Event()
        self._writing = asyncio.Lock()
        self.dropped = 0
        """how many events were never written"""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def record(self, ref: ObjectRef, type: str, reason: str, message: str, *, at: float | None = None) -> None:
        """Never blocks and never raises. `type` is Normal or Warning. Without `at` the event happened now."""
        key = _EventKey(ref, type, reason, truncate(message))
        now = self._now() if at is None else at
        queued = self._queue.get(key)
        if queued is not None:
            queued.count += 1
            queued.last = now
            return
        self._queue[key] = _QueuedEvent(self._event_name(ref.name), 1, now, now)
        self._drop_oldest()
        self._has_queued.set()

    async def run(self) -> None:
        """Write recorded events until cancelled; `flush` writes what is left then."""
        while True:
            await self._has_queued.wait()
            await asyncio.sleep(GATHER_S)
            await self._write_all()

    async def flush(self, deadline: float) -> int:
        """Write the whole queue within `deadline` seconds; returns how many events are left."""
        try:
            async with asyncio.timeout(deadline):
                await self._write_all()
        except TimeoutError:
            pass
        return len(self._queue)

    async def _write_all(self) -> None:
        failures = 0
        while self._queue:
            if await self._write_some():
                failures = 0
                continue
            failures += 1
            await asyncio.sleep(self._backoff.delay(failures))

    async def _write_some(self) -> bool:
        """Write one batch; returns whether the apiserver responded to all of it."""
        async with self._writing:
            batch: list[tuple[_EventKey, _QueuedEvent]] = []
            while self._queue and len(batch) < PARALLEL_WRITES:
                batch.append(self._queue.popitem(last=False))
            if not self._queue:
                self._has_queued.clear()
            outcomes = [_Outcome.RETRY] * len(batch)

            async def write(index: int) -> None:
                outcomes[index] = await self._write(*batch[index])

            try:
                await asyncio.gather(*(write(index) for index in range(len(batch))))
            finally:
                # Also after a cancellation, so that `flush` finds them.
                for (key, queued), outcome in zip(reversed(batch), reversed(outcomes), strict=True):
                    if outcome is _Outcome.RETRY:
                        self._put_back(key, queued)
            return all(outcome is _Outcome.DONE for outcome in outcomes)

    async def _write(self, key: _EventKey, queued: _QueuedEvent) -> _Outcome:
        queued.attempts += 1
        try:
            await self._create_or_count(key, queued)
        except ApiError as error:
            if not error.is_transient:
                self.dropped += queued.count  # forbidden, unknown namespace, or malformed
                return _Outcome.DONE
        except ValueError:
            self.dropped += queued.count  # a name that no path can hold, or a text that JSON cannot
            return _Outcome.DONE
        except KubeError:
            pass
        else:
            return _Outcome.DONE
        if queued.attempts < ATTEMPTS:
            return _Outcome.RETRY
        self.dropped += queued.count
        return _Outcome.LOST

    async def _create_or_count(self, key: _EventKey, queued: _QueuedEvent) -> None:
        namespace = key.ref.namespace or "default"
        before = self._written.get(key)
        if before is not None and queued.last - before.last <= self._window:
            count = before.count + queued.count
            change = {"count": count, "lastTimestamp": _timestamp(queued.last)}
            try:
                await self._client.patch(EVENTS.path(namespace, before.name), change)
            except ApiError as error:
                if not is_not_found(error):
                    raise
            else:
                self._remember(key, _WrittenEvent(before.name, count, queued.last))
                return
        try:
            await self._client.create(EVENTS.path(namespace), self._body(key, queued, namespace))
        except ApiError as error:
            # The response to an earlier attempt was lost: the name is random, so the event is ours.
            if error.reason != "AlreadyExists":
                raise
        self._remember(key, _WrittenEvent(queued.name, queued.count, queued.last))

    def _body(self, key: _EventKey, queued: _QueuedEvent, namespace: str) -> dict[str, Any]:
        ref = key.ref
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": queued.name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": ref.api_version,
                "kind": ref.kind,
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "type": key.type,
            "reason": key.reason,
            "message": key.message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": _timestamp(queued.first),
            "lastTimestamp": _timestamp(queued.last),
            "count": queued.count,
        }

    def _event_name(self, name: str) -> str:
        return f"{name[:_NAME_LENGTH].rstrip('.-')}.{self._rng.getrandbits(64):016x}"

    def _remember(self, key: _EventKey, written: _WrittenEvent) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        while len(self._written) > self._capacity:
            self._written.popitem(last=False)

    def _put_back(self, key: _EventKey, queued: _QueuedEvent) -> None:
        newer = self._queue.get(key)
        if newer is not None:
            queued.count += newer.count
            queued.last = newer.last
        self._queue[key] = queued
        self._queue.move_to_end(key, last=False)
        self._drop_oldest()
        self._has_queued.set()

    def _drop_oldest(self) -> None:
        while len(self._queue) > self._capacity:
            _, oldest = self._queue.popitem(last=False)
            self.dropped += oldest.count


def truncate(message: str) -> str:
    """At most MESSAGE_BYTES of UTF-8, without a broken character at the end."""
    return message.encode("utf-8", "replace")[:MESSAGE_BYTES].decode("utf-8", "ignore")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
