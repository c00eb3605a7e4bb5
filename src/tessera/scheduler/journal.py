"""The decision journal of a running scheduler: every change of the ledger and every decision, in memory.

The ring holds references to the core's frozen values, not text, so that recording costs little. When it is full, the
oldest records leave. What a state record says then goes into the base, so base and ring are always a complete journal.
Reading converts to the structs of `wire.journal`, a few at a time. A decision stands before the change that it causes.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec
import numpy as np

from tessera import __version__
from tessera.core.arrays import CardArrays, NameOrder
from tessera.core.demand_forecast import DemandForecast
from tessera.core.devices import NodeFacts
from tessera.core.holdings import PodFacts
from tessera.core.ledger import GrantState, Ledger
from tessera.core.misfits import Misfit
from tessera.core.quota import QuotaFacts
from tessera.core.requests import HostRequest, PodRequest
from tessera.core.selection import Candidates, Refused, Selected
from tessera.scheduler.candidate_lists import CandidateList
from tessera.scheduler.journal_entries import (
    DECISION_BYTES,
    DEVICE_BYTES,
    ENTRY_BYTES,
    FORECAST_BYTES,
    GRANT_BYTES,
    LIMIT_BYTES,
    NOTE_BYTES,
    POD_BYTES,
    REASON_BYTES,
    Entry,
    ForecastEntry,
    HostEntry,
    NodeEntry,
    NominationEntry,
    NoteEntry,
    PlacedEntry,
    PodEntry,
    QuotaEntry,
    RefusedEntry,
    SearchedList,
    SharedAsk,
    StartEntry,
    UnfinishedEntry,
    count_grants,
)
from tessera.scheduler.journal_ring import JournalRing, JournalState
from tessera.scheduler.observer import (
    BindDecision,
    BindEvent,
    EvictedEvent,
    FilterDecision,
    GangEvent,
    ReleasedEvent,
    SchedulerObserver,
)
from tessera.scheduler.settings import Settings
from tessera.wire import journal
from tessera.wire.journal import CandidateMask, PodRef, Record
from tessera.wire.objects import Pod

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
REFUSED_PODS = 16_384
"""refused pods whose last record is known; one that is forgotten is recorded again"""


def start_entry(settings: Settings, *, identity: str, time: float) -> StartEntry:
    """What a process with these settings says about itself."""
    sections = settings.device_sections
    start = journal.Start(
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
    return StartEntry(time, start)


def new_identity() -> str:
    """Of this process, as lease holders are called."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class RefusalKey(NamedTuple):
    """What makes two refusals of a pod the same."""

    ask: SharedAsk
    candidates: CandidateMask
    reasons: tuple[tuple[str, int], ...]


