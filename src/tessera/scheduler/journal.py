"""The decision journal of a running scheduler: every change of the ledger and every decision, in memory.

The ring holds references to the core's frozen values, not text, so that recording costs little. When it is full, the
oldest records leave. What a state record says then goes into the base, so base and ring are always a complete journal.
Reading converts to the structs of `wire.journal`, a few at a time. A decision stands before the change that it causes.

What is told is kept as it is, with its time, and recorded some events later, in the same order: a decision about many
nodes leaves nothing of the journal in the processor's caches, so recording it at once takes three times as long.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import structlog

from tessera import __version__
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.arrays import CardArrays, NameOrder
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.devices import NodeFacts
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.search.selection import Candidates, Refused, Selected, Unfinished
from tessera.core.search.victims import PodTraits
from tessera.scheduler.journal_ring import (
    DECISION_BYTES,
    DEVICE_BYTES,
    ENTRY_BYTES,
    FORECAST_BYTES,
    LIMIT_BYTES,
    NOTE_BYTES,
    POD_BYTES,
    REASON_BYTES,
    DecisionEntry,
    Entry,
    JournalRing,
    JournalState,
    Name,
    Reasons,
    SharedAsk,
    StateEntry,
    pod_bytes,
)
from tessera.scheduler.observer import (
    BindDecision,
    BindEvent,
    EvictedEvent,
    FilterDecision,
    GangEvent,
    ReleasedEvent,
    SchedulerObserver,
)
from tessera.scheduler.requests.candidate_lists import CandidateList
from tessera.scheduler.settings import Settings
from tessera.wire import journal
from tessera.wire.journal import (
    CandidateMask,
    ForecastRecord,
    HostRecord,
    NodeRecord,
    NominationRecord,
    Note,
    PodRecord,
    QuotaRecord,
    Record,
    Start,
    StateRecord,
)
from tessera.wire.journal_values import PodRef
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)

AT_ONCE = 24
"""records made before other work gets its turn: about a millisecond for nodes with eight cards"""
APPLIED_AT_ONCE = 2_000
"""entries applied to a state before other work gets its turn: less than a millisecond"""
ASKS = 1_024
"""different requests that are kept; then all are made afresh"""
LARGE_ASK = 16 << 10
"""bytes above which a request is not kept: no other pod shares it, and many would be more than the ring itself"""
MASKS = 8
"""lists of candidates, as many as `candidate_lists` remembers"""
TOGETHER = 32
"""events that are recorded together"""
NEWS_S = 0.05
"""until a reader that follows sees events that are not recorded yet"""
REFUSED_PODS = 16_384
"""refused pods whose last record is known; one that is forgotten is recorded again"""


def start_record(settings: Settings, *, identity: str, time: float) -> Start:
    """What a process with these settings says about itself."""
    sections = settings.device_sections
    return Start(
        time=time,
        sequence=0,
        format=journal.FORMAT,
        version=__version__,
        identity=identity,
        device_sections=None if sections is None else msgspec.to_builtins(dict(sections)),
        enable_ascend=settings.enable_ascend,
        enable_iluvatar=settings.enable_iluvatar,
        node_policy=settings.node_policy,
        device_policy=settings.device_policy,
        scheduler_name=settings.scheduler_name,
    )


def new_identity() -> str:
    """A name for this process, as lease holders have one."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


Told = tuple[Callable[..., None], float, tuple[Any, ...]]
"""what records an event, when it was told, and the event"""


class RefusalKey(NamedTuple):
    """What makes two refusals of a pod the same."""

    ask: SharedAsk
    candidates: CandidateMask
    reasons: Reasons


