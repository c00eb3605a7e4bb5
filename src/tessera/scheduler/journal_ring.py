"""The entries of a journal, bounded in bytes, and the state before the first of them.

    base: the state after record N     ring: records N+1 ... newest
                    ^                            |
                    '---- the oldest leave ------'

What a state entry says goes into the base when the entry leaves, so base and ring are always a complete journal.

Making a record of a state or a decision takes longer than many a decision, and most leave the ring unread. So their
entries only refer to the core's frozen values; `record` makes the record, exactly as it would have been made at once.
Any other record is its own entry. Sizes, in bytes, are estimates from above: what an entry may be the only one to refer
to counts as its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.grants import Placement
from tessera.core.model.requests import Constraint, PodRequest
from tessera.wire import journal
from tessera.wire.cel import AllOf
from tessera.wire.journal import (
    CandidateMask,
    ForecastRecord,
    Note,
    Start,
    StateRecord,
)
from tessera.wire.journal_values import PodAsk, PodRef, grants_of

ENTRY_BYTES = 200
"""of an entry, its place in the ring and its time"""
POD_BYTES = 700
"""of a pod's names and what holds its grants"""
GRANT_BYTES, DEVICE_BYTES, LIMIT_BYTES, REASON_BYTES = 250, 900, 120, 120
"""of one of them, with its texts"""
FORECAST_BYTES, ASK_BYTES, NOTE_BYTES = 8_000, 1_500, 400
CONTAINER_BYTES, WORD_BYTES = 300, 100
"""of one of them in an ask, a word without its text"""
DECISION_BYTES = ENTRY_BYTES + POD_BYTES
"""of a decision without its grants"""


DROPPED_PART = 128
"""of the limit that leaves at once: many at a time take a third of the time that each takes alone, and all of them
together less than a millisecond"""

Name = str | tuple[str, str] | int
"""of a node or host, uid of a pod, namespace and name of a quota, number of a forecast"""
Key = tuple[type[StateRecord], Name]
"""what a state entry is about"""
Reasons = tuple[tuple[str, int], ...]
"""of a refusal: texts of misfits, and how many candidates each was given for"""


class StateEntry(msgspec.Struct, frozen=True, gc=False):
    """What a part of the state is from now on, as `of` of its record takes it. Like decisions it is not tracked by the
    garbage collector: there are many, and they form no cycles."""

    time: float
    kind: type[StateRecord]
    name: Name
    value: tuple[Any, ...] = ()
    """empty: it is not there any more"""

    @property
    def key(self) -> Key:
        return self.kind, self.name

    def record(self, sequence: int) -> StateRecord:
        make: Callable[..., StateRecord] = self.kind.of
        return make(self.name, *self.value, time=self.time, sequence=sequence)


class SharedAsk:
    """What pods that differ in name alone ask for; made when it is first read."""

    __slots__ = ("_made", "containers", "forecast", "granted_bytes", "request", "shape")

    def __init__(self, request: PodRequest, forecast: int | None) -> None:
        self.request = request
        """of the first of them"""
        self.containers = request.containers
        self.shape = request.shape
        self.forecast = forecast
        self.granted_bytes = GRANT_BYTES * sum([asked.count for _, asked in request.requests])
        """of the grants of one of them. Only a pod that is placed has them: others may ask for any number of cards"""
        self._made: PodAsk | None = None

    def size(self) -> int:
        """Bytes of the ask itself. Its words are those of annotations, which may be long."""
        constraints = [one for _, one in self.request.constraints]
        constraints += [asked.accepts for _, asked in self.request.requests if asked.accepts is not None]
        texts = [text for one in constraints for text in _texts(one)]
        return ASK_BYTES + CONTAINER_BYTES * len(self.containers) + WORD_BYTES * len(texts) + sum(map(len, texts))

    def value(self) -> PodAsk:
        if self._made is None:
            self._made = PodAsk.of(self.request, self.forecast)
        return self._made


def _texts(constraint: Constraint) -> Iterator[str]:
    yield from (*constraint.use_models, *constraint.avoid_models, *constraint.use_uuids, *constraint.avoid_uuids)
    yield from (uuid for uuid, _ in constraint.instances)
    yield constraint.mode or ""
    if isinstance(constraint.filter, AllOf):
        yield from constraint.filter.texts
    for _, value in constraint.extra:
        yield value


class DecisionEntry(msgspec.Struct, frozen=True, gc=False):
    """`ask` and masks are shared by many decisions, and counted where they are new."""

    time: float
    pod: PodRef
    ask: SharedAsk
    candidates: CandidateMask
    ledger_version: int
    microseconds: int
    answer: Placement | Reasons | None
    """None: it is not finished"""
    at_bind: bool = False
    refusals: int = 1
    of_gang: bool = False

    def record(self, sequence: int) -> journal.Decision:
        known: dict[str, Any] = {
            "time": self.time,
            "sequence": sequence,
            "pod": self.pod,
            "ask": self.ask.value(),
            "candidates": self.candidates,
            "ledger_version": self.ledger_version,
            "microseconds": self.microseconds,
        }
        answer, at_bind = self.answer, self.at_bind
        if answer is None:
            return journal.Unfinished(**known)
        if isinstance(answer, Placement):
            node, grants, score = answer
            return journal.Placed(**known, node=node, grants=grants_of(grants), score=score, at_bind=at_bind)
        reasons, refusals, of_gang = dict(answer), self.refusals, self.of_gang
        return journal.Refused(**known, reasons=reasons, refusals=refusals, at_bind=at_bind, of_gang=of_gang)


Entry = StateEntry | DecisionEntry | Note | Start
"""After `Start` the configuration is another one, and a reading shows the state with it."""


def pod_bytes(facts: PodFacts) -> int:
    """Bytes of what a pod holds."""
    grants = [len(container) for containers in facts.grants.values() for container in containers]
    return POD_BYTES + GRANT_BYTES * sum(grants)


class JournalState:
    """The newest entry of each node, pod, quota, host and forecast, after one record."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.time = start.time
        self.sequence = 0
        self._entries: dict[Key, tuple[int, StateEntry]] = {}
        self._forecasts: list[int] = []
        """ids of the forecasts that later decisions may refer to, oldest first"""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, StateEntry]]:
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
        elif isinstance(entry, Start):
            self.start = entry

    def _forget_forecasts(self, before: int) -> None:
        """Forecasts follow each other: a decision refers to none that is older than that of the decision before."""
        while self._forecasts and self._forecasts[0] < before:
            del self._entries[ForecastRecord, self._forecasts.pop(0)]


class JournalRing:
    """Entries are numbered from 1."""

    def __init__(self, start: Start, *, limit: int) -> None:
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
