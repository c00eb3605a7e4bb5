"""The past of the page: the records of a journal, and the cluster at any of its moments.

Records are replayed with `Timeline`: going forward costs what happened since, going back begins again. Both are done in
steps, so that a running scheduler decides in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

from tessera.inspect.dashboard.documents import NodeRenderer, PodOrigin, RenderContext, Totals, WaitingRow, encode
from tessera.inspect.dashboard.room import count_slices
from tessera.inspect.dashboard.steps import Pause, in_steps, paced
from tessera.inspect.journal_filter import subject_of
from tessera.inspect.journal_source import JournalSource
from tessera.inspect.render.journal import ask_text, grants_text, reasons_text, record_text
from tessera.inspect.render.lines import count_of
from tessera.inspect.replay import Moment, Timeline
from tessera.inspect.state import InspectionError, Json
from tessera.kube.errors import KubeError
from tessera.scheduler.journal import Journal
from tessera.wire.journal import (
    Bind,
    Denied,
    Evicted,
    Gang,
    NominationRecord,
    Placed,
    Record,
    Refused,
    Released,
    Start,
    SteppedDown,
    TookOver,
    Unfinished,
    Woken,
)

MAX_RECORDS = 5_000
"""in one answer"""
KEPT_S = 300.0
"""that the records of a running scheduler are kept after the last question"""
MAX_FOLLOWED = 1_000_000
"""records that are kept of a scheduler that is read over HTTP; then all it has is read again"""
MAX_PODS = 2_000
"""that waited and are listed"""

Happening = (
    Placed
    | Refused
    | Unfinished
    | Bind
    | Denied
    | Woken
    | Released
    | Evicted
    | Gang
    | NominationRecord
    | TookOver
    | SteppedDown
)
"""records that are news; the others are the state"""


class PageJournal(Protocol):
    """A journal that the page can go back through."""

    def range(self) -> Json | None:
        """The times of the first and the last moment; None if there is none yet."""
        ...

    async def timeline(self) -> Timeline:
        """Everything up to now. Raises InspectionError."""
        ...


class RecordedJournal:
    """All records of a file."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._timeline = Timeline(records)

    def range(self) -> Json | None:
        return time_range(self._timeline)

    async def timeline(self) -> Timeline:
        return self._timeline


