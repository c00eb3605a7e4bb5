"""What the journal keeps of each record until it is read: references to the core's frozen values, and their size.

Making a struct of `wire.journal` takes longer than many a decision, and most records leave the ring unread. So an entry
only refers to what it is about; `record` makes the struct, exactly as it would have been made at once. Sizes, in bytes,
are estimates from above: what an entry may be the only one to refer to counts as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tessera.core.grants import Grants, Placement
from tessera.core.requests import Constraint, PodRequest
from tessera.wire import journal
from tessera.wire.cel import AllOf
from tessera.wire.journal import CandidateMask, Record, StateRecord
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


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One record. Not tracked by the garbage collector: there are many, and they form no cycles."""

    time: float

    def record(self, sequence: int) -> Record:
        """The record, with its number."""
        raise NotImplementedError


Name = str | tuple[str, str] | int
"""of a node or host, uid of a pod, namespace and name of a quota, number of a forecast"""
Key = tuple[type[StateRecord], Name]
"""what a state entry is about"""


class StateEntry(Entry, frozen=True, gc=False):
    """What a part of the state is from now on, as `of` of its record takes it."""

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


class StartEntry(Entry, frozen=True, gc=False):
    """The configuration is another one from here on. A reading shows the state with it."""

    start: journal.Start


class NoteEntry(Entry, frozen=True, gc=False):
    """A record that is small, or rare, and was made at once."""

    note: Record

    def record(self, sequence: int) -> Record:
        return self.note


class SearchedList(msgspec.Struct, frozen=True, gc=False):
    """A list of candidates that was only searched; `CandidateMask.searched`."""

    count: int
    nodes: int
    """of the ledger's arrays"""
    absent: tuple[int, ...]
    """places of nodes that the list does not name"""

    def mask(self) -> CandidateMask:
        if not self.absent:
            return CandidateMask(self.count, searched=True)
        bits = bytearray(b"\xff" * (self.nodes // 8))
        if self.nodes % 8:
            bits.append(0xFF << (-self.nodes % 8) & 0xFF)
        for place in self.absent:
            bits[place // 8] &= ~(0x80 >> place % 8)
        return CandidateMask(self.count, bytes(bits), searched=True)


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


class DecisionEntry(Entry, frozen=True, gc=False):
    """What is common to decisions. `ask` and masks are shared by many of them, and counted where they are new."""

    pod: PodRef
    ask: SharedAsk
    candidates: CandidateMask | SearchedList | None
    ledger_version: int
    microseconds: int

    def _fields(self, sequence: int) -> dict[str, Any]:
        """The fields of the record that it becomes."""
        candidates = self.candidates
        return {
            "time": self.time,
            "sequence": sequence,
            "pod": self.pod,
            "ask": self.ask.value(),
            "candidates": candidates.mask() if isinstance(candidates, SearchedList) else candidates,
            "ledger_version": self.ledger_version,
            "microseconds": self.microseconds,
        }


class PlacedEntry(DecisionEntry, frozen=True, gc=False):
    placement: Placement
    at_bind: bool = False

    def record(self, sequence: int) -> journal.Placed:
        node, grants, score = self.placement
        made = grants_of(grants)
        return journal.Placed(**self._fields(sequence), node=node, grants=made, score=score, at_bind=self.at_bind)


class RefusedEntry(DecisionEntry, frozen=True, gc=False):
    reasons: tuple[tuple[str, int], ...]
    refusals: int = 1
    at_bind: bool = False
    of_gang: bool = False

    def record(self, sequence: int) -> journal.Refused:
        return journal.Refused(
            **self._fields(sequence),
            reasons=dict(self.reasons),
            refusals=self.refusals,
            at_bind=self.at_bind,
            of_gang=self.of_gang,
        )


class UnfinishedEntry(DecisionEntry, frozen=True, gc=False):
    def record(self, sequence: int) -> journal.Unfinished:
        return journal.Unfinished(**self._fields(sequence))


def count_grants(grants: Mapping[str, tuple[Grants, ...]]) -> int:
    return sum([len(container) for containers in grants.values() for container in containers])
