"""When scripted and pushed events happen. An event that was read once happens once, however often the file is read.

Events wait until somebody listens to their card: a script need not know how fast an agent starts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tessera.node.inventory.cards import CardEvent


@dataclass(frozen=True, slots=True)
class Due:
    """An event and its time."""

    at: float
    event: CardEvent
    lost: str = ""
    """why its card cannot be read from then on"""


class Script:
    """Filled from any thread; `next` is for one listener."""

    def __init__(self) -> None:
        self._known: Counter[Due] = Counter()
        self._pending: list[Due] = []
        self._news = threading.Event()

    def read(self, entries: Iterable[Due], *, now: float) -> None:
        """All events of the file as it is now; `at` counts from when an entry is seen for the first time."""
        seen = Counter(entries)
        for entry, times in (seen - self._known).items():
            self._pending.extend([replace(entry, at=now + entry.at)] * times)
        self._known |= seen
        self._news.set()

    def push(self, event: CardEvent, *, now: float) -> None:
        self._pending.append(Due(now, event))
        self._news.set()

    def next(self, listened: Collection[str], *, now: float) -> Due | None:
        """The earliest event that is due, and from now on no longer."""
        due = [each for each in self._audible(listened) if each.at <= now]
        if not due:
            return None
        first = min(due, key=lambda each: each.at)
        self._pending.remove(first)
        return first

    def sleep(self, timeout: float, listened: Collection[str], *, now: float) -> None:
        """Until there may be something new, no longer than `timeout` seconds."""
        times = [each.at - now for each in self._audible(listened)]
        self._news.wait(max(0.0, min([timeout, *times])))
        self._news.clear()

    def wake(self) -> None:
        self._news.set()

    def _audible(self, listened: Collection[str]) -> list[Due]:
        # A copy: others may add meanwhile.
        return [each for each in tuple(self._pending) if each.event.uuid is None or each.event.uuid in listened]