class IdleTimer:
    """Calls back when nothing has touched it for `KEPT_S`."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self._on_idle = on_idle
        self._handle: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(KEPT_S, self._on_idle)


class RunningJournal:
    """The journal in the memory of a running scheduler. Its records are made when a viewer goes back in time, kept up
    to date while that lasts, and forgotten afterwards."""

    def __init__(self, journal: Journal, pause: Pause, *, now: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._pause = pause
        self._now = now
        self._timeline: Timeline | None = None
        self._first = self._last = 0
        """numbers of the records that the timeline has"""
        self._idle = IdleTimer(self._forget)

    def range(self) -> Json | None:
        return {"from": self._journal.begin, "to": self._now()}

    async def timeline(self) -> Timeline:
        journal, timeline = self._journal, self._timeline
        # What left the ring is dropped here too, but not for every record that leaves.
        is_long = journal.oldest - self._first > journal.sequence - journal.oldest + MAX_RECORDS
        since = None if timeline is None or is_long else self._last
        news = [record async for record in paced(journal.read(since, snapshot=since is None), self._pause)]
        if timeline is None or since is None or (news and isinstance(news[0], Start)):
            self._first = journal.oldest
            timeline = self._timeline = Timeline(news)
        else:
            timeline.extend(news)
        self._last = max(self._last, *(record.sequence for record in news[-1:]), 0)
        self._idle.touch()
        return timeline

    def _forget(self) -> None:
        self._timeline = None


class RemoteJournal:
    """The journal of a scheduler that is read over HTTP, from where the last question ended. Asked one question at a
    time."""

    def __init__(self, open_source: Callable[[], JournalSource]) -> None:
        """Each source begins with all that the scheduler has kept."""
        self._open = open_source
        self._begin: float | None = None
        self._read: tuple[JournalSource, Timeline] | None = None
        self._idle = IdleTimer(self._forget)

    def range(self) -> Json | None:
        return None if self._begin is None else {"from": self._begin, "to": time.time()}

    async def timeline(self) -> Timeline:
        if self._read is None or len(self._read[1].records) > MAX_FOLLOWED:
            self._read = self._open(), Timeline(())
        source, timeline = self._read
        try:
            async with aclosing(source.records()) as records:
                async for record in records:
                    timeline.extend((record,))
        except (InspectionError, KubeError) as error:
            self._read = None  # Half a state is of no use.
            raise InspectionError(str(error)) from error
        self._begin = timeline.begin
        self._idle.touch()
        return timeline

    def _forget(self) -> None:
        self._read = None


def time_range(timeline: Timeline) -> Json | None:
    return {"from": timeline.begin, "to": timeline.end} if timeline.begin else None


async def seek(timeline: Timeline, moment: float, pause: Pause) -> Moment:
    async for _ in in_steps(timeline.seek(moment), pause):
        pass
    return timeline.moment


def record_document(record: Happening) -> Json:
    subject = subject_of(record)
    return {
        "sequence": record.sequence,
        "time": record.time,
        "kind": "nominated" if isinstance(record, NominationRecord) else str(type(record).__struct_config__.tag),
        "pod": subject.pod,
        "node": subject.node,
        "text": _text_of(record),
    }


async def happenings(records: Iterable[Record], pause: Pause, *, first: float, last: float) -> list[Happening]:
    """In steps: a running scheduler keeps hundreds of thousands of records."""
    return [
        record
        async for record in in_steps(records, pause)
        if isinstance(record, Happening) and first <= record.time <= last and _is_news(record)
    ]


def _is_news(record: Happening) -> bool:
    """The end of a nomination has no name, and follows from what the pod gets, or is told with another one."""
    return not isinstance(record, NominationRecord) or record.state is not None


async def history_of(
    records: Iterable[Record], pause: Pause, namespace: str, name: str, *, gang: str = "", last: float
) -> list[Json]:
    """What happened to one pod, and to its gang if it has one."""
    found = [
        one
        for one in await happenings(records, pause, first=0.0, last=last)
        if (
            (one.namespace, one.name) == (namespace, gang)
            if isinstance(one, Gang)
            else subject_of(one).pod == f"{namespace}/{name}"
        )
    ]
    return await documents_of(found[-MAX_RECORDS:], pause)


async def documents_of(found: Iterable[Happening], pause: Pause) -> list[Json]:
    return [record_document(record) async for record in in_steps(found, pause)]


def _text_of(record: Happening) -> str:
    """A gang is no pod, so its name is in the text."""
    if isinstance(record, Gang):
        return f"{record.namespace}/{record.name} is {record.state}: {record.text}"
    if isinstance(record, NominationRecord) and record.state is not None:
        leave = count_of(len(record.victims), "pod") if record.victims else "no pod"
        return f"for it {leave} must leave: {grants_text(record.state.grants, uuids=False)}"
    return record_text(record)


# -- the state at a moment


async def past_state(
    timeline: Timeline,
    wanted: float,
    pause: Pause,
    *,
    source: Json,
    origin: Callable[[str], PodOrigin],
) -> bytes:
    """The state document of this time. What the journal does not record is missing: measurements, and the workloads
    of pods that are gone."""
    moment = await seek(timeline, wanted, pause)
    ledger = moment.ledger
    renderer = NodeRenderer(ledger, RenderContext(origin))
    totals = Totals(renderer.models)
    nodes: list[bytes] = []
    pods: list[bytes] = []
    async for name in in_steps(ledger.node_names(), pause):
        document = renderer.render(name)
        if document is not None:
            totals.replace(None, document)
            nodes.append(document.body)
            pods += document.pods.values()
    refused = refused_then(timeline.records, moment)
    containers = (container for _, record in refused for container in record.ask.containers)
    asked = count_slices(one for container in containers for one in container.requests)
    sums = totals.document(asked, [moment.time - since for since, _ in refused])
    waiting = [_waiting_row(since, record, origin(record.pod.uid)) for since, record in refused[:MAX_PODS]]
    head = {"version": 0, "time": moment.time, "source": {**source, "live": False}, "models": renderer.models.names}
    return b"".join((
        encode(head)[:-1], b',"pods":{', b",".join(pods), b'},"nodes":[', b",".join(nodes), b'],"waiting":',
        encode(waiting), b',"totals":', encode(sums), b"}",
    ))  # fmt: skip


def refused_then(records: Iterable[Record], moment: Moment) -> list[tuple[float, Refused]]:
    """The pods that waited at this moment: when each was first refused, and its last refusal. Of a pod that was deleted
    while it waited no record says so."""
    found: dict[str, tuple[float, Refused]] = {}
    for record in records:
        if record.time > moment.time:
            break
        if isinstance(record, Refused):
            since, _ = found.get(record.pod.uid, (record.time, record))
            found[record.pod.uid] = since, record
        elif isinstance(record, (Placed, Released)):
            found.pop(record.pod.uid, None)
    return [one for uid, one in found.items() if moment.ledger.pod(uid) is None]


def _waiting_row(since: float, record: Refused, origin: PodOrigin) -> WaitingRow:
    return WaitingRow(
        uid=record.pod.uid,
        namespace=record.pod.namespace,
        name=record.pod.name,
        owner=origin.owner,
        since=since,
        asks=ask_text(record.ask),
        why=reasons_text(record.reasons.items()),
        attempts=record.refusals,
    )
