"""Keeps a sink equal to a resource: list, then watch, and start again after every fault.

                  +-- 410, bad response, 3 refusals, ----+
                  |   or no event for 180 s              |
                  v                                      |
    start --> listing --> synced --> watching -- ended or cut off: back off, resume from the last version --+
                  ^ |                   ^                                                                   |
                  +-+ failed: back off  +-------------------------------------------------------------------+

A watch that is silent for longer than bookmarks ever take ends (`transport`), and the next one goes on from the same
version; if that one brings nothing either, the list is read again. A reflector keeps only the uid of each key: enough
to report what was deleted between two watches, and what was replaced under the same name. It keeps no objects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.decoder import UnreadableObject, WatchEvent
from tessera.kube.errors import ApiError, BadResponse, KubeError, is_throttled
from tessera.kube.transport import SILENT_S

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

WATCH_S = (300, 600)
"""each watch lasts a random time in this range, so that they do not all restart together"""
BACKOFF = Backoff()
HEALTHY_S = 5.0
"""a watch that lasted this long, or brought an event, does not count as a failure, however it ended"""
PUTS_PER_TURN = 500
"""objects given to the sink before other tasks run"""
REFUSALS_BEFORE_LISTING = 3
"""a version that the server keeps refusing, for example after a restored backup, is given up"""

MUTE_S = 2 * SILENT_S
"""without an event, not even a bookmark: then watches are not trusted, and the list is read again"""

_log = logging.getLogger(__name__)


class Sink(Protocol[T_contra]):
    """Where objects go. Called on the event loop, one call at a time. `put` may repeat an object that is there."""

    def put(self, key: str, obj: T_contra) -> None: ...

    def drop(self, key: str) -> None: ...

    def synced(self) -> None:
        """A list is complete: all objects that exist were put, and all others dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Accessor(Generic[T]):
    """How to read the identity of an object, as meta.Accessor in client-go."""

    key: Callable[[T], str]
    uid: Callable[[T], str]
    version: Callable[[T], str]


def _key_of(obj: Any) -> str:
    metadata = obj.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


METADATA: Accessor[Any] = Accessor(
    key=_key_of, uid=lambda obj: obj.metadata.uid, version=lambda obj: obj.metadata.resource_version
)
"""for objects with `metadata`; keys are `namespace/name`, or only the name"""


class SinkError(KubeError):
    """The sink raised an exception, which is the cause."""

    def __init__(self, action: str, key: str) -> None:
        super().__init__(f"{action} {key!r} failed")
        self.action = action
        self.key = key


class UnreadableObjectError(KubeError):
    """An object cannot be decoded; the sink keeps what it knows of it."""

    def __init__(self, found: UnreadableObject) -> None:
        super().__init__(str(found))
        self.found = found


def log_error(error: KubeError) -> None:
    """The default for `on_error`."""
    _log.warning("%s", error, exc_info=error if isinstance(error, SinkError) else None)


