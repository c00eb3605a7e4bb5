"""Chooses records of a journal: those about a pod, a namespace or nodes, and those since a moment.

A journal without its older records is still complete: `begin_at` puts the state of that moment in their place. What
`RecordFilter` leaves is for reading only, because the state that decisions depend on is missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from tessera.inspect.replay import Entity, entity_of
from tessera.wire.journal import (
    Bind,
    Denied,
    Evicted,
    ForecastRecord,
    Gang,
    HostRecord,
    NodeRecord,
    NominationRecord,
    Placed,
    PodRecord,
    QuotaRecord,
    Record,
    Refused,
    Released,
    SnapshotEnd,
    Start,
    StateRecord,
    Unfinished,
    Woken,
)


class Subject(NamedTuple):
    """A pod, a node or both; empty where the record does not say."""

    namespace: str = ""
    name: str = ""
    """of the pod"""
    uid: str = ""
    node: str = ""

    @property
    def pod(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else ""


def subject_of(record: Record) -> Subject:
    """Of a gang or a quota, its namespace alone: it is no pod."""
    match record:
        case Placed() | Bind() | Released() | Evicted():
            return Subject(record.pod.namespace, record.pod.name, record.pod.uid, record.node)
        case Refused() | Unfinished() | Woken():
            return Subject(record.pod.namespace, record.pod.name, record.pod.uid)
        case PodRecord() | NominationRecord():
            held = record.state
            return (
                Subject(uid=record.uid) if held is None else Subject(held.namespace, held.name, record.uid, held.node)
            )
        case Denied():
            return Subject(record.namespace, record.name)
        case NodeRecord() | HostRecord():
            return Subject(node=record.name)
        case QuotaRecord() | Gang():
            return Subject(record.namespace)
    return Subject()


@dataclass(slots=True)
class RecordFilter:
    """Records that are about all that is given; nothing given means every record."""

    pod: str = ""
    namespace: str = ""
    nodes: frozenset[str] = frozenset()
    _pods: dict[str, Subject] = field(default_factory=dict)
    """by uid, all that were seen: what a pod no longer holds is recorded without its name"""

    def selects(self, record: Record) -> bool:
        """Call it for every record, in their order."""
        subject = found = subject_of(record)
        if found.uid and found.name:
            self._pods[found.uid] = found
        elif found.uid in self._pods:
            subject = self._pods.pop(found.uid) if isinstance(record, PodRecord) else self._pods[found.uid]
        if self.pod and subject.name != self.pod:
            return False
        if self.namespace and subject.namespace != self.namespace:
            return False
        return not self.nodes or found.node in self.nodes


class EventFilter:
    """Leaves out the state of the ledger, where it only repeats what other records say."""

    def __init__(self) -> None:
        self._in_snapshot = False

    def selects(self, record: Record) -> bool:
        """Call it for every record, in their order."""
        if isinstance(record, Start):
            self._in_snapshot = True
            return True
        if isinstance(record, SnapshotEnd):
            self._in_snapshot = False
            return False
        return not self._in_snapshot and not isinstance(record, (PodRecord, HostRecord, ForecastRecord))


async def begin_at(records: AsyncIterator[Record], moment: float) -> AsyncGenerator[Record, None]:
    """A complete journal that begins at this moment, or with the first state after it."""
    state = _StateAtMoment()
    has_begun = False
    async for record in records:
        if not has_begun and state.is_complete and record.time >= moment and not isinstance(record, Start):
            has_begun = True
            for one in state.records(moment):
                yield one
        if has_begun:
            yield record
        else:
            state.put(record)
    if not has_begun:
        for one in state.records(moment):
            yield one


class _StateAtMoment:
    """The newest record of everything, from which a journal may begin."""

    def __init__(self) -> None:
        self.is_complete = False
        self._start: Start | None = None
        self._begin = 0.0
        """time of the state that the journal itself begins with"""
        self._sequence = 0
        self._state: dict[Entity, StateRecord] = {}

    def put(self, record: Record) -> None:
        self._sequence = record.sequence
        if isinstance(record, Start):
            self._start, self._state, self.is_complete = record, {}, False
        elif isinstance(record, SnapshotEnd):
            self.is_complete, self._begin = True, record.time
        elif isinstance(record, StateRecord):
            if _is_gone(record):
                self._state.pop(entity_of(record), None)
            else:
                self._state[entity_of(record)] = record

    def records(self, moment: float) -> Iterator[Record]:
        """Start, state and its end; nothing if the journal has no state."""
        if self._start is None or not self.is_complete:
            return
        time = max(moment, self._begin)
        yield replace(self._start, time=time, sequence=self._sequence)
        yield from self._state.values()
        yield SnapshotEnd(time=time, sequence=self._sequence)


def _is_gone(record: StateRecord) -> bool:
    match record:
        case NodeRecord() | PodRecord():
            return record.state is None
        case QuotaRecord():
            return record.limits is None
        case HostRecord():
            return record.free is None
    return False
