"""Events for people (`kubectl describe`): recorded at once, written later, never in anybody's way.

`record` only puts into a bounded queue. A background task writes; equal events become one with a count. Under pressure,
or where the apiserver refuses, events are dropped and counted: an event is never worth a slow bind.
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
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import EVENTS

CAPACITY = 1000
"""events waiting, and events remembered for counting"""
WINDOW_SECONDS = 600.0
"""equal events within this time of each other are one"""
GATHER_SECONDS = 0.2
"""how long to collect before writing: repetitions in it cost one write"""
PARALLEL_WRITES = 8
ATTEMPTS = 8
"""writes of one event before it is dropped; with the back-off, about a minute"""
MESSAGE_BYTES = 1024
"""the apiserver's own limit for a note"""
_NAME_LENGTH = 253 - 17
"""of the object's name within the event's, which has a dot and 16 digits more"""


class Writer(Protocol):
    """What a recorder needs of a client."""

    async def create(self, path: str, body: Any) -> None: ...

    async def patch(self, path: str, body: Any) -> None: ...


class ObjectRef(msgspec.Struct, frozen=True):
    """What an event is about."""

    kind: str
    namespace: str
    """empty for objects of the cluster"""
    name: str
    uid: str
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class _Same:
    """Events that agree in this are one event that happened several times."""

    ref: ObjectRef
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Waiting:
    name: str
    count: int
    first: float
    last: float
    attempts: int = 0


class _Outcome(Enum):
    OVER = "written, or refused in a way that stays"
    AGAIN = "failed, worth another try"
    LOST = "failed too often"


@dataclass(frozen=True, slots=True)
class _Written:
    name: str
    count: int
    last: float


class EventBroadcaster:
    """Queue, counts and the writing."""

    def __init__(
        self,
        client: Writer,
        *,
        component: str,
        host: str,
        capacity: int = CAPACITY,
        window: float = WINDOW_SECONDS,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now` in seconds since the epoch."""
        self._client = client
        self._component, self._host = component, host
        self._capacity, self._window = capacity, window
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()
        self._now = now
        self._waiting: OrderedDict[_Same, _Waiting] = OrderedDict()
        self._written: OrderedDict[_Same, _Written] = OrderedDict()
        self._some = asyncio.Event()
        self._writing = asyncio.Lock()
        self.dropped = 0
        """events that were never written"""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def record(self, ref: ObjectRef, type: str, reason: str, message: str, *, at: float | None = None) -> None:
        """Never blocks, never raises. `type` is Normal or Warning; it happened now, or `at` a time of the past."""
        same = _Same(ref, type, reason, cut(message))
        now = self._now() if at is None else at
        waiting = self._waiting.get(same)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
            return
        self._waiting[same] = _Waiting(self._event_name(ref.name), 1, now, now)
        self._shed()
        self._some.set()

    async def run(self) -> None:
        """Write what is recorded, for ever, until cancelled; what is then still waiting is for `flush`."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_SECONDS)
            await self._write_all()

    async def flush(self, deadline: float) -> int:
        """Write all that waits, giving up after `deadline` seconds; how many were left."""
        try:
            async with asyncio.timeout(deadline):
                await self._write_all()
        except TimeoutError:
            pass
        return len(self._waiting)

    async def _write_all(self) -> None:
        failures = 0
        while self._waiting:
            if await self._write_some():
                failures = 0
                continue
            failures += 1
            await asyncio.sleep(self._backoff.delay(failures, self._rng))

    async def _write_some(self) -> bool:
        """One batch; whether the apiserver answered all of it."""
        async with self._writing:
            batch: list[tuple[_Same, _Waiting]] = []
            while self._waiting and len(batch) < PARALLEL_WRITES:
                batch.append(self._waiting.popitem(last=False))
            if not self._waiting:
                self._some.clear()
            outcomes = [_Outcome.AGAIN] * len(batch)

            async def write(index: int) -> None:
                outcomes[index] = await self._write(*batch[index])

            try:
                await asyncio.gather(*(write(index) for index in range(len(batch))))
            finally:
                # Also after a cancellation, so that a flush finds them.
                for (same, waiting), outcome in zip(reversed(batch), reversed(outcomes), strict=True):
                    if outcome is _Outcome.AGAIN:
                        self._put_back(same, waiting)
            return all(outcome is _Outcome.OVER for outcome in outcomes)

    async def _write(self, same: _Same, waiting: _Waiting) -> _Outcome:
        waiting.attempts += 1
        try:
            await self._create_or_count(same, waiting)
        except ApiError as error:
            if error.status < 500 and error.status != 429:
                self.dropped += waiting.count  # forbidden, no such namespace, or malformed
                return _Outcome.OVER
        except ValueError:
            self.dropped += waiting.count  # a name that fits no path, or text that fits no JSON
            return _Outcome.OVER
        except KubeError:
            pass
        else:
            return _Outcome.OVER
        if waiting.attempts < ATTEMPTS:
            return _Outcome.AGAIN
        self.dropped += waiting.count
        return _Outcome.LOST

    async def _create_or_count(self, same: _Same, waiting: _Waiting) -> None:
        namespace = same.ref.namespace or "default"
        before = self._written.get(same)
        if before is not None and waiting.last - before.last <= self._window:
            count = before.count + waiting.count
            change = {"count": count, "lastTimestamp": _timestamp(waiting.last)}
            try:
                await self._client.patch(EVENTS.path(namespace, before.name), change)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                self._remember(same, _Written(before.name, count, waiting.last))
                return
        try:
            await self._client.create(EVENTS.path(namespace), self._body(same, waiting, namespace))
        except ApiError as error:
            # An earlier try whose answer was lost: the name is random, so it is ours.
            if error.reason != "AlreadyExists":
                raise
        self._remember(same, _Written(waiting.name, waiting.count, waiting.last))

    def _body(self, same: _Same, waiting: _Waiting, namespace: str) -> dict[str, Any]:
        ref = same.ref
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": waiting.name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": ref.api_version,
                "kind": ref.kind,
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "type": same.type,
            "reason": same.reason,
            "message": same.message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": _timestamp(waiting.first),
            "lastTimestamp": _timestamp(waiting.last),
            "count": waiting.count,
        }

    def _event_name(self, name: str) -> str:
        return f"{name[:_NAME_LENGTH].rstrip('.-')}.{self._rng.getrandbits(64):016x}"

    def _remember(self, same: _Same, written: _Written) -> None:
        self._written[same] = written
        self._written.move_to_end(same)
        while len(self._written) > self._capacity:
            self._written.popitem(last=False)

    def _put_back(self, same: _Same, waiting: _Waiting) -> None:
        newer = self._waiting.get(same)
        if newer is not None:
            waiting.count += newer.count
            waiting.last = newer.last
        self._waiting[same] = waiting
        self._waiting.move_to_end(same, last=False)
        self._shed()
        self._some.set()

    def _shed(self) -> None:
        while len(self._waiting) > self._capacity:
            _, oldest = self._waiting.popitem(last=False)
            self.dropped += oldest.count


def cut(message: str) -> str:
    """At most MESSAGE_BYTES of UTF-8, ending with a whole character."""
    return message.encode("utf-8", "replace")[:MESSAGE_BYTES].decode("utf-8", "ignore")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
