"""The latest events, as bytes that all viewers share.

A viewer has no queue: it remembers the version that it has seen and reads on from there. If the log no longer reaches
back that far, because the viewer is slow or was away, the viewer is told to fetch the whole state again (`resync`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

MAX_EVENTS = 2_000
"""some eight minutes of events, at four a second"""
MAX_BYTES = 16 * 2**20
"""of events; about the size of the whole state of the largest clusters"""
PIECE_BYTES = 256 * 2**10
"""after which no other event is sent at once: a viewer that does not read holds no more than that"""
HEARTBEAT_S = 15.0
"""a proxy that sees nothing for longer may end the stream"""
HEARTBEAT = b": still here\n\n"
RESYNC = b"event: resync\ndata: {}\n\n"


def encode_event(name: str, data: bytes, version: int) -> bytes:
    """`data` is JSON, which has no line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (version, name.encode(), data)


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    data: bytes


class EventLog:
    """Events in the order of their versions. Used from one event loop."""

    def __init__(self, first_version: int) -> None:
        self.version = self._oldest = first_version
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._changed: asyncio.Future[None] | None = None
        self._is_closed = False

    def append(self, name: str, data: bytes) -> None:
        self.version += 1
        entry = _Entry(self.version, encode_event(name, data, self.version))
        self._entries.append(entry)
        self._bytes += len(entry.data)
        while len(self._entries) > MAX_EVENTS or self._bytes > MAX_BYTES:
            gone = self._entries.popleft()
            self._bytes -= len(gone.data)
            self._oldest = gone.version
        self._wake()

    def start_over(self) -> None:
        """What viewers have is void: all of them fetch the state again."""
        self.version += 1
        self._oldest = self.version
        self._entries.clear()
        self._bytes = 0
        self._wake()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._wake()

    def reaches(self, version: int) -> bool:
        """Whether a viewer of this version can go on with the events of the log."""
        return self._oldest <= version <= self.version

    async def stream(self, version: int) -> AsyncGenerator[bytes, None]:
        """Events after `version`, until the log is closed."""
        # At once, so that the viewer knows that it is connected.
        yield HEARTBEAT
        while not self._is_closed:
            if not self.reaches(version):
                yield RESYNC
                return
            if version < self.version:
                news, version = self._after(version)
                yield news
            else:
                yield await self._wait()

    def _after(self, version: int) -> tuple[bytes, int]:
        """The next events, and the version that the viewer has with them."""
        news: list[bytes] = []
        size = 0
        for entry in self._entries:
            if entry.version <= version:
                continue
            news.append(entry.data)
            version, size = entry.version, size + len(entry.data)
            if size >= PIECE_BYTES:
                break
        return b"".join(news), version

    async def _wait(self) -> bytes:
        """Empty when there is something new, or a heartbeat when there was nothing for long."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(asyncio.shield(self._changed), HEARTBEAT_S)
        except TimeoutError:
            return HEARTBEAT
        return b""

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None
