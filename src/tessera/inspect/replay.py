"""Follows a journal: the ledger at any of its moments, and every decision made again with the same code.

A decision is a function of the ledger, the request and the set of candidates, and the journal has all three. So a
decision that comes out differently means that the code, or something that it depends on, is not what it was.
`JournalReplay` takes one record after the other and keeps no more than the ledger; `Timeline` keeps all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.search.selection import Candidates, Selected, Selector
from tessera.core.search.selection import Refused as RefusedAnswer
from tessera.inspect.state import InspectionError
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.registry import build_vendors
from tessera.wire.journal import (
    CandidateMask,
    Decision,
    ForecastRecord,
    HostRecord,
    NodeRecord,
    NominationRecord,
    Placed,
    PodRecord,
    QuotaRecord,
    Record,
    Refused,
    SnapshotEnd,
    Start,
    StateRecord,
    Unfinished,
)
from tessera.wire.journal_values import Grants, grants_of

BEST_NODES = 3
"""named beside a placement that differs"""

Entity = tuple[type[StateRecord], str, str]
"""what a state record is about"""


class BrokenJournal(InspectionError):
    """The records do not fit together, so what follows cannot be replayed."""


@dataclass(frozen=True, slots=True)
class PlacedOutcome:
    """A pod gets these slices of this node."""

    node: str
    grants: Grants
    score: float


@dataclass(frozen=True, slots=True)
class RefusedOutcome:
    """No candidate fits."""

    reasons: tuple[tuple[str, int], ...]
    """texts of misfits, and how many candidates each was given for; sorted"""


Outcome = PlacedOutcome | RefusedOutcome


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that comes out differently now."""

    decision: Placed | Refused
    recorded: Outcome
    decided: Outcome
    best: tuple[tuple[str, float], ...] = ()
    """the best nodes of the decision that was made now, with their scores, best first"""


@dataclass(slots=True)
class ReplayCounts:
    """How much of a journal was seen."""

    records: int = 0
    processes: int = 0
    """that wrote it, one after the other"""
    versions: list[str] = field(default_factory=list)
    """of Tessera that wrote it, each once"""
    checked: int = 0
    """decisions that were made again"""
    unfinished: int = 0
    """decisions that were not finished when they were recorded: there is nothing to compare with"""
    without_candidates: int = 0
    """decisions whose candidates were not recorded"""
    of_gangs: int = 0
    """refusals of members because their gang waits: there was no decision about the pod"""


