"""Keeping a sink equal to a resource: list, then watch, and again after whatever happens in between, for ever.

                  +--- 410, nonsense, or refused thrice ---+
                  v                                        |
    start --> listing --> synced --> watching --- ended or cut: wait a little, go on from the last version --+
                  ^ |                   ^                                                                    |
                  +-+ failed: wait      +--------------------------------------------------------------------+

Only key -> uid is kept: enough to report what vanished while nobody watched, and what was replaced under its name.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from tessera.kube.backoff import Backoff
from tessera.kube.decoder import ListPage, OnUnreadable, UnreadableObject, WatchEvent
from tessera.kube.errors import ApiError, BadResponse, KubeError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

HEALTHY_SECONDS = 5.0
"""a watch that lasted this long, or brought something new, was no failure, however it ended"""
PUTS_PER_TURN = 500
"""objects given to the sink before others get the loop"""
MAX_RETRY_AFTER_SECONDS = 120.0
"""a server may ask for patience, but not for blindness"""
REFUSALS_BEFORE_LISTING = 3
"""a version that the server keeps refusing (from before a restored backup, say) is given up"""

_log = logging.getLogger(__name__)


class Sink(Protocol[T_contra]):
    """Where objects go. Called on the event loop, one call at a time; put may repeat what is there already."""

    def put(self, key: str, obj: T_contra) -> None: ...

    def drop(self, key: str) -> None: ...

    def synced(self) -> None:
        """A list is complete: everything was put that exists, and dropped that does not."""
        ...


class ListerWatcher(Protocol):
    """What a reflector needs of a client."""

    def pages(
        self,
        path: str,
        kind: type[T],
        *,
        label_selector: str = "",
        field_selector: str = "",
        on_unreadable: OnUnreadable | None = None,
    ) -> AsyncGenerator[ListPage[T], None]: ...

    def watch(
        self,
        path: str,
        kind: type[T],
        *,
        resource_version: str,
        timeout_seconds: int,
        label_selector: str = "",
        field_selector: str = "",
        on_unreadable: OnUnreadable | None = None,
    ) -> AsyncGenerator[WatchEvent[T], None]: ...


class SinkError(KubeError):
    """The sink did not take an object; the exception of the sink is the cause."""

    def __init__(self, action: str, key: str) -> None:
        super().__init__(f"{action} {key!r} failed")
        self.action = action
        self.key = key


class UnreadableObjectError(KubeError):
    """An object that cannot be decoded; what the sink knows of it stays as it was."""

    def __init__(self, found: UnreadableObject) -> None:
        super().__init__(str(found))
        self.found = found


def log_error(error: KubeError) -> None:
    """What becomes of errors unless told."""
    _log.warning("%s", error, exc_info=error if isinstance(error, SinkError) else None)


class Reflector(Generic[T]):
    """One resource, one sink."""

    def __init__(
        self,
        client: ListerWatcher,
        path: str,
        kind: type[T],
        sink: Sink[T],
        *,
        key: Callable[[T], str],
        uid: Callable[[T], str],
        version: Callable[[T], str],
        label_selector: str = "",
        field_selector: str = "",
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        watch_seconds: tuple[int, int] = (300, 600),
        on_error: Callable[[KubeError], None] = log_error,
    ) -> None:
        """`watch_seconds`: each watch takes a random time between these, so that many do not start again together."""
        self._client = client
        self._path = path
        self._kind = kind
        self._sink = sink
        self._key, self._uid, self._version_of = key, uid, version
        self._labels, self._fields = label_selector, field_selector
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()
        self._watch_seconds = watch_seconds
        self._on_error = on_error
        self._known: dict[str, str] = {}
        self._version = ""
        """where to watch from; empty: list first"""
        self._failures = 0
        self._refusals = 0

    def start_over(self) -> None:
        """The next `run` begins with a list, and still notices what vanished; for callers that stopped the last."""
        self._version = ""

    async def run(self) -> None:
        """For ever, until cancelled."""
        while True:
            wait = 0.0
            try:
                if not self._version:
                    await self._list()
                if await self._watch():
                    continue
            except KubeError as error:
                self._report(error)
                wait = self._learn(error)
            self._failures += 1
            await asyncio.sleep(wait + self._backoff.delay(self._failures, self._rng))

    def _learn(self, error: KubeError) -> float:
        """What an error says about going on; seconds to wait beyond the back-off."""
        if isinstance(error, BadResponse):
            # The same version would bring the same nonsense.
            self._version = ""
        if not isinstance(error, ApiError):
            return 0.0
        if error.status != 429:
            self._refusals += 1
        if error.expired or self._refusals >= REFUSALS_BEFORE_LISTING:
            self._version = ""
            self._refusals = 0
        return min(error.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS)

    async def _list(self) -> None:
        hidden: set[str] = set()

        def set_aside(found: UnreadableObject) -> None:
            hidden.add(found.uid)
            self._report(UnreadableObjectError(found))

        pages = self._client.pages(
            self._path,
            self._kind,
            label_selector=self._labels,
            field_selector=self._fields,
            on_unreadable=set_aside,
        )
        seen: set[str] = set()
        version = ""
        async with aclosing(pages):
            # Page by page into the sink: a large cluster is never in memory twice.
            async for page in pages:
                if page.is_first:
                    seen.clear()
                version = page.resource_version
                for index, obj in enumerate(page.items, start=1):
                    seen.add(self._put(obj))
                    if index % PUTS_PER_TURN == 0:
                        await asyncio.sleep(0)
        # Last, so that what exists is never unknown to the sink, not even between two turns of the loop.
        for key in [key for key, uid in self._known.items() if key not in seen and uid not in hidden]:
            self._drop(key)
        self._version = version
        try:
            self._sink.synced()
        except Exception as error:
            self._blame("synced", "", error)

    async def _watch(self) -> bool:
        """Whether it went as it should, so that the next one need not wait."""
        clock = asyncio.get_running_loop().time
        started, version, lasted = clock(), self._version, False
        events = self._client.watch(
            self._path,
            self._kind,
            resource_version=version,
            timeout_seconds=self._rng.randint(*self._watch_seconds),
            label_selector=self._labels,
            field_selector=self._fields,
            on_unreadable=self._step_over,
        )
        try:
            async with aclosing(events):
                async for event in events:
                    self._apply(event)
        finally:
            lasted = clock() - started >= HEALTHY_SECONDS
            if lasted or self._version != version:
                self._failures = 0
                self._refusals = 0
        return lasted

    def _apply(self, event: WatchEvent[T]) -> None:
        if event.type in ("ADDED", "MODIFIED"):
            self._put(event.object)
        elif event.type == "DELETED":
            key = self._key(event.object)
            if self._known.get(key) == self._uid(event.object):
                self._drop(key)
        self._version = self._version_of(event.object) or self._version

    def _step_over(self, found: UnreadableObject) -> None:
        """An event whose object cannot be decoded: a deletion is still one, and the watch goes on behind it."""
        self._version = found.resource_version or self._version
        if found.type == "BOOKMARK":
            return
        self._report(UnreadableObjectError(found))
        if found.type == "DELETED" and found.uid:
            for key in [key for key, uid in self._known.items() if uid == found.uid]:
                self._drop(key)

    def _put(self, obj: T) -> str:
        key, uid = self._key(obj), self._uid(obj)
        if self._known.get(key, uid) != uid:
            self._drop(key)
        self._known[key] = uid
        try:
            self._sink.put(key, obj)
        except Exception as error:
            self._blame("put", key, error)
        return key

    def _drop(self, key: str) -> None:
        del self._known[key]
        try:
            self._sink.drop(key)
        except Exception as error:
            self._blame("drop", key, error)

    def _blame(self, action: str, key: str, error: Exception) -> None:
        fault = SinkError(action, key)
        fault.__cause__ = error
        self._report(fault)

    def _report(self, error: KubeError) -> None:
        try:
            self._on_error(error)
        except Exception:
            _log.exception("the report of an error failed: %s", error)
