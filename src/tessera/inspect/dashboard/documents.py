"""The state of a cluster as one JSON document, and what of it is newer than a version.

    {version, since, time, source, nodes: {name: node}, waiting: {uid: row}, totals}

The whole state has no `since`. After a version, only the nodes and rows that changed are there, as they are now, and
`totals` if it changed; null for what is gone. A viewer who does not take part for a while misses nothing but the states
between, and one whose version is too old gets the whole state. So a viewer has no queue and no history here, and all
viewers who are equally far get the same bytes, made once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from tessera.inspect.state import Json

encode = msgspec.json.Encoder().encode

NODES, WAITING = "nodes", "waiting"
TOTALS = ("", "totals")
MAX_GONE = 4_000
"""nodes and rows that are gone and are told of; who does not know an earlier one gets the whole state"""
LEVEL = 1
"""of compression: four times faster than the default, a fifth larger"""

Key = tuple[str, str]
"""of a part of the document: the member that it is in, or empty, and its name there"""


class Part(NamedTuple):
    """A node, a row or the totals."""

    version: int
    """at which it changed last"""
    member: bytes
    """with its name; null if it is gone"""
    is_gone: bool


class Parts:
    """The parts of a state, in the order in which they changed last."""

    def __init__(self, first_version: int) -> None:
        self.version = self._oldest = first_version
        self._parts: dict[Key, Part] = {}
        self._gone: dict[Key, None] = {}
        self._is_changed = False

    def put(self, key: Key, body: bytes | None) -> None:
        """Does nothing if the part is the same already. None: it is gone."""
        part, before = Part(self.version + 1, member(key, body), body is None), self._parts.get(key)
        if part.member == before.member if before is not None else part.is_gone:
            return
        self._is_changed = True
        self._parts.pop(key, None)
        self._parts[key] = part
        self._gone.pop(key, None)
        if not part.is_gone:
            return
        self._gone[key] = None
        if len(self._gone) > MAX_GONE:
            forgotten = next(iter(self._gone))
            del self._gone[forgotten]
            self._oldest = self._parts.pop(forgotten).version

    def touch(self) -> None:
        """Something beside the parts has changed."""
        self._is_changed = True

    def publish(self) -> bool:
        """What was put since the last call is news from now on; False if nothing was."""
        self.version += self._is_changed
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    def clear(self) -> None:
        """What viewers know is void."""
        self._parts.clear()
        self._gone.clear()
        self.version += 1
        self._oldest = self.version

    def reaches(self, version: int) -> bool:
        """Whether `after` has all that a viewer of this version needs."""
        return self._oldest <= version <= self.version

    def all(self) -> Iterator[tuple[Key, bytes]]:
        return ((key, part.member) for key, part in self._parts.items() if not part.is_gone)

    def after(self, version: int) -> Iterator[tuple[Key, bytes]]:
        """The parts that changed after this version."""
        for key, part in reversed(self._parts.items()):
            if part.version <= version:
                return
            yield key, part.member


def member(key: Key, body: bytes | None) -> bytes:
    return encode(key[1]) + b":" + (b"null" if body is None else body)


def state_pieces(head: Json, parts: Iterable[tuple[Key, bytes]]) -> list[bytes]:
    """The document, to be joined."""
    members: dict[str, list[bytes]] = {"": [encode(head)[1:-1]], NODES: [], WAITING: []}
    for (inside, _), part in parts:
        members[inside].append(part)
    pieces = [b"{", b",".join(members.pop(""))]
    for name, listed in members.items():
        pieces += (b',"%s":{' % name.encode(), b",".join(listed), b"}")
    return [*pieces, b"}"]


def compress(pieces: Iterable[bytes]) -> bytes:
    # zlib releases the interpreter; 16 added to the window's size makes a gzip file.
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(b"".join(pieces)) + packer.flush()
