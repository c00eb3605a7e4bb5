"""What the journal keeps of each record until it is read: references to the core's frozen values, and their size.

Making a struct of `wire.journal` takes longer than many a decision, and most records leave the ring unread. So an entry
only refers to what it is about; `record` makes the struct, exactly as it would have been made at once. Sizes, in bytes,
are estimates from above: what an entry may be the only one to refer to counts as its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tessera.core.demand_forecast import DemandForecast
from tessera.core.devices import NodeFacts
from tessera.core.grants import Grants, Placement
from tessera.core.holdings import PodFacts
from tessera.core.ledger import GrantState
from tessera.core.quota import QuotaFacts
from tessera.core.requests import Constraint, HostRequest, PodRequest
from tessera.wire import journal
from tessera.wire.cel import AllOf
from tessera.wire.journal import CandidateMask, PodAsk, PodRef, Record

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

Key = tuple[str, ...]
"""what a state entry is about"""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One record. Not tracked by the garbage collector: there are many, and they form no cycles."""

    time: float

    @property
    def key(self) -> Key | None:
        """Which part of the state it sets; None if it changes nothing."""
        return None

    @property
    def is_gone(self) -> bool:
        """Whether that part is not there any more."""
        return False

    def record(self, sequence: int) -> Record:
        """The record, with its number."""
        raise NotImplementedError


class NodeEntry(Entry, frozen=True, gc=False):
    name: str
    facts: NodeFacts | None

    @property
    def key(self) -> Key:
        return "node", self.name

    @property
    def is_gone(self) -> bool:
        return self.facts is None

    def record(self, sequence: int) -> journal.NodeRecord:
        state = None if self.facts is None else journal.NodeState.of(self.facts)
        return journal.NodeRecord(time=self.time, sequence=sequence, name=self.name, state=state)


class PodEntry(Entry, frozen=True, gc=False):
    uid: str
    facts: PodFacts | None
    grants: GrantState = GrantState.BOUND
    observed: bool = False

    @property
    def key(self) -> Key:
        return "pod", self.uid

    @property
    def is_gone(self) -> bool:
        return self.facts is None

    def record(self, sequence: int) -> journal.PodRecord:
        if self.facts is None:
            return journal.PodRecord(time=self.time, sequence=sequence, uid=self.uid)
        return journal.PodRecord(
            time=self.time,
            sequence=sequence,
            uid=self.uid,
            state=journal.PodState.of(self.facts),
            grants="reserved" if self.grants is GrantState.RESERVED else "bound",
            observed=self.observed,
        )


class NominationEntry(Entry, frozen=True, gc=False):
    uid: str
    facts: PodFacts | None
    victims: frozenset[str] | None

    @property
    def key(self) -> Key:
        return "nomination", self.uid

    @property
    def is_gone(self) -> bool:
        return self.facts is None

    def record(self, sequence: int) -> journal.NominationRecord:
        if self.facts is None:
            return journal.NominationRecord(time=self.time, sequence=sequence, uid=self.uid)
        return journal.NominationRecord(
            time=self.time,
            sequence=sequence,
            uid=self.uid,
            state=journal.PodState.of(self.facts),
            victims=tuple(sorted(self.victims or ())),
        )


class QuotaEntry(Entry, frozen=True, gc=False):
    namespace: str
    name: str
    facts: QuotaFacts | None

    @property
    def key(self) -> Key:
        return "quota", self.namespace, self.name

    @property
    def is_gone(self) -> bool:
        return self.facts is None

    def record(self, sequence: int) -> journal.QuotaRecord:
        limits = None if self.facts is None else dict(self.facts.limits)
        return journal.QuotaRecord(
            time=self.time, sequence=sequence, namespace=self.namespace, name=self.name, limits=limits
        )


class HostEntry(Entry, frozen=True, gc=False):
    name: str
    free: HostRequest | None

    @property
    def key(self) -> Key:
        return "host", self.name

    @property
    def is_gone(self) -> bool:
        return self.free is None

    def record(self, sequence: int) -> journal.HostRecord:
        free = None if self.free is None else journal.Host(self.free.cpu, self.free.memory)
        return journal.HostRecord(time=self.time, sequence=sequence, name=self.name, free=free)


class ForecastEntry(Entry, frozen=True, gc=False):
    id: int
    forecast: DemandForecast

    @property
    def key(self) -> Key:
        return "forecast", str(self.id)

    def record(self, sequence: int) -> journal.ForecastRecord:
        forecast = journal.Forecast.of(self.forecast)
        return journal.ForecastRecord(time=self.time, sequence=sequence, id=self.id, forecast=forecast)


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

    @property
    def _mask(self) -> CandidateMask | None:
        return self.candidates.mask() if isinstance(self.candidates, SearchedList) else self.candidates


class PlacedEntry(DecisionEntry, frozen=True, gc=False):
    placement: Placement
    at_bind: bool = False

    def record(self, sequence: int) -> journal.Placed:
        return journal.Placed(
            time=self.time,
            sequence=sequence,
            pod=self.pod,
            ask=self.ask.value(),
            candidates=self._mask,
            ledger_version=self.ledger_version,
            microseconds=self.microseconds,
            node=self.placement.node,
            grants=journal.grants_of(self.placement.grants),
            score=self.placement.score,
            at_bind=self.at_bind,
        )


class RefusedEntry(DecisionEntry, frozen=True, gc=False):
    reasons: tuple[tuple[str, int], ...]
    refusals: int = 1
    at_bind: bool = False
    of_gang: bool = False

    def record(self, sequence: int) -> journal.Refused:
        return journal.Refused(
            time=self.time,
            sequence=sequence,
            pod=self.pod,
            ask=self.ask.value(),
            candidates=self._mask,
            ledger_version=self.ledger_version,
            microseconds=self.microseconds,
            reasons=dict(self.reasons),
            refusals=self.refusals,
            at_bind=self.at_bind,
            of_gang=self.of_gang,
        )


class UnfinishedEntry(DecisionEntry, frozen=True, gc=False):
    def record(self, sequence: int) -> journal.Unfinished:
        return journal.Unfinished(
            time=self.time,
            sequence=sequence,
            pod=self.pod,
            ask=self.ask.value(),
            candidates=self._mask,
            ledger_version=self.ledger_version,
            microseconds=self.microseconds,
        )


def count_grants(grants: Mapping[str, tuple[Grants, ...]]) -> int:
    return sum([len(container) for containers in grants.values() for container in containers])
