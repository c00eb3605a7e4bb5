"""kube-scheduler's queue as a plain data structure: which pod is tried next, and which pods wait for what.

    added --> active --popped--> in flight --forgotten (bound, gone)-->
                ^                  |  |  +-- failed: an error ------------------------> back-off, served in full
                |                  |  +----- refused while something happened --------> back-off
                |                  +-------- refused ---------------------------------> asleep
                +-- back-off over, or no pod is active <------- back-off <-- something happened --+

No I/O and no clock: every call passes the time. The caller decides which changes count as an event.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import Enum

from tessera.kube.backoff import Backoff

BACKOFF = Backoff(initial=1.0, cap=10.0)
ASLEEP_S = 300.0
"""seconds after which a refused pod is tried again without an event; all these are kube-scheduler's defaults"""

NEVER = -1
"""a number of events that is never current"""


class QueuePosition(Enum):
    """Where a pod is in the queue."""

    ACTIVE = "active"
    IN_FLIGHT = "in flight"
    BACKOFF = "back-off after a refusal"
    ERROR_BACKOFF = "back-off after an error"
    ASLEEP = "asleep"


@dataclass(slots=True, eq=False)
class _Entry:
    uid: str
    priority: int
    place: QueuePosition
    turn: int
    """grows with every move; lower is served first, and heap items with another turn are stale"""
    refusals: int = 0
    errors: int = 0
    """in a row"""
    until: float = 0.0
    """end of the back-off"""
    asleep_since: float = 0.0
    events: int = NEVER
    """how many events there had been when it was popped"""


class SchedulingQueue:
    """Pending pods. A refused pod's back-off ends when no pod is active."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._active: list[tuple[int, int, str]] = []
        self._backoff: dict[QueuePosition, list[tuple[float, int, int, str]]] = {
            QueuePosition.BACKOFF: [],
            QueuePosition.ERROR_BACKOFF: [],
        }
        self._asleep: dict[str, _Entry] = {}
        self._turn = 0
        self._events = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    def place(self, uid: str) -> QueuePosition | None:
        entry = self._entries.get(uid)
        return entry.place if entry is not None else None

    def add(self, uid: str, *, priority: int = 0) -> None:
        """Adds a new pod; a known one stays where it is."""
        if uid not in self._entries:
            entry = self._entries[uid] = _Entry(uid, priority, QueuePosition.ACTIVE, 0)
            self._activate(entry)

    def forget(self, uid: str) -> None:
        """Bound, ended or deleted."""
        self._entries.pop(uid, None)
        self._asleep.pop(uid, None)

    def pop(self, now: float) -> str | None:
        """The pod to try now, which is in flight from here on."""
        self._settle(now)
        entry = self._first_active() or self._first_in_backoff(QueuePosition.BACKOFF)
        if entry is None:
            return None
        entry.place, entry.events = QueuePosition.IN_FLIGHT, self._events
        return entry.uid

    def refused(self, uid: str, now: float) -> None:
        """The pod fits on no node."""
        entry = self._landed(uid)
        if entry is None:
            return
        entry.errors = 0
        entry.refusals += 1
        entry.until = now + backoff_s(entry.refusals)
        if entry.events != self._events:
            self._back_off(entry, QueuePosition.BACKOFF)
        else:
            self._turn += 1
            entry.turn, entry.place, entry.asleep_since = self._turn, QueuePosition.ASLEEP, now
            self._asleep[uid] = entry

    def failed(self, uid: str, now: float) -> None:
        """The attempt itself failed. Events cannot help, so the pod waits for its whole back-off."""
        entry = self._landed(uid)
        if entry is not None:
            entry.errors += 1
            entry.until = now + backoff_s(entry.errors)
            self._back_off(entry, QueuePosition.ERROR_BACKOFF)

    def changed(self, uid: str, now: float) -> None:
        """The pod was changed, so its refusal no longer counts."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        entry.events = NEVER
        if entry.place is QueuePosition.ASLEEP:
            self._wake(entry, now)

    def happened(self, now: float) -> None:
        """Something happened that may make a refused pod fit: all of them are tried again."""
        self._events += 1
        for entry in list(self._asleep.values()):
            self._wake(entry, now)

    def next_at(self, now: float) -> float | None:
        """When `pop` will return a pod if nothing happens before; None if never."""
        self._settle(now)
        if self._peek_active() or self._peek_backoff(QueuePosition.BACKOFF):
            return now
        heads = [self._peek_backoff(place) for place in self._backoff]
        times = [entry.until for entry in heads if entry is not None]
        # Pods fall asleep in the order of time.
        times += [entry.asleep_since + ASLEEP_S for entry in list(self._asleep.values())[:1]]
        return min(times, default=None)

    def _settle(self, now: float) -> None:
        """Moves pods whose time has come."""
        for place in self._backoff:
            while (entry := self._peek_backoff(place)) is not None and entry.until <= now:
                heapq.heappop(self._backoff[place])
                self._activate(entry)
        while self._asleep:
            oldest = next(iter(self._asleep.values()))
            if oldest.asleep_since + ASLEEP_S > now:
                return
            self._wake(oldest, now)

    def _wake(self, entry: _Entry, now: float) -> None:
        self._asleep.pop(entry.uid, None)
        if entry.until <= now:
            self._activate(entry)
        else:
            self._back_off(entry, QueuePosition.BACKOFF)

    def _activate(self, entry: _Entry) -> None:
        self._turn += 1
        entry.turn, entry.place = self._turn, QueuePosition.ACTIVE
        heapq.heappush(self._active, (-entry.priority, entry.turn, entry.uid))

    def _back_off(self, entry: _Entry, place: QueuePosition) -> None:
        self._turn += 1
        entry.turn, entry.place = self._turn, place
        heapq.heappush(self._backoff[place], (entry.until, -entry.priority, entry.turn, entry.uid))

    def _landed(self, uid: str) -> _Entry | None:
        entry = self._entries.get(uid)
        return entry if entry is not None and entry.place is QueuePosition.IN_FLIGHT else None

    def _first_active(self) -> _Entry | None:
        entry = self._peek_active()
        if entry is not None:
            heapq.heappop(self._active)
        return entry

    def _first_in_backoff(self, place: QueuePosition) -> _Entry | None:
        entry = self._peek_backoff(place)
        if entry is not None:
            heapq.heappop(self._backoff[place])
        return entry

    def _peek_active(self) -> _Entry | None:
        while self._active:
            _, turn, uid = self._active[0]
            entry = self._entries.get(uid)
            if entry is not None and entry.place is QueuePosition.ACTIVE and entry.turn == turn:
                return entry
            heapq.heappop(self._active)
        return None

    def _peek_backoff(self, place: QueuePosition) -> _Entry | None:
        heap = self._backoff[place]
        while heap:
            _, _, turn, uid = heap[0]
            entry = self._entries.get(uid)
            if entry is not None and entry.place is place and entry.turn == turn:
                return entry
            heapq.heappop(heap)
        return None


def backoff_s(failures: int) -> float:
    """Seconds to wait after this many failures: 1, 2, 4, 8, 10, 10, ..."""
    return BACKOFF.ceiling(failures)
