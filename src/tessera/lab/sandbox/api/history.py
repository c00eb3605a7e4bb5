"""The past changes of one kind, newest last, as far back as is kept.

Invariant: every change after `oldest` is here; a reader who needs an older one is told so instead of missing it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class History(Generic[T]):
    """A bounded log with versions that only grow."""

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
        """What came after `version`; None when part of that is forgotten."""
        if version < self.oldest:
            return None
        return islice(self._entries, bisect_right(self._versions, version), None)

    def forget(self, version: int) -> None:
        """Keeps nothing, and counts as complete only from `version` on."""
        self.oldest = version
        self._versions.clear()
        self._entries.clear()
