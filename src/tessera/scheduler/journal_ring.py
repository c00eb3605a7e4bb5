"""The entries of a journal, bounded in bytes, and the state before the first of them.

    base: the state after record N     ring: records N+1 ... newest
                    ^                            |
                    '---- the oldest leave ------'

What a state entry says goes into the base when the entry leaves, so base and ring are always a complete journal.
Nothing here makes records.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from tessera.scheduler.journal_entries import DecisionEntry, Entry, Key, StartEntry, StateEntry
from tessera.wire.journal import ForecastRecord

DROPPED_PART = 128
"""of the limit that leaves at once: many at a time take a third of the time that each takes alone, and all of them
together less than a millisecond"""


class JournalState:
    """The newest entry of each node, pod, quota, host and forecast, after one record."""

    def __init__(self, start: StartEntry) -> None:
        self.start = start
        self.time = start.time
        self.sequence = 0
        self._entries: dict[Key, tuple[int, Entry]] = {}
        self._forecasts: list[int] = []
        """ids of the forecasts that later decisions may refer to, oldest first"""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        """Each with the number of its record."""
        return iter(self._entries.values())

    def copy(self) -> JournalState:
        other = JournalState(self.start)
        other.time, other.sequence = self.time, self.sequence
        other._entries = self._entries.copy()
        other._forecasts = self._forecasts.copy()
        return other

    def apply(self, entry: Entry) -> None:
        """The next record."""
        self.sequence += 1
        self.time = entry.time
        if isinstance(entry, StateEntry):
            if isinstance(entry.name, int):  # Only forecasts have numbers.
                self._forecasts.append(entry.name)
            if entry.value:
                self._entries[entry.key] = self.sequence, entry
            else:
                self._entries.pop(entry.key, None)
        elif isinstance(entry, DecisionEntry):
            if entry.ask.forecast is not None:
                self._forget_forecasts(entry.ask.forecast)
        elif isinstance(entry, StartEntry):
            self.start = entry

    def _forget_forecasts(self, before: int) -> None:
        """Forecasts follow each other: a decision refers to none that is older than that of the decision before."""
        while self._forecasts and self._forecasts[0] < before:
            del self._entries[ForecastRecord, self._forecasts.pop(0)]


class JournalRing:
    """Entries are numbered from 1."""

    def __init__(self, start: StartEntry, *, limit: int) -> None:
        """`limit` in bytes; the newest entry is kept however large it is."""
        self.base = JournalState(start)
        self.sequence = 0
        """number of the newest entry; 0 before the first"""
        self.bytes = 0
        """estimated, of all entries"""
        self._limit = limit
        self._entries: list[Entry | None] = []
        self._sizes = array("I")
        self._left = 0
        """entries at the front of both that have left"""

    def append(self, entry: Entry, size: int) -> None:
        # Little else, and no further call: this is done for every record.
        self._sizes.append(size)
        self._entries.append(entry)
        self.sequence += 1
        self.bytes += size
        if self.bytes > self._limit:
            self._drop_oldest(self._limit - self._limit // DROPPED_PART)

    def after(self, sequence: int, most: int | None = None) -> Sequence[Entry]:
        """The entries after this one, which is in the ring or the last one before it."""
        begin = self._left + sequence - self.base.sequence
        entries = self._entries[begin:] if most is None else self._entries[begin : begin + most]
        return entries  # type: ignore[return-value]  # only those that have left are None

    def _drop_oldest(self, limit: int) -> None:
        """Until no more than `limit` bytes are left."""
        entries, sizes, left, size, apply = self._entries, self._sizes, self._left, self.bytes, self.base.apply
        newest = len(entries) - 1
        while size > limit and left < newest:
            entry = entries[left]
            assert entry is not None
            entries[left] = None
            size -= sizes[left]
            left += 1
            apply(entry)
        self._left, self.bytes = left, size
        if left > len(entries) // 2:
            del entries[:left]
            del sizes[:left]
            self._left = 0
