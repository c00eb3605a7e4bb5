"""Objects of one kind in the simulated apiserver, and informers that follow them with any delay.

A watch brings every change in order; a list is a snapshot that reaches its sink some time after it was taken, and then
only what differs. Nothing here knows what the objects mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tessera.kube.reflector import Sink
from tessera.wire.objects import Node, Pod, ResourceQuota
from tessera.wire.resource_api import DeviceClass, ResourceClaim, ResourceSlice

T = TypeVar("T", Pod, Node, ResourceQuota, ResourceClaim, ResourceSlice, DeviceClass)


class Table(Generic[T]):
    """The stored objects, by key."""

    def __init__(self) -> None:
        self.objects: dict[str, T] = {}
        self.feeds: list[deque[tuple[str, T | None]]] = []

    def put(self, key: str, found: T) -> None:
        self.objects[key] = found
        for feed in self.feeds:
            feed.append((key, found))

    def remove(self, key: str) -> None:
        del self.objects[key]
        for feed in self.feeds:
            feed.append((key, None))


class Informer(Generic[T]):
    """Keeps a sink equal to a table. It begins with a list that is not delivered yet."""

    def __init__(self, table: Table[T], sink: Sink[T], *, after: Callable[[str, T | None], None] | None = None) -> None:
        self._table: Table[T] = table
        self._sink: Sink[T] = sink
        self._after: Callable[[str, T | None], None] | None = after
        self._feed: deque[tuple[str, T | None]] = deque()
        table.feeds.append(self._feed)
        self.seen: dict[str, T] = {}
        """what the sink has"""
        self.listing: dict[str, T] | None = None
        self.list()

    def list(self) -> None:
        """Takes a snapshot; the watch continues from there."""
        self.listing = dict(self._table.objects)
        self._feed.clear()

    @property
    def behind(self) -> int:
        """Deliveries that are due."""
        return len(self._feed) + (self.listing is not None)

    def deliver(self) -> str:
        """Delivers the list or the next change, and returns a description of it."""
        if self.listing is not None:
            listing, self.listing = self.listing, None
            for key, found in listing.items():
                self._put(key, found)
            for key in [key for key in self.seen if key not in listing]:
                self._drop(key)
            self._sink.synced()
            return f"list of {len(listing)}"
        key, change = self._feed.popleft()
        if change is not None:
            self._put(key, change)
        elif key in self.seen:
            self._drop(key)
        return key if change is not None else f"{key} gone"

    def close(self) -> None:
        self._table.feeds = [feed for feed in self._table.feeds if feed is not self._feed]

    def _put(self, key: str, found: T) -> None:
        old = self.seen.get(key)
        if old is not None and old.metadata.uid != found.metadata.uid:
            self._drop(key)
        self.seen[key] = found
        self._sink.put(key, found)
        if self._after is not None:
            self._after(key, found)

    def _drop(self, key: str) -> None:
        del self.seen[key]
        self._sink.drop(key)
        if self._after is not None:
            self._after(key, None)
