"""The API server's objects by kind, namespace and name, with one version that grows with every write.

Invariant: a stored object is never changed, only replaced, so that snapshots, watches and cached bytes stay valid.
Every change after `oldest` is kept; a reader that needs an older one is told so. Rules about content are elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar, cast

import msgspec

from tessera_lab.sandbox.api.kinds import KINDS, Json, ResourceKind

KEPT = 5_000
"""changes kept per kind, about 10 KB each for pods; older watches get 410"""

T = TypeVar("T")


class History(Generic[T]):
    """The past changes of one kind: a bounded log, newest last."""

    def __init__(self, length: int) -> None:
        self.oldest = 0
        self._versions: deque[int] = deque()
        self._entries: deque[T] = deque()
        self._length = length

    def append(self, version: int, entry: T) -> None:
        self._versions.append(version)
        self._entries.append(entry)
        while len(self._entries) > self._length:
            self.oldest = self._versions.popleft()
            self._entries.popleft()

    def since(self, version: int) -> Iterable[T] | None:
        """What came after `version`; None if part of that is forgotten."""
        if version < self.oldest:
            return None
        return islice(self._entries, bisect_right(self._versions, version), None)

    def forget(self, version: int) -> None:
        """Drops everything; the log is complete only from `version` on."""
        self.oldest = version
        self._versions.clear()
        self._entries.clear()


ENCODE = msgspec.json.Encoder().encode
DECODE = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One object at one version."""

    kind: ResourceKind
    object: Json
    """read only; `copy` gives one to change"""
    bare: bytes
    """JSON without kind and apiVersion, as in the items of a list"""
    version: int

    @property
    def namespace(self) -> str:
        return cast(str, self.object["metadata"].get("namespace", ""))

    @property
    def name(self) -> str:
        return cast(str, self.object["metadata"]["name"])

    @property
    def uid(self) -> str:
        return cast(str, self.object["metadata"]["uid"])

    @property
    def whole(self) -> bytes:
        """JSON with kind and apiVersion."""
        return _heading(self.kind) + self.bare[1:]

    def copy(self) -> Json:
        """The object as fresh data: decoding is several times faster than copying."""
        return cast(Json, DECODE(self.whole))


@dataclass(frozen=True, slots=True, eq=False)
class StoreChange:
    """One write. `old` is None for a new object; with `removed`, `new` is the last state of a deleted one."""

    version: int
    old: Stored | None
    new: Stored
    removed: bool = False


class Store:
    """All objects. Listeners are called for every change before the write returns."""

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[ResourceKind, dict[str, dict[str, Stored]]] = {kind: {} for kind in KINDS}
        self._history: dict[ResourceKind, History[StoreChange]] = {kind: History(KEPT) for kind in KINDS}
        self._touched: dict[ResourceKind, int] = dict.fromkeys(KINDS, 0)
        self._listeners: list[Callable[[StoreChange], None]] = []

    def listen(self, listener: Callable[[StoreChange], None]) -> None:
        self._listeners.append(listener)

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Stored | None:
        return self._objects[kind].get(namespace, {}).get(name)

    def list(self, kind: ResourceKind, namespace: str = "") -> list[Stored]:
        """Sorted by namespace and name; all namespaces if none is given."""
        held = self._objects[kind]
        if kind.namespaced and namespace:
            return _by_name(held.get(namespace, {}))
        return [stored for space in sorted(held) for stored in _by_name(held[space])]

    def touched(self, kind: ResourceKind) -> int:
        """The version of the last change of this kind."""
        return self._touched[kind]

    def namespace_is_empty(self, namespace: str) -> bool:
        return not any(self._objects[kind].get(namespace) for kind in KINDS if kind.namespaced)

    def put(self, kind: ResourceKind, content: Json) -> Stored:
        """Stores `content`. The caller must not change it afterwards."""
        metadata = content["metadata"]
        space = self._objects[kind].setdefault(metadata.get("namespace", ""), {})
        old = space.get(metadata["name"])
        new = self._next(kind, content)
        space[metadata["name"]] = new
        self._record(StoreChange(new.version, old, new))
        return new

    def remove(self, stored: Stored) -> Stored:
        """Removes the object; returns its last state with the version of the removal."""
        space = self._objects[stored.kind][stored.namespace]
        del space[stored.name]
        if not space:
            del self._objects[stored.kind][stored.namespace]
        last = self._next(stored.kind, stored.copy())
        self._record(StoreChange(last.version, stored, last, removed=True))
        return last

    def since(self, kind: ResourceKind, version: int) -> Iterable[StoreChange] | None:
        """The changes after `version`, or None if some of them are forgotten."""
        return self._history[kind].since(version)

    def oldest(self, kind: ResourceKind) -> int:
        """The oldest version that a watch may start from."""
        return self._history[kind].oldest

    def compact(self) -> None:
        """Forgets all past changes, as etcd does from time to time."""
        # One version ahead of the last write, so that even a client that has seen everything is too old.
        self.version += 1
        for history in self._history.values():
            history.forget(self.version)

    def _next(self, kind: ResourceKind, content: Json) -> Stored:
        self.version += 1
        content["metadata"]["resourceVersion"] = str(self.version)
        return make_stored(kind, content, self.version)

    def _record(self, change: StoreChange) -> None:
        kind = change.new.kind
        self._touched[kind] = change.version
        self._history[kind].append(change.version, change)
        for listener in self._listeners:
            listener(change)


def make_stored(kind: ResourceKind, content: Json, version: int) -> Stored:
    """Orders the fields of `content` as kube-apiserver writes them."""
    ordered = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": content["metadata"]}
    ordered |= content
    ordered |= {"kind": kind.kind, "apiVersion": kind.api_version}
    bare = {key: value for key, value in ordered.items() if key not in ("kind", "apiVersion")}
    return Stored(kind, ordered, ENCODE(bare), version)


def _heading(kind: ResourceKind) -> bytes:
    return b'{"kind":"%b","apiVersion":"%b",' % (kind.kind.encode(), kind.api_version.encode())


def _by_name(space: dict[str, Stored]) -> list[Stored]:
    return [space[name] for name in sorted(space)]
