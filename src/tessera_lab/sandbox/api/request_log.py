"""The latest requests to the server, for tests that count API calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT = 10_000
"""how many requests are kept"""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request and the status of its response; 0 if the connection was cut."""

    method: str
    path: str
    query: str
    status: int
    agent: str = ""
    """the User-Agent"""

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD")


class RequestLog:
    """The latest requests, oldest first. A watch is added when it ends."""

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