class Journal(SchedulerObserver):
    """Records what the pipeline reports, and what an attached ledger tells. Used from the event loop only."""

    def __init__(self, settings: Settings, *, now: Callable[[], float], identity: str = "") -> None:
        """`now` in seconds since the epoch."""
        self._now = now
        self._arrays = CardArrays()
        self._identity = identity or new_identity()
        start = start_entry(settings, identity=self._identity, time=now())
        self._ring = JournalRing(start, limit=settings.journal.memory_bytes)
        self._changed = 0
        """number of the last record that changed the state"""
        self._forecast: DemandForecast | None = None
        self._forecasts = 0
        self._asks: dict[int, SharedAsk] = {}
        """by the identity of the containers"""
        self._searched: dict[int, CandidateMask] = {}
        """by the number of candidates: lists that named every node that was searched for"""
        self._masks: OrderedDict[int, tuple[Candidates, CandidateMask]] = OrderedDict()
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
        ledger.listener = LedgerRecorder(self, self._now)

    # -- what is kept

    @property
    def sequence(self) -> int:
        """Number of the newest record; 0 before the first."""
        return self._ring.sequence

    @property
    def identity(self) -> str:
        """Of the process, as in `Start`."""
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
        """The next record, and the bytes that it takes."""
        self._ring.append(entry, size)
        if self._followers:
            self._wake_followers()

    def add_change(self, entry: Entry, size: int = ENTRY_BYTES) -> None:
        """The same, of a record that changes the state."""
        ring = self._ring
        ring.append(entry, size)
        self._changed = ring.sequence
        if self._followers:
            self._wake_followers()

    def restart(self, settings: Settings) -> None:
        """The vendors are others from now on."""
        self.add(start_entry(settings, identity=self._identity, time=self._now()))

    def close(self) -> None:
        """No reading waits for more."""
        self._is_closed = True
        self._wake_followers()

    # -- decisions

    def on_filter_decision(self, event: FilterDecision) -> None:
        request, answer, took = event.request, event.answer, int(event.seconds * 1e6)
        ask, size = self._ask(request)
        if isinstance(answer, Selected):
            if event.refusals:
                self._refused.pop(request.uid, None)
            candidates = self._mask_of_choice(event.candidates, answer)
            pod = PodRef(request.namespace, request.name, request.uid)
            entry = PlacedEntry(self._now(), pod, ask, candidates, self._changed, took, answer.placement)
            self.add(entry, size + ask.granted_bytes)
            return
        mask = self._mask_of(event.candidates.resolve())
        if isinstance(answer, Refused):
            self._add_refused(event, RefusalKey(ask, mask, answer.reason_counts), size)
        else:
            pod = PodRef(request.namespace, request.name, request.uid)
            self.add(UnfinishedEntry(self._now(), pod, ask, mask, self._changed, took), size)

    def on_bind_decision(self, event: BindDecision) -> None:
        request, answer, took = event.request, event.answer, int(event.seconds * 1e6)
        ask, size = self._ask(request)
        pod = PodRef(request.namespace, request.name, request.uid)
        mask = self._mask_of_node(event.node)
        size += len(mask.mask or b"")
        if isinstance(answer, Misfit):
            reasons = ((answer.text, 1),)
            refused = RefusedEntry(self._now(), pod, ask, mask, self._changed, took, reasons, at_bind=True)
            self.add(refused, size + REASON_BYTES)
        else:
            self._refused.pop(request.uid, None)
            placed = PlacedEntry(self._now(), pod, ask, mask, self._changed, took, answer, at_bind=True)
            self.add(placed, size + ask.granted_bytes)

    def _add_refused(self, event: FilterDecision, key: RefusalKey, size: int) -> None:
        request = event.request
        uid = request.uid
        known = self._refused.get(uid)
        if known is not None and known[0] >= self.oldest and known[1] == key:
            return
        pod = PodRef(request.namespace, request.name, uid)
        took = int(event.seconds * 1e6)
        entry = RefusedEntry(
            self._now(),
            pod,
            key.ask,
            key.candidates,
            self._changed,
            took,
            key.reasons,
            event.refusals,
            of_gang=event.of_gang,
        )
        # A mask may be the entry's own: lists that nodes' labels narrow come and go.
        self.add(entry, size + REASON_BYTES * len(key.reasons) + len(key.candidates.mask or b""))
        self._refused[uid] = self.sequence, key
        if len(self._refused) > REFUSED_PODS:
            del self._refused[next(iter(self._refused))]

    def _ask(self, request: PodRequest) -> tuple[SharedAsk, int]:
        """What a pod asks for, which pods that differ in name alone share, and the bytes of a decision about it,
        without those of grants."""
        if request.forecast is not self._forecast and request.forecast is not None:
            self._forecast = request.forecast
            self._forecasts += 1
            # Requests of the same shape refer to the newest number.
            self._asks.clear()
            self.add_change(ForecastEntry(self._now(), self._forecasts, request.forecast), FORECAST_BYTES)
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

    def _mask_of_choice(self, candidates: CandidateList | Candidates, chosen: Selected) -> CandidateMask | SearchedList:
        """Looking up all names would cost more than the choice did, so a list that was only searched stays one."""
        if isinstance(candidates, Candidates):
            return self._mask_of(candidates)
        if candidates.resolved is not None:
            return self._mask_of(candidates.resolved)
        count = candidates.estimated_count
        if not chosen.absent:
            known = self._searched.get(count)
            if known is None:
                if len(self._searched) >= ASKS:
                    self._searched.clear()
                known = self._searched[count] = CandidateMask(count, searched=True)
            return known
        ranked = chosen.ranked
        free = self._free_columns(ranked.order)
        absent = tuple([int(ranked.places[i]) - free for i in chosen.absent])
        return SearchedList(count, len(ranked.order.names) - free, absent)

    def _mask_of(self, candidates: Candidates) -> CandidateMask:
        """Equal lists are one object while the nodes stay the same, and so are their masks."""
        known = self._masks.get(id(candidates))
        if known is not None:
            return known[1]
        named = candidates.named[self._free_columns(candidates.order) :]
        count, others = int(np.count_nonzero(named)), len(candidates.unregistered)
        bits = None if count == len(named) else np.packbits(named).tobytes()
        mask = CandidateMask(count + others, bits, others)
        self._masks[id(candidates)] = candidates, mask
        if len(self._masks) > MASKS:
            self._masks.popitem(last=False)
        return mask

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
        pod = PodRef(event.namespace, event.name, event.uid)
        self._note(
            journal.Bind(time=self._now(), sequence=self.sequence + 1, pod=pod, node=event.node, error=event.error),
            event.error,
        )

    def on_released(self, event: ReleasedEvent) -> None:
        pod = PodRef(event.namespace, event.name, event.uid)
        self._note(
            journal.Released(time=self._now(), sequence=self.sequence + 1, pod=pod, node=event.node, why=event.why)
        )

    def on_woken(self, request: PodRequest) -> None:
        self._note(
            journal.Woken(
                time=self._now(), sequence=self.sequence + 1, pod=PodRef(request.namespace, request.name, request.uid)
            )
        )

    def on_evicted(self, event: EvictedEvent) -> None:
        pod = PodRef(event.victim.namespace, event.victim.name, event.victim.uid)
        self._note(
            journal.Evicted(time=self._now(), sequence=self.sequence + 1, pod=pod, node=event.node, message=event.text)
        )

    def on_gang(self, event: GangEvent) -> None:
        self._note(
            journal.Gang(
                time=self._now(),
                sequence=self.sequence + 1,
                namespace=event.namespace,
                name=event.name,
                state=event.state,
                text=event.text,
            ),
            event.text,
        )

    def on_denied(self, namespace: str, name: str, message: str) -> None:
        self._note(
            journal.Denied(
                time=self._now(), sequence=self.sequence + 1, namespace=namespace, name=name, message=message
            ),
            message,
        )

    def on_tenure(self) -> None:
        self._note(journal.TookOver(time=self._now(), sequence=self.sequence + 1))

    def on_step_down(self) -> None:
        self._note(journal.SteppedDown(time=self._now(), sequence=self.sequence + 1))

    def on_pod(self, uid: str, pod: Pod | None) -> None:
        if pod is None:
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
        ring = self._ring
        until, position = ring.sequence, self._nearest(since)
        is_fresh = snapshot or position != since
        while True:
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
                    if isinstance(entry, StartEntry):
                        is_fresh = True
                        break
                    records.append(entry.record(position))
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
                if not isinstance(entry, StartEntry):
                    records.append(entry.record(state.sequence))
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

    # -- inside

    def _note(self, record: Record, text: str = "") -> None:
        """`text`: what may be long in it."""
        self.add(NoteEntry(record.time, record), ENTRY_BYTES + NOTE_BYTES + len(text))


