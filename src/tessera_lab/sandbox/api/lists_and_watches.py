"""Lists, whole or in pages, and watches of every change after them.

All pages of a list show the same moment, or the client must start again (410). A page token is opaque to clients: it
holds the version of the list and the position in it.

Invariant of watches: nothing is awaited between the replay of the past and the first live change, so no change is lost
between. A watcher that reads too slowly gets a plain end of stream, as from kube-apiserver, and must list again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from tessera_lab.sandbox.api.errors import StatusError, bad_request, expired_page, too_large_version, too_old
from tessera_lab.sandbox.api.kinds import PODS, Json, ResourceKind
from tessera_lab.sandbox.api.requests import EVERYTHING, ObjectSelector, field_text
from tessera_lab.sandbox.api.store import ENCODE, Store, StoreChange, Stored, make_stored

MAX_SNAPSHOTS = 32
"""how many unfinished paged lists are kept; the oldest is dropped first"""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """Part of a list, or all of it."""

    items: list[Stored]
    version: int
    token: str = ""
    remaining: int | None = None
    """items on later pages; None with a selector, as in kube-apiserver"""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a client wants to list."""

    kind: ResourceKind
    namespace: str = ""
    selector: ObjectSelector = EVERYTHING
    limit: int = 0
    token: str = ""
    version: int | None = None
    exact: bool = False


class _Token(msgspec.Struct, frozen=True):
    version: int
    shown: int
    number: int


