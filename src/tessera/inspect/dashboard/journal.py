"""The past of the page: the records of a journal, and the cluster at any of its moments.

Records are replayed with `Timeline`: going forward costs what happened since, going back begins again. Both are done in
steps, so that a running scheduler decides in between.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.dashboard.documents import NODES, TOTALS, WAITING, Key, encode, member, state_pieces
from tessera.inspect.dashboard.nodes import ShownCluster, render_node
from tessera.inspect.dashboard.pods import PodOrigin, WaitingPod, waiting_row
from tessera.inspect.dashboard.steps import Pace, Pause, in_steps
from tessera.inspect.dashboard.totals import Sums, count_slices
from tessera.inspect.journal_filter import subject_of
from tessera.inspect.render.journal import grants_text, reasons_text, record_text
from tessera.inspect.render.lines import count_of
from tessera.inspect.replay import Moment, Timeline
from tessera.inspect.state import InspectionError, Json
from tessera.kube.errors import KubeError
from tessera.scheduler.journal import Journal
from tessera.wire.journal import Decision, Gang, NominationRecord, Note, Placed, Record, Refused, Released

MAX_RECORDS = 5_000
"""in one answer"""
KEPT_S = 300.0
"""that the records of a running scheduler are kept after the last question"""
MAX_PODS = 2_000
"""that waited and are listed"""

Happening = Decision | Note | NominationRecord
"""records that are news; the others are the state"""


class PageJournal(ABC):
    """A journal that the page can go back through."""

    @abstractmethod
    def range(self) -> Json | None:
        """The times of the first and the last moment; None if there is none yet."""

    @abstractmethod
    async def timeline(self) -> Timeline:
        """Everything up to now. Raises InspectionError."""


class RecordedJournal(PageJournal):
    """All records of a file."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._timeline = Timeline(records)

    def range(self) -> Json | None:
        timeline = self._timeline
        return {"from": timeline.begin, "to": timeline.end} if timeline.begin else None

    async def timeline(self) -> Timeline:
        return self._timeline


class RecordReader(Protocol):
    """Reads a journal that grows."""

    def records(self) -> AsyncGenerator[Record, None]:
        """All that is kept, from a state on; when called again, what came since. Raises InspectionError."""
        ...


class RunningReader:
    """The journal in the memory of a running scheduler."""

    def __init__(self, journal: Journal, pause: Pause) -> None:
        self._journal = journal
        self._pause = pause
        self._last: int | None = None

    async def records(self) -> AsyncGenerator[Record, None]:
        pace = Pace(self._pause)
        async for record in self._journal.read(self._last, snapshot=self._last is None):
            self._last = max(self._last or 0, record.sequence)
            yield record
            await pace.step()


class FollowedJournal(PageJournal):
    """The journal of a running scheduler. Its records are read when a viewer goes back in time, kept up to date while
    that lasts, and forgotten afterwards. When they have doubled, all that the scheduler has is read again: what it
    keeps no longer must not stay here. Asked one question at a time."""

    def __init__(
        self,
        open_reader: Callable[[], RecordReader],
        *,
        begin: Callable[[], float | None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`begin` is asked for the time of the first moment, if that is known without reading."""
        self._open = open_reader
        self._now = now
        self._begin = begin or (lambda: self._begun)
        self._begun: float | None = None
        self._read: tuple[RecordReader, Timeline] | None = None
        self._most = 0
        """records, after which everything is read again"""
        self._forgetting: asyncio.TimerHandle | None = None

    def range(self) -> Json | None:
        begin = self._begin()
        return None if begin is None else {"from": begin, "to": self._now()}

    async def timeline(self) -> Timeline:
        is_first = self._read is None or len(self._read[1].records) > self._most
        if self._read is None or is_first:
            self._read = self._open(), Timeline(())
        reader, timeline = self._read
        try:
            async with aclosing(reader.records()) as records:
                async for record in records:
                    timeline.extend((record,))
        except (InspectionError, KubeError) as error:
            self._read = None  # Half a state is of no use.
            raise InspectionError(str(error)) from error
        if is_first:
            self._most = 2 * len(timeline.records) + MAX_RECORDS
        self._begun = timeline.begin
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self._forget)
        return timeline

    def _forget(self) -> None:
        self._read = None


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
    """In steps: a running scheduler keeps hundreds of thousands of records. The end of a nomination has no name, and
    follows from what the pod gets, or is told with another one."""
    return [
        record
        async for record in in_steps(records, pause)
        if isinstance(record, Happening)
        and first <= record.time <= last
        and not (isinstance(record, NominationRecord) and record.state is None)
    ]


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


class PastCluster(ShownCluster):
    """The cluster at the moment that a timeline was brought to. What the journal does not record is missing:
    measurements, and the workloads of pods that are gone."""

    def __init__(self, timeline: Timeline, origin: Callable[[str], PodOrigin]) -> None:
        self.timeline = timeline
        self.moment = timeline.moment
        self._origin = origin

    @property
    def ledger(self) -> Ledger:
        return self.moment.ledger

    def origin(self, uid: str) -> PodOrigin:
        return self._origin(uid)


async def cluster_at(
    journal: PageJournal, time: float, pause: Pause, *, origin: Callable[[str], PodOrigin]
) -> PastCluster:
    timeline = await journal.timeline()
    async for _ in in_steps(timeline.seek(time), pause):
        pass
    return PastCluster(timeline, origin)


async def past_state(cluster: PastCluster, pause: Pause, *, source: Json) -> list[bytes]:
    """The state document of this moment, in pieces."""
    sums, moment = Sums(), cluster.moment
    parts: list[tuple[Key, bytes | None]] = []
    async for name in in_steps(moment.ledger.node_names(), pause):
        document = render_node(cluster, name)
        if document is not None:
            sums.add(document.sums)
            parts.append(((NODES, name), document.body))
    refused = refused_then(cluster.timeline, moment, cluster.origin)
    asked = count_slices(pod.request for pod, _ in refused if pod.request is not None)
    waited = [moment.time - pod.origin.since for pod, _ in refused if pod.origin.since is not None]
    parts.append((TOTALS, encode(sums.document(asked, waited))))
    parts += (((WAITING, pod.uid), encode(waiting_row(pod, why))) for pod, why in refused[:MAX_PODS])
    head = {
        "version": 0,
        "since": None,
        "time": moment.time,
        "source": {**source, "live": False},
    }
    return state_pieces(head, ((key, member(key, body)) for key, body in parts))


def refused_then(
    timeline: Timeline, moment: Moment, origin: Callable[[str], PodOrigin]
) -> list[tuple[WaitingPod, str]]:
    """The pods that waited at this moment, since they were first refused, and why they were last. Of a pod that was
    deleted while it waited no record says so."""
    found: dict[str, tuple[float, Refused]] = {}
    for record in timeline.records:
        if record.time > moment.time:
            break
        if isinstance(record, Refused):
            since, _ = found.get(record.pod.uid, (record.time, record))
            found[record.pod.uid] = since, record
        elif isinstance(record, (Placed, Released)):
            found.pop(record.pod.uid, None)
    return [
        (
            WaitingPod(
                uid,
                record.pod.namespace,
                record.pod.name,
                timeline.request(record),
                origin=origin(uid)._replace(since=since),
                attempts=record.refusals,
            ),
            reasons_text(record.reasons.items()),
        )
        for uid, (since, record) in found.items()
        if moment.ledger.pod(uid) is None
    ]