class LedgerRecorder:
    """The ledger's listener."""

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self._journal = journal
        self._now = now

    def on_node(self, name: str, facts: NodeFacts | None) -> None:
        devices = 0 if facts is None else len(facts.devices)
        self._journal.add_change(NodeEntry(self._now(), name, facts), ENTRY_BYTES + DEVICE_BYTES * devices)

    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None:
        if victims is None:
            self._journal.add_change(NominationEntry(self._now(), facts.uid, None, None))
            return
        size = ENTRY_BYTES + POD_BYTES + GRANT_BYTES * count_grants(facts.grants)
        self._journal.add_change(NominationEntry(self._now(), facts.uid, facts, victims), size)

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        if state is None:
            self._journal.add_change(PodEntry(self._now(), facts.uid, None))
            return
        if observed:
            size = ENTRY_BYTES + POD_BYTES + GRANT_BYTES * count_grants(facts.grants)
        else:  # The grants are those of the decision, and a binding is about what was reserved: both are counted there.
            size = ENTRY_BYTES if state is GrantState.BOUND else ENTRY_BYTES + POD_BYTES
        self._journal.add_change(PodEntry(self._now(), facts.uid, facts, state, observed), size)

    def on_quota(self, namespace: str, name: str, facts: QuotaFacts | None) -> None:
        limits = 0 if facts is None else len(facts.limits)
        entry = QuotaEntry(self._now(), namespace, name, facts)
        self._journal.add_change(entry, ENTRY_BYTES + LIMIT_BYTES * limits)

    def on_host(self, name: str, free: HostRequest | None) -> None:
        self._journal.add_change(HostEntry(self._now(), name, free))


async def _state_batches(state: JournalState) -> AsyncIterator[Sequence[Record]]:
    """`Start`, the state as it is now, and `SnapshotEnd`."""
    known, sequence, time = list(state), state.sequence, state.time
    yield [msgspec.structs.replace(state.start.start, time=time, sequence=sequence)]
    for begin in range(0, len(known), AT_ONCE):
        records = [entry.record(number) for number, entry in known[begin : begin + AT_ONCE]]
        await asyncio.sleep(0)
        yield records
    yield [journal.SnapshotEnd(time=time, sequence=sequence)]
