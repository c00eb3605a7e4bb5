"""What was asked of the server lately, for tests that count API calls and for the demo's traffic view."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT = 10_000
"""requests remembered"""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request and its answer; status 0 is a connection that was cut."""

    method: str
    path: str
    query: str
    status: int
    agent: str = ""
    """who asked: the User-Agent"""

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD")


class RequestLog:
    """The last requests, oldest first. A watch is noted when it ends."""

    def __init__(self) -> None:
        self._seen: deque[LoggedRequest] = deque(maxlen=KEPT)

    def note(self, seen: LoggedRequest) -> None:
        self._seen.append(seen)

    def clear(self) -> None:
        self._seen.clear()

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(tuple(self._seen))

    def __len__(self) -> int:
        return len(self._seen)