class Journal(SchedulerObserver):
    """Records what the pipeline reports, and what an attached ledger tells. Used from the event loop only."""

    def __init__(self, settings: Settings, *, now: Callable[[], float], identity: str = "") -> None:
        """`now` in seconds since the epoch."""
        self._now = now
        self._arrays = CardArrays()
        self._identity = identity or new_identity()
        start = start_record(settings, identity=self._identity, time=now())
        self._recorded = JournalRing(start, limit=settings.journal.memory_bytes)
        self._told: list[Told] = []
        """not recorded yet, in order"""
        self._lost = 0
        """events that could not be recorded"""
        self._changed = 0
        """number of the last record that changed the state"""
        self._forecast: DemandForecast | None = None
        self._forecasts = 0
        self._asks: dict[int, SharedAsk] = {}
        """by the identity of the containers"""
        self._searched: dict[tuple[int, int, tuple[int, ...]], CandidateMask] = {}
        """lists that were only searched, by the arguments of `_searched_mask`"""
        self._mask_of = lru_cache(MASKS)(self._make_mask)
        self._order: tuple[NameOrder, int] | None = None
        """the last order of nodes, and how many free columns it has"""
        self._refused: dict[str, tuple[int, RefusalKey]] = {}
        """by uid, the number of the last record of a refused pod"""
        self._news = asyncio.Event()
        self._followers = 0
        self.readers = 0
        """clients that read it now"""
        self._is_closed = False

    def attach(self, ledger: Ledger) -> None:
        """Record this ledger, which is empty."""
        self._arrays = ledger.arrays
        ledger.listener = LedgerRecorder(self)

    # -- what is told

    def tell(self, record: Callable[..., None], *event: object) -> None:
        """`record(time, *event)` is called later, with the time of now. The event must not change any more."""
        told = self._told
        told.append((record, self._now(), event))
        if len(told) >= TOGETHER:
            self._record_told()
        elif self._followers and len(told) == 1:
            asyncio.get_running_loop().call_later(NEWS_S, self._record_told)

    def _record_told(self) -> None:
        told, self._told = self._told, []
        for record, time, event in told:
            try:
                record(time, *event)
            except Exception as error:  # It is the journal's own fault, not that of the event that is told now.
                self._report(error)
        if told and self._followers:
            self._wake_followers()

    def _report(self, error: Exception) -> None:
        self._lost += 1
        if self._lost == 1:
            log.error("an event was not recorded; later ones may be missing too", exc_info=error)

    # -- what is kept

    @property
    def _ring(self) -> JournalRing:
        """The ring, with everything recorded that was told so far."""
        if self._told:
            self._record_told()
        return self._recorded

    @property
    def sequence(self) -> int:
        """Number of the newest record; 0 before the first."""
        return self._ring.sequence

    @property
    def identity(self) -> str:
        """The name of the process, as in `Start`."""
        return self._identity

    @property
    def oldest(self) -> int:
        """Number of the oldest record that is not part of the base."""
        return self._ring.base.sequence + 1

    @property
    def begin(self) -> float:
        """Time of the oldest state that is known."""
        return self._ring.base.time

    @property
    def bytes(self) -> int:
        """Estimated, of the ring."""
        return self._ring.bytes

    def add(self, entry: Entry, size: int = ENTRY_BYTES) -> None:
        """The next record, and the bytes that it takes. Only for what records an event."""
        self._recorded.append(entry, size)

    def add_change(self, entry: Entry, size: int = ENTRY_BYTES) -> None:
        """The same, of a record that changes the state."""
        ring = self._recorded
        ring.append(entry, size)
        self._changed = ring.sequence

    def restart(self, settings: Settings) -> None:
        """The vendors are others from now on."""
        self.tell(self._record_start, settings)

    def _record_start(self, time: float, settings: Settings) -> None:
        self.add(start_record(settings, identity=self._identity, time=time))

    def close(self) -> None:
        """No reading waits for more."""
        self._is_closed = True
        self._wake_followers()

    # -- decisions

    def on_filter_decision(self, event: FilterDecision) -> None:
        if isinstance(event.answer, Unfinished):
            event.candidates.resolve()  # Later it could be about other nodes; a refused list has been looked up.
        self.tell(self._record_decision, event)

    def on_bind_decision(self, event: BindDecision) -> None:
        self.tell(self._record_bind_decision, event, self._mask_of_node(event.node))

    def _record_decision(self, time: float, event: FilterDecision) -> None:
        request, answer, took = event.request, event.answer, int(event.seconds * 1e6)
        ask, size = self._ask(request, time)
        if isinstance(answer, Selected):
            if event.refusals:
                self._refused.pop(request.uid, None)
            mask, new = self._mask_of_choice(event.candidates, answer)
            entry = DecisionEntry(time, _ref(request), ask, mask, self._changed, took, answer.placement)
            self.add(entry, size + new + ask.granted_bytes)
            return
        mask = self._mask_of(event.candidates.resolve())
        if isinstance(answer, Refused):
            self._add_refused(time, event, RefusalKey(ask, mask, answer.reason_counts), size)
        else:
            self.add(DecisionEntry(time, _ref(request), ask, mask, self._changed, took, None), size)

    def _record_bind_decision(self, time: float, event: BindDecision, mask: CandidateMask) -> None:
        request, answer = event.request, event.answer
        ask, size = self._ask(request, time)
        size += len(mask.mask or b"")
        pod, took = _ref(request), int(event.seconds * 1e6)
        if isinstance(answer, Misfit):
            reasons = ((answer.text, 1),)
            refused = DecisionEntry(time, pod, ask, mask, self._changed, took, reasons, at_bind=True)
            self.add(refused, size + REASON_BYTES)
        else:
            self._refused.pop(request.uid, None)
            placed = DecisionEntry(time, pod, ask, mask, self._changed, took, answer, at_bind=True)
            self.add(placed, size + ask.granted_bytes)

    def _add_refused(self, time: float, event: FilterDecision, key: RefusalKey, size: int) -> None:
        uid, (ask, mask, reasons) = event.request.uid, key
        known = self._refused.get(uid)
        if known is not None and known[0] > self._recorded.base.sequence and known[1] == key:
            return
        pod, took = _ref(event.request), int(event.seconds * 1e6)
        # Positions, not names: this is done for every refused pod.
        entry = DecisionEntry(time, pod, ask, mask, self._changed, took, reasons, False, event.refusals, event.of_gang)
        # A mask may be the entry's own: lists that nodes' labels narrow come and go.
        self.add(entry, size + REASON_BYTES * len(reasons) + len(mask.mask or b""))
        self._refused[uid] = self._recorded.sequence, key
        if len(self._refused) > REFUSED_PODS:
            del self._refused[next(iter(self._refused))]

    def _ask(self, request: PodRequest, time: float) -> tuple[SharedAsk, int]:
        """What a pod asks for, which pods that differ in name alone share, and the bytes of a decision about it,
        without those of grants."""
        if request.forecast is not self._forecast and request.forecast is not None:
            self._forecast = request.forecast
            self._forecasts += 1
            # Requests of the same shape refer to the newest number.
            self._asks.clear()
            entry = StateEntry(time, ForecastRecord, self._forecasts, (request.forecast,))
            self.add_change(entry, FORECAST_BYTES)
        known, shape = self._asks.get(id(request.containers)), request.shape
        is_known = known is not None and known.containers is request.containers
        if known is not None and is_known and (known.shape is shape or known.shape == shape):
            return known, DECISION_BYTES
        if len(self._asks) >= ASKS:
            self._asks.clear()
        ask = SharedAsk(request, None if request.forecast is None else self._forecasts)
        size = ask.size()
        if size <= LARGE_ASK:
            self._asks[id(request.containers)] = ask
        return ask, DECISION_BYTES + size

    # -- candidates

    def _mask_of_choice(self, candidates: CandidateList | Candidates, chosen: Selected) -> tuple[CandidateMask, int]:
        """With the bytes that are new in it. Looking up all names would cost more than the choice did, so a list that
        was only searched stays one."""
        if isinstance(candidates, Candidates):
            return self._mask_of(candidates), 0
        if candidates.resolved is not None:
            return self._mask_of(candidates.resolved), 0
        nodes = 0
        absent: tuple[int, ...] = ()
        if chosen.absent:
            ranked = chosen.ranked
            free = self._free_columns(ranked.order)
            nodes = len(ranked.order.names) - free
            absent = tuple([int(ranked.places[i]) - free for i in chosen.absent])
        key = candidates.estimated_count, nodes, absent
        known = self._searched.get(key)
        if known is not None:
            return known, 0
        if len(self._searched) >= ASKS:
            self._searched.clear()
        mask = self._searched[key] = _searched_mask(*key)
        return mask, len(mask.mask or b"")

    def _make_mask(self, candidates: Candidates) -> CandidateMask:
        """Equal lists are one object while the nodes stay the same, and so are their masks."""
        named = candidates.named[self._free_columns(candidates.order) :]
        count, others = int(np.count_nonzero(named)), len(candidates.unregistered)
        bits = None if count == len(named) else np.packbits(named).tobytes()
        return CandidateMask(count + others, bits, others)

    def _mask_of_node(self, name: str) -> CandidateMask:
        order, row = self._arrays.order, self._arrays.row(name)
        free = self._free_columns(order)
        named = np.zeros(len(order.names) - free, dtype=np.bool_)
        if row >= 0:
            named[order.places[row] - free] = True
        return CandidateMask(1, np.packbits(named).tobytes(), int(row < 0))

    def _free_columns(self, order: NameOrder) -> int:
        if self._order is None or self._order[0] is not order:
            self._order = order, bisect_right(order.names, "")
        return self._order[1]

    # -- everything else

    def on_bind(self, event: BindEvent) -> None:
        pod = _ref(event)
        self._note(journal.Bind, event.error, pod=pod, node=event.node, error=event.error)

    def on_released(self, event: ReleasedEvent) -> None:
        pod = _ref(event)
        self._note(journal.Released, pod=pod, node=event.node, why=event.why)

    def on_woken(self, request: PodRequest) -> None:
        self._note(journal.Woken, pod=_ref(request))

    def on_evicted(self, event: EvictedEvent) -> None:
        pod = _ref(event.victim)
        self._note(journal.Evicted, pod=pod, node=event.node, message=event.text)

    def on_gang(self, event: GangEvent) -> None:
        self._note(
            journal.Gang, event.text, namespace=event.namespace, name=event.name, state=event.state, text=event.text
        )

    def on_denied(self, namespace: str, name: str, message: str) -> None:
        self._note(journal.Denied, message, namespace=namespace, name=name, message=message)

    def on_tenure(self) -> None:
        self._note(journal.TookOver)

    def on_step_down(self) -> None:
        self._note(journal.SteppedDown)

    def on_pod(self, uid: str, pod: Pod | None) -> None:
        if pod is None:
            self.tell(self._forget_refused, uid)

    def _note(self, kind: Callable[..., Note], text: str = "", /, **fields: object) -> None:
        """`text`: what may be long in it."""
        self.tell(self._record_note, kind, text, fields)

    def _record_note(self, time: float, kind: Callable[..., Note], text: str, fields: Mapping[str, object]) -> None:
        note = kind(time=time, sequence=self._recorded.sequence + 1, **fields)
        self.add(note, ENTRY_BYTES + NOTE_BYTES + len(text))

    def _forget_refused(self, _time: float, uid: str) -> None:
        self._refused.pop(uid, None)

    # -- reading

    async def read(
        self, since: int | None = None, *, follow: bool = False, snapshot: bool = True
    ) -> AsyncIterator[Record]:
        """The records after number `since`, or all that are kept; with `follow` for ever, as they come.

        They begin with `Start`, the state as it was after record `since`, and `SnapshotEnd`. Without `snapshot` that
        is left out if the ring reaches back to `since`; a reader that gets a `Start` all the same was too slow, or
        asks another process, and begins afresh.
        """
        async with aclosing(self.batches(since, follow=follow, snapshot=snapshot)) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def batches(
        self, since: int | None = None, *, follow: bool = False, snapshot: bool = True
    ) -> AsyncGenerator[Sequence[Record], None]:
        """The same, a few at a time. Other work gets its turn before each batch.

        Only a reading that begins afresh holds entries that have left the ring, and at most as many as fit in it.
        """
        until, position = self._ring.sequence, self._nearest(since)
        is_fresh = snapshot or position != since
        while True:
            ring = self._ring
            if is_fresh:
                position = max(position, ring.base.sequence)
                async for batch in self._batches_afresh(position):
                    yield batch
                    position = max(position, batch[-1].sequence)
                is_fresh = False
            elif position < ring.base.sequence:
                is_fresh = True  # It was too slow.
            elif position < (ring.sequence if follow else until):
                records: list[Record] = []
                for entry in ring.after(position, AT_ONCE):
                    position += 1
                    if isinstance(entry, Start):
                        is_fresh = True
                        break
                    records.append(_record_of(entry, position))
                await asyncio.sleep(0)
                if records:
                    yield records
            elif follow and not self._is_closed:
                await self._wait_for_news()
            else:
                return

    def _nearest(self, since: int | None) -> int:
        """The record after which a reading begins: `since`, or the oldest that is possible."""
        base = self._ring.base.sequence
        return base if since is None or not base <= since <= self._ring.sequence else since

    async def _batches_afresh(self, since: int) -> AsyncIterator[Sequence[Record]]:
        """The state after record `since`, and all that follows in the ring as it is now."""
        state, entries = self._ring.base.copy(), self._ring.after(self._ring.base.sequence)
        behind = since - state.sequence
        for begin in range(0, behind, APPLIED_AT_ONCE):
            for entry in entries[begin : min(begin + APPLIED_AT_ONCE, behind)]:
                state.apply(entry)
            await asyncio.sleep(0)
        async for batch in _state_batches(state):
            yield batch
        for begin in range(behind, len(entries), AT_ONCE):
            records: list[Record] = []
            for entry in entries[begin : begin + AT_ONCE]:
                state.apply(entry)
                if not isinstance(entry, Start):
                    records.append(_record_of(entry, state.sequence))
                    continue
                if records:
                    yield records
                    records = []
                async for batch in _state_batches(state):
                    yield batch
            await asyncio.sleep(0)
            if records:
                yield records

    async def _wait_for_news(self) -> None:
        self._followers += 1
        try:
            await self._news.wait()
        finally:
            self._followers -= 1

    def _wake_followers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class LedgerRecorder:
    """The ledger's listener."""

    def __init__(self, journal: Journal) -> None:
        self._tell = journal.tell
        self._add_change = journal.add_change

    def on_node(self, name: str, facts: NodeFacts | None) -> None:
        if facts is None:
            self._tell(self._record, NodeRecord, name)
        else:
            self._tell(self._record, NodeRecord, name, (facts,), DEVICE_BYTES * len(facts.devices))

    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None:
        if victims is None:
            self._tell(self._record, NominationRecord, facts.uid)
        else:
            self._tell(self._record, NominationRecord, facts.uid, (facts, victims), pod_bytes(facts))

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        if state is None:
            self._tell(self._record, PodRecord, facts.uid)
            return
        # If not observed, the grants are the decision's, and a binding is about what was reserved: they count there.
        size = pod_bytes(facts) if observed else 0 if state is GrantState.BOUND else POD_BYTES
        self._tell(self._record, PodRecord, facts.uid, (facts, state, observed), size)

    def on_quota(self, namespace: str, name: str, facts: QuotaFacts | None) -> None:
        if facts is None:
            self._tell(self._record, QuotaRecord, (namespace, name))
        else:
            self._tell(self._record, QuotaRecord, (namespace, name), (facts,), LIMIT_BYTES * len(facts.limits))

    def on_host(self, name: str, free: HostRequest | None) -> None:
        self._tell(self._record, HostRecord, name, () if free is None else (free,))

    def _record(
        self, time: float, kind: type[StateRecord], name: Name, value: tuple[Any, ...] = (), size: int = 0
    ) -> None:
        self._add_change(StateEntry(time, kind, name, value), ENTRY_BYTES + size)


