"""What the API server knows: objects by kind, namespace and name, and one version that grows with every write.

Invariant: an object in the store is never changed, only replaced: snapshots, watches and cached bytes stay true.
Not here: rules about content, and who may write what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from tessera.lab.sandbox.api.history import History
from tessera.lab.sandbox.api.kinds import KINDS, Json, Kind

ENCODE = msgspec.json.Encoder().encode
DECODE = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One object at one version."""

    kind: Kind
    object: Json
    """read only; `copy` gives one to change"""
    bare: bytes
    """JSON without kind and apiVersion, as the items of a list have it"""
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
class Change:
    """One write: `old` is missing for a new object, `removed` when `new` is the last state of one that is gone."""

    version: int
    old: Stored | None
    new: Stored
    removed: bool = False


class Store:
    """All objects. Listeners hear of every change before the writer goes on."""

    def __init__(self, *, history_length: int) -> None:
        self.version = 1
        self._objects: dict[Kind, dict[str, dict[str, Stored]]] = {kind: {} for kind in KINDS}
        self._history: dict[Kind, History[Change]] = {kind: History(history_length) for kind in KINDS}
        self._touched: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> None:
        self._listeners.append(listener)

    def get(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        return self._objects[kind].get(namespace, {}).get(name)

    def list(self, kind: Kind, namespace: str = "") -> list[Stored]:
        """In the order of namespace and name; all namespaces when none is given."""
        held = self._objects[kind]
        if kind.namespaced and namespace:
            return _by_name(held.get(namespace, {}))
        return [stored for space in sorted(held) for stored in _by_name(held[space])]

    def touched(self, kind: Kind) -> int:
        """The version of the last change of this kind."""
        return self._touched[kind]

    def namespace_is_empty(self, namespace: str) -> bool:
        return not any(self._objects[kind].get(namespace) for kind in KINDS if kind.namespaced)

    def put(self, kind: Kind, content: Json) -> Stored:
        """Writes `content`, which the store owns from here on."""
        metadata = content["metadata"]
        space = self._objects[kind].setdefault(metadata.get("namespace", ""), {})
        old = space.get(metadata["name"])
        new = self._next(kind, content)
        space[metadata["name"]] = new
        self._record(Change(new.version, old, new))
        return new

    def remove(self, stored: Stored) -> Stored:
        """Takes the object out; the answer is its last state with the version of its removal."""
        space = self._objects[stored.kind][stored.namespace]
        del space[stored.name]
        if not space:
            del self._objects[stored.kind][stored.namespace]
        last = self._next(stored.kind, stored.copy())
        self._record(Change(last.version, stored, last, removed=True))
        return last

    def since(self, kind: Kind, version: int) -> Iterable[Change] | None:
        """The changes after `version`, or None when some of them are forgotten."""
        return self._history[kind].since(version)

    def oldest(self, kind: Kind) -> int:
        """The oldest version that a watch may start from."""
        return self._history[kind].oldest

    def compact(self) -> None:
        """Forgets every past change, as etcd does from time to time: only the present can be watched from."""
        # One version ahead of the last write, so that a client who has seen everything is too old as well.
        self.version += 1
        for history in self._history.values():
            history.forget(self.version)

    def _next(self, kind: Kind, content: Json) -> Stored:
        self.version += 1
        content["metadata"]["resourceVersion"] = str(self.version)
        return stored_from(kind, content, self.version)

    def _record(self, change: Change) -> None:
        kind = change.new.kind
        self._touched[kind] = change.version
        self._history[kind].append(change.version, change)
        for listener in self._listeners:
            listener(change)


def stored_from(kind: Kind, content: Json, version: int) -> Stored:
    """`content` in the order of fields that the wire has."""
    ordered = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": content["metadata"]}
    ordered |= content
    ordered |= {"kind": kind.kind, "apiVersion": kind.api_version}
    bare = {key: value for key, value in ordered.items() if key not in ("kind", "apiVersion")}
    return Stored(kind, ordered, ENCODE(bare), version)


def _heading(kind: Kind) -> bytes:
    return b'{"kind":"%b","apiVersion":"%b",' % (kind.kind.encode(), kind.api_version.encode())


def _by_name(space: dict[str, Stored]) -> list[Stored]:
    return [space[name] for name in sorted(space)]