class Lister:
    """Lists objects of the store, and keeps lists that clients are still paging through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[int, tuple[ListQuery, list[Stored]]] = OrderedDict()
        self._number = 0

    def page(self, query: ListQuery) -> StoredPage:
        if query.token:
            return self._continue(query)
        current = self._store.version
        if query.version is not None and query.version > current:
            raise too_large_version(query.version, current)
        if query.exact and query.version != current:
            raise expired_page()
        items = [each for each in self._store.list(query.kind, query.namespace) if query.selector.matches(each.object)]
        if not query.limit or len(items) <= query.limit:
            return StoredPage(items, current)
        self._number += 1
        self._snapshots[self._number] = (query, items)
        while len(self._snapshots) > MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return self._cut(_Token(current, 0, self._number), items, query)

    def _continue(self, query: ListQuery) -> StoredPage:
        token = _read_token(query.token)
        first, items = self._snapshots.get(token.number, (None, []))
        if first is None or token.version < self._store.oldest(query.kind):
            raise expired_page()
        if (first.kind, first.namespace, first.selector) != (query.kind, query.namespace, query.selector):
            raise bad_request("the continue token belongs to another list")
        return self._cut(token, items, query)

    def _cut(self, token: _Token, items: list[Stored], query: ListQuery) -> StoredPage:
        end = token.shown + query.limit if query.limit else len(items)
        shown = items[token.shown : end]
        if end >= len(items):
            # Kept until it is pushed out: a client that lost this response may ask for the page again.
            return StoredPage(shown, token.version)
        remaining = None if query.selector else len(items) - end
        following = _Token(token.version, end, token.number)
        return StoredPage(shown, token.version, _encode_token(following), remaining)


def _encode_token(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _read_token(text: str) -> _Token:
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (binascii.Error, ValueError) as error:
        raise bad_request("continue key is not valid") from error
    if found.shown < 0:
        raise bad_request("continue key is not valid")
    return found


MAX_PENDING = 20_000
"""how many events a watcher may be behind"""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

Represent = Callable[[Stored], bytes]


@dataclass(frozen=True, slots=True)
class WatchScope:
    """What a watcher wants to see, and in which form."""

    kind: ResourceKind
    namespace: str = ""
    selector: ObjectSelector = EVERYTHING
    represent: Represent = field(default=lambda stored: stored.whole)

    def holds(self, stored: Stored) -> bool:
        if self.namespace and stored.namespace != self.namespace:
            return False
        return self.selector.matches(stored.object)


class Watcher:
    """Events that have not been sent to one client yet. `aborted`: cut the connection instead of ending the stream."""

    def __init__(self, scope: WatchScope, *, agent: str = "") -> None:
        self.scope = scope
        self.agent = agent
        self.ended = False
        self.aborted = False
        self.live_from = 0
        self._frames: list[bytes] = []
        self._held = False
        self._wake = asyncio.Event()

    def hold(self) -> None:
        """Sends nothing until `go_on`, like a slow network."""
        self._held = True

    def go_on(self) -> None:
        self._held = False
        self._wake.set()

    def take(self) -> bytes:
        """All pending events, in one piece."""
        if self._held and not self.ended:
            self._wake.clear()
            return b""
        taken = b"".join(self._frames)
        self._frames.clear()
        self._wake.clear()
        return taken

    async def wait(self) -> None:
        """Waits until there is something to take or the watch has ended."""
        await self._wake.wait()

    def hear(self, change: StoreChange) -> None:
        """Adds a change as seen through the selector: an object that stops matching counts as deleted."""
        if change.version <= self.live_from:
            return
        was = change.old is not None and self.scope.holds(change.old)
        holds = not change.removed and self.scope.holds(change.new)
        if holds:
            self.push("MODIFIED" if was else "ADDED", self.scope.represent(change.new))
        elif was:
            last = change.new if change.removed else _gone(change)
            self.push("DELETED", self.scope.represent(last))

    def push(self, event: str, body: bytes) -> None:
        if len(self._frames) >= MAX_PENDING:
            self.end()
            return
        self._frames.append(b'{"type":"%b","object":%b}\n' % (event.encode(), body))
        self._wake.set()

    def fail(self, error: StatusError) -> None:
        """Ends the watch with an ERROR event."""
        self.push("ERROR", ENCODE(error.status()))
        self.end()

    def bookmark(self, version: int, annotations: Json | None = None) -> None:
        metadata: Json = {"resourceVersion": str(version)}
        if annotations:
            metadata["annotations"] = annotations
        kind = self.scope.kind
        self.push("BOOKMARK", ENCODE({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}))

    def end(self, *, abort: bool = False) -> None:
        self.ended = True
        self.aborted = self.aborted or abort
        self._wake.set()


class WatchHub:
    """All watchers by kind. Watchers of one node's pods are also indexed by that node, so that a bind wakes few."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: dict[tuple[ResourceKind, str | None], dict[Watcher, None]] = defaultdict(dict)
        store.listen(self._tell)

    def open(self, scope: WatchScope, *, version: int | None, initial_events: bool = False, agent: str = "") -> Watcher:
        """A watcher with every change since `version`; with None or 0, the current objects."""
        watcher = Watcher(scope, agent=agent)
        if version is not None and version > self._store.version:
            watcher.fail(too_large_version(version, self._store.version))
            return watcher
        if not version or initial_events:
            self._tell_present(watcher, mark_end=initial_events)
        else:
            self._tell_past(watcher, version)
        if not watcher.ended:
            self._watchers[_bucket(scope)][watcher] = None
        return watcher

    def close(self, watcher: Watcher) -> None:
        bucket = _bucket(watcher.scope)
        self._watchers[bucket].pop(watcher, None)
        if not self._watchers[bucket]:
            del self._watchers[bucket]

    def all(self, kind: ResourceKind | None = None) -> list[Watcher]:
        return [each for (of, _), held in self._watchers.items() if kind in (None, of) for each in held]

    def _tell_present(self, watcher: Watcher, *, mark_end: bool) -> None:
        watcher.live_from = self._store.version
        for stored in self._store.list(watcher.scope.kind, watcher.scope.namespace):
            if watcher.scope.holds(stored):
                watcher.push("ADDED", watcher.scope.represent(stored))
        if mark_end:
            watcher.bookmark(self._store.version, {INITIAL_EVENTS_END: "true"})

    def _tell_past(self, watcher: Watcher, version: int) -> None:
        past = self._store.since(watcher.scope.kind, version)
        if past is None:
            watcher.fail(too_old(version, self._store.oldest(watcher.scope.kind)))
            return
        for change in past:
            watcher.hear(change)

    def _tell(self, change: StoreChange) -> None:
        for key in _buckets_of(change):
            for watcher in list(self._watchers.get(key, ())):
                watcher.hear(change)


def _bucket(scope: WatchScope) -> tuple[ResourceKind, str | None]:
    return scope.kind, scope.selector.required_value("spec.nodeName") if scope.kind is PODS else None


def _buckets_of(change: StoreChange) -> Iterator[tuple[ResourceKind, str | None]]:
    kind = change.new.kind
    yield kind, None
    if kind is PODS:
        nodes = {field_text(each.object, "spec.nodeName") for each in (change.old, change.new) if each is not None}
        for node in nodes:
            yield kind, node


def _gone(change: StoreChange) -> Stored:
    """The last state that matched, at the version of the change."""
    assert change.old is not None
    last = change.old.copy()
    last["metadata"]["resourceVersion"] = str(change.version)
    return make_stored(change.old.kind, last, change.version)