def _searched_mask(count: int, nodes: int, absent: tuple[int, ...]) -> CandidateMask:
    """Of a list that was only searched: `absent` are the places of nodes that it does not name, of so many."""
    if not absent:
        return CandidateMask(count, searched=True)
    named = np.ones(nodes, dtype=np.bool_)
    named[list(absent)] = False
    return CandidateMask(count, np.packbits(named).tobytes(), searched=True)


def _record_of(entry: Entry, sequence: int) -> Record:
    return entry.record(sequence) if isinstance(entry, (StateEntry, DecisionEntry)) else entry


def _ref(named: PodRequest | PodTraits | BindEvent | ReleasedEvent) -> PodRef:
    return PodRef(named.namespace, named.name, named.uid)


async def _state_batches(state: JournalState) -> AsyncIterator[Sequence[Record]]:
    """`Start`, the state as it is now, and `SnapshotEnd`."""
    known, sequence, time = list(state), state.sequence, state.time
    yield [msgspec.structs.replace(state.start, time=time, sequence=sequence)]
    for begin in range(0, len(known), AT_ONCE):
        records = [entry.record(number) for number, entry in known[begin : begin + AT_ONCE]]
        await asyncio.sleep(0)
        yield records
    yield [journal.SnapshotEnd(time=time, sequence=sequence)]