class JournalReplay:
    """The ledger of the scheduler that wrote a journal, record by record."""

    def __init__(self) -> None:
        self.counts = ReplayCounts()
        self.ledger = Ledger({})
        self.selector = Selector(self.ledger)
        self.forecasts: dict[int, DemandForecast] = {}
        self.time = 0.0
        """of the last record"""
        self._start: Start | None = None
        self._vendors: dict[str, Vendor] = {}
        self._snapshot: set[Entity] | None = None
        """what the snapshot that is being read has so far; None outside of snapshots"""
        self._others: set[Entity] = set()
        """quotas and hosts in the ledger"""
        self._sequence = 0
        """of the last record"""
        self._candidates: tuple[int, CandidateMask, Candidates] | None = None
        """the last ones, with the epoch of the arrays: a backlog is refused with the same ones again and again"""

    def check(self, record: Record) -> Difference | None:
        """Makes a decision again; applies any other record. Raises BrokenJournal."""
        self.apply(record)
        if isinstance(record, Unfinished):
            self.counts.unfinished += 1
        return self._compare(record) if isinstance(record, (Placed, Refused)) else None

    def apply(self, record: Record) -> None:
        """Brings the ledger up to this record, without making decisions. Raises BrokenJournal."""
        self.counts.records += 1
        if isinstance(record, Start):
            self._begin(record)
            return
        if self._start is None:
            raise BrokenJournal(
                "it does not begin with the state of the ledger: its beginning is missing, or records were filtered out"
            )
        if self._snapshot is None:
            self._advance(record)
        if isinstance(record, StateRecord):
            if self._snapshot is not None:
                self._snapshot.add(entity_of(record))
            self._put(record)
        elif isinstance(record, SnapshotEnd):
            self._end_snapshot(record)

    def request(self, decision: Decision) -> PodRequest:
        """What the pod asked for."""
        try:
            return decision.ask.value(decision.pod, self._vendors, self.forecasts)
        except KeyError as error:
            raise BrokenJournal(f"record {decision.sequence} refers to forecast {error}, which is missing") from error

    def candidates(self, decision: Decision) -> Candidates | None:
        """The nodes that it could choose from, as the ledger is now; None if they are not recorded."""
        return None if decision.candidates is None else self._resolve(decision, decision.candidates)

    # -- decisions

    def _compare(self, decision: Placed | Refused) -> Difference | None:
        if isinstance(decision, Refused) and decision.of_gang:
            self.counts.of_gangs += 1
            return None
        made = self._decide(decision)
        if made is None:
            self.counts.without_candidates += 1
            return None
        self.counts.checked += 1
        recorded, decided = _recorded(decision), _outcome(made)
        if recorded == decided:
            return None
        best = tuple(reversed(made.best_decided(BEST_NODES))) if isinstance(made, Selected) else ()
        return Difference(decision, recorded, decided, best)

    def _decide(self, decision: Placed | Refused) -> Selected | RefusedAnswer | Placement | Misfit | None:
        """None if the candidates are not known."""
        request = self.request(decision)
        if isinstance(decision, Placed) and decision.at_bind:
            return self.ledger.fit(request, decision.node)
        candidates = self.candidates(decision)
        if candidates is None:
            return None
        if decision.at_bind:
            return self.ledger.fit(request, candidates.names[0]) if len(candidates) else None
        return self.selector.select(request, candidates)

    def _resolve(self, decision: Decision, mask: CandidateMask) -> Candidates:
        """The candidates, looked up. Equal ones are one object until a node comes or goes, so refusals are cached."""
        arrays, known = self.ledger.arrays, self._candidates
        if known is not None and known[0] == arrays.epoch and known[1] == mask:
            return known[2]
        order = arrays.order
        free = bisect_right(order.names, "")  # Columns without a node come first.
        nodes = len(order.names) - free
        named = np.zeros(len(order.names), dtype=np.bool_)
        if mask.mask is None:
            named[free:] = True
        elif len(mask.mask) != -(-nodes // 8):
            raise BrokenJournal(
                f"record {decision.sequence} chooses among other nodes than the {nodes} that are recorded"
            )
        else:
            named[free:] = np.unpackbits(np.frombuffer(mask.mask, dtype=np.uint8), count=nodes)
        # Only their number matters: no node has such a name.
        others = tuple(f"(unregistered {number})" for number in range(mask.others))
        candidates = Candidates(order, named, others)
        self._candidates = arrays.epoch, mask, candidates
        return candidates

    # -- state

    def _begin(self, start: Start) -> None:
        """A process or a file begins, or the process has another configuration."""
        before, self._start = self._start, start
        try:
            vendors = build_vendors(start.device_sections, Switches(start.enable_ascend, start.enable_iluvatar))
        except ValueError as error:
            raise BrokenJournal(f"the recorded device configuration cannot be used: {error}") from error
        if start.version not in self.counts.versions:
            self.counts.versions.append(start.version)
        self._snapshot, self.time = set(), start.time
        if before is None or before.identity != start.identity:
            self.counts.processes += 1
            self._vendors, self.forecasts, self._others = vendors, {}, set()
            self.ledger = Ledger(self._vendors)
            self.selector = Selector(self.ledger)
        else:
            self._vendors.clear()
            self._vendors.update(vendors)
            self.selector.forget()

    def _end_snapshot(self, end: SnapshotEnd) -> None:
        """Removes what the snapshot does not have: records before it were lost."""
        there, self._snapshot = self._snapshot or set(), None
        self._sequence, self.time = end.sequence, end.time
        ledger = self.ledger
        for entry in ledger.pods():
            if (PodRecord, entry.facts.uid, "") not in there:
                ledger.release(entry.facts.uid)
        for nomination in ledger.nominations.all():
            if (NominationRecord, nomination.facts.uid, "") not in there:
                ledger.withdraw(nomination.facts.uid)
        for name in ledger.node_names():
            if (NodeRecord, name, "") not in there:
                ledger.forget_node(name)
        for kind, name, object_name in self._others - there:
            if kind is HostRecord:
                ledger.forget_host(name)
            else:
                ledger.forget_quota(name, object_name)
        self._others &= there

    def _advance(self, record: Record) -> None:
        if record.sequence != self._sequence + 1:
            raise BrokenJournal(
                f"records {self._sequence + 1} to {record.sequence - 1} are missing, so the rest cannot be replayed"
            )
        self._sequence, self.time = record.sequence, record.time

    def _put(self, record: StateRecord) -> None:
        ledger = self.ledger
        if isinstance(record, (QuotaRecord, HostRecord)):
            self._others.add(entity_of(record))
        match record:
            case NodeRecord(state=None):
                ledger.forget_node(record.name)
            case NodeRecord(state=node) if node is not None:
                ledger.observe_node(node.value(record.name))
            case PodRecord(state=None):
                ledger.release(record.uid)
            case PodRecord(state=pod) if pod is not None:
                ledger.put_pod(pod.value(record.uid), GrantState(record.grants), observed=record.observed)
            case NominationRecord(state=None):
                ledger.withdraw(record.uid)
            case NominationRecord(state=claim) if claim is not None:
                ledger.nominate(claim.value(record.uid), frozenset(record.victims))
            case QuotaRecord():
                facts = record.value()
                if facts is None:
                    ledger.forget_quota(record.namespace, record.name)
                else:
                    ledger.observe_quota(facts)
            case HostRecord(free=None):
                ledger.forget_host(record.name)
            case HostRecord(free=free) if free is not None:
                ledger.observe_host(record.name, HostRequest(free.cpu, free.memory))
            case ForecastRecord():
                self.forecasts[record.id] = record.forecast.value()


def entity_of(record: StateRecord) -> Entity:
    match record:
        case PodRecord():
            return PodRecord, record.uid, ""
        case NominationRecord():
            return NominationRecord, record.uid, ""
        case QuotaRecord():
            return QuotaRecord, record.namespace, record.name
        case ForecastRecord():
            return ForecastRecord, str(record.id), ""
    return type(record), record.name, ""


def _recorded(decision: Placed | Refused) -> Outcome:
    if isinstance(decision, Placed):
        return PlacedOutcome(decision.node, decision.grants, decision.score)
    return RefusedOutcome(tuple(sorted(decision.reasons.items())))


def _outcome(made: Selected | RefusedAnswer | Placement | Misfit) -> Outcome:
    match made:
        case Selected():
            return _outcome(made.placement)
        case Placement():
            return PlacedOutcome(made.node, grants_of(made.grants), made.score)
        case Misfit():
            return RefusedOutcome(((made.text, 1),))
    return RefusedOutcome(tuple(sorted(made.reason_counts)))


# -- all of it


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster at one moment of a journal."""

    time: float
    ledger: Ledger
    """changes when the timeline is asked about another moment"""


class Timeline:
    """All records of a journal, and the ledger at any moment of them. Going forward costs only what happened since."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self._replay = JournalReplay()
        self._applied = 0
        self._reached = 0.0

    def extend(self, records: Iterable[Record]) -> None:
        """Adds what happened since."""
        self.records.extend(records)

    @property
    def begin(self) -> float:
        """Time of the oldest state that is known."""
        return next((record.time for record in self.records if isinstance(record, SnapshotEnd)), 0.0)

    @property
    def end(self) -> float:
        return self.records[-1].time if self.records else 0.0

    def at(self, time: float) -> Moment:
        """The ledger as it was then, or at the beginning for a time before that."""
        for _ in self.seek(time):
            pass
        return self.moment

    def seek(self, time: float) -> Iterator[None]:
        """Bring the ledger to this time, one record per step, so that other work can be done between two."""
        until = max(time, self.begin)
        if self._replay.time > until:
            self._replay, self._applied = JournalReplay(), 0
        while self._applied < len(self.records):
            record = self.records[self._applied]
            # The state of a snapshot may be older than the snapshot.
            if record.time > until:
                break
            self._replay.apply(record)
            self._applied += 1
            yield
        self._reached = until

    def request(self, decision: Decision) -> PodRequest:
        """What the pod of a decision up to the last `seek` asked for."""
        return self._replay.request(decision)

    @property
    def moment(self) -> Moment:
        """Where the last complete `seek` went."""
        return Moment(self._reached, self._replay.ledger)