class Reflector(Generic[T]):
    """For one resource and one sink."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[T],
        sink: Sink[T],
        *,
        field_selector: str = "",
        accessor: Accessor[T] = METADATA,
        rng: random.Random | None = None,
        on_error: Callable[[KubeError], None] = log_error,
    ) -> None:
        self._client = client
        self._path = path
        self._kind = kind
        self._sink = sink
        self._fields = field_selector
        self._accessor = accessor
        self._rng = rng or random.Random()
        self._on_error = on_error
        self._known: dict[str, str] = {}
        self._version = ""
        """where to watch from; empty if a list comes first"""
        self._failures = 0
        self._refusals = 0
        self._expiries = 0
        """in a row, without a watch that lasted"""
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._told_at = self._heard_at
        """when a list or an event came last"""

    @property
    def resource(self) -> str:
        """The plural name of what it reflects."""
        return self._path.rpartition("/")[2]

    @property
    def age(self) -> float:
        """Seconds since the apiserver sent anything for this resource. A watch that says nothing is replaced, so that
        it stays below two minutes while the apiserver can be reached."""
        return self._clock() - self._heard_at

    def start_over(self) -> None:
        """Make the next `run` begin with a list. It still notices deletions. Call it while nothing runs."""
        self._version = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            wait = 0.0
            try:
                if not self._version:
                    await self._list()
                if await self._watch():
                    continue
            except KubeError as error:
                self._report(error)
                wait = self._handle_error(error)
            self._failures += 1
            await asyncio.sleep(wait + BACKOFF.delay(self._failures))

    def _handle_error(self, error: KubeError) -> float:
        """Decide whether to list again; returns the seconds to wait beyond the back-off."""
        if isinstance(error, BadResponse):
            # The same version would bring the same response.
            self._version = ""
        if not isinstance(error, ApiError):
            return 0.0
        if not is_throttled(error):
            self._refusals += 1
        if error.expired:
            # However much each watch brings before it expires: a list is far more work than a watch.
            self._failures = max(self._failures, self._expiries)
            self._expiries += 1
        if error.expired or self._refusals >= REFUSALS_BEFORE_LISTING:
            self._version = ""
            self._refusals = 0
        return error.retry_after or 0.0

    async def _list(self) -> None:
        unreadable_uids: set[str] = set()

        def on_unreadable(found: UnreadableObject) -> None:
            unreadable_uids.add(found.uid)
            self._report(UnreadableObjectError(found))

        pages = self._client.pages(
            self._path,
            self._kind,
            field_selector=self._fields,
            on_unreadable=on_unreadable,
        )
        seen: set[str] = set()
        version = ""
        async with aclosing(pages):
            # Page by page, so that a large cluster is never in memory twice.
            async for page in pages:
                if page.is_first:
                    seen.clear()
                self._heard()
                version = page.resource_version
                for index, obj in enumerate(page.items, start=1):
                    seen.add(self._put(obj))
                    if index % PUTS_PER_TURN == 0:
                        await asyncio.sleep(0)
        # Last, so that an object that exists is never missing from the sink, not even for a moment.
        for key in [key for key, uid in self._known.items() if key not in seen and uid not in unreadable_uids]:
            self._drop(key)
        self._version, self._told_at = version, self._clock()
        try:
            self._sink.synced()
        except Exception as error:
            self._report_sink_error("synced", "", error)

    async def _watch(self) -> bool:
        """Returns whether the watch was healthy, so that the next one need not wait."""
        started, version, lasted = self._clock(), self._version, False
        events = self._client.watch(
            self._path,
            self._kind,
            resource_version=version,
            timeout_seconds=self._rng.randint(*WATCH_S),
            field_selector=self._fields,
            on_unreadable=self._skip_unreadable,
            on_bytes=self._heard,
        )
        try:
            async with aclosing(events):
                async for event in events:
                    self._apply(event)
        finally:
            lasted = self._clock() - started >= HEALTHY_S
            if lasted and self._clock() - self._told_at >= MUTE_S:
                self._version = ""
            if lasted:
                self._expiries = 0
            if lasted or self._version != version:
                self._failures = 0
                self._refusals = 0
        return lasted

    def _heard(self) -> None:
        self._heard_at = self._clock()

    def _apply(self, event: WatchEvent[T]) -> None:
        self._told_at = self._clock()
        if event.type in ("ADDED", "MODIFIED"):
            self._put(event.object)
        elif event.type == "DELETED":
            key = self._accessor.key(event.object)
            if self._known.get(key) == self._accessor.uid(event.object):
                self._drop(key)
        self._version = self._accessor.version(event.object) or self._version

    def _skip_unreadable(self, found: UnreadableObject) -> None:
        """Go on after an event whose object cannot be decoded; if it is a deletion, it still counts."""
        self._told_at = self._clock()
        self._version = found.resource_version or self._version
        if found.type == "BOOKMARK":
            return
        self._report(UnreadableObjectError(found))
        if found.type == "DELETED" and found.uid:
            for key in [key for key, uid in self._known.items() if uid == found.uid]:
                self._drop(key)

    def _put(self, obj: T) -> str:
        key, uid = self._accessor.key(obj), self._accessor.uid(obj)
        if self._known.get(key, uid) != uid:
            self._drop(key)
        self._known[key] = uid
        try:
            self._sink.put(key, obj)
        except Exception as error:
            self._report_sink_error("put", key, error)
        return key

    def _drop(self, key: str) -> None:
        del self._known[key]
        try:
            self._sink.drop(key)
        except Exception as error:
            self._report_sink_error("drop", key, error)

    def _report_sink_error(self, action: str, key: str, error: Exception) -> None:
        fault = SinkError(action, key)
        fault.__cause__ = error
        self._report(fault)

    def _report(self, error: KubeError) -> None:
        try:
            self._on_error(error)
        except Exception:
            _log.exception("on_error failed for: %s", error)
