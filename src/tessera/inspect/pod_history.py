"""What a journal says about one pod: asked, refused with numbers, woken, placed, bound, released.

Pods that are gone have a history too. A name may have been used by several pods, one after the other; each has a story
of its own. The ledger is followed beside the records, so that a refusal can be told with what came nearest then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tessera.core.search import finish
from tessera.core.search.near_misses import near_miss, near_miss_by_rule
from tessera.inspect.journal_filter import subject_of
from tessera.inspect.replay import BrokenJournal, JournalReplay
from tessera.wire.journal import (
    Bind,
    Decision,
    Denied,
    Evicted,
    Placed,
    PodRecord,
    Record,
    Refused,
    Released,
    SnapshotEnd,
    Start,
    Unfinished,
    Woken,
)
from tessera.wire.journal_values import Grants, PodAsk

StepKind = Literal[
    "denied", "held", "asked", "refused", "unfinished", "placed", "bound", "not-bound", "woken", "released", "evicted",
    "scheduler-started",
]  # fmt: skip
BAD_ENDS = frozenset({"denied", "refused", "not-bound", "evicted"})


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One thing that happened. Fields that do not belong to its kind are empty."""

    what: StepKind
    time: float
    node: str = ""
    ask: PodAsk | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    """of a refusal, with how many nodes each was given for"""
    nearest: str = ""
    """what came nearest at that moment, with numbers"""
    refusals: int = 0
    """how often the pod had been refused by the end of this step"""
    until: float = 0.0
    """of equal refusals that follow each other: when the last one was"""
    grants: Grants | None = None
    score: float | None = None
    candidates: int | None = None
    waited: float | None = None
    """seconds from the first question to the placement"""
    why: str = ""
    """of a release; or the message of a denial, an eviction or a failed bind"""


@dataclass(slots=True)
class PodStory:
    """One pod, from its first record to its last."""

    uid: str
    """empty for pods that were denied: they never had one"""
    steps: list[HistoryStep] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return bool(self.steps) and self.steps[-1].what in ("released", "denied")


@dataclass(slots=True)
class PodHistory:
    """All pods of one name."""

    namespace: str
    name: str
    begin: float = 0.0
    """the journal says nothing about earlier times"""
    end: float = 0.0
    stories: list[PodStory] = field(default_factory=list)
    """oldest first"""
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        steps = [step for story in self.stories[-1:] for step in story.steps if step.what != "scheduler-started"]
        return bool(steps) and steps[-1].what not in BAD_ENDS


async def read_history(records: AsyncIterator[Record], namespace: str, name: str) -> PodHistory:
    """Reads a whole journal, from its first state on."""
    reader = _HistoryReader(namespace, name)
    async for record in records:
        reader.put(record)
    return reader.history


class _HistoryReader:
    def __init__(self, namespace: str, name: str) -> None:
        self.history = PodHistory(namespace, name)
        self._replay: JournalReplay | None = JournalReplay()
        """None from where the records do not fit together until the next state"""
        self._stories: dict[str, PodStory] = {}
        self._process = ""

    def put(self, record: Record) -> None:
        history = self.history
        if isinstance(record, SnapshotEnd) and not history.begin:
            history.begin = record.time
        history.end = max(history.end, record.time)
        self._follow(record)
        if isinstance(record, Start):
            self._on_start(record)
        subject = subject_of(record)
        if (subject.namespace, subject.name) != (history.namespace, history.name):
            return
        match record:
            case PodRecord(state=held) if held is not None and record.uid not in self._stories:
                step = HistoryStep("held", record.time, node=held.node, grants=held.grants)
                self._story(record.uid).steps.append(step)
            case Denied():
                history.stories.append(PodStory("", [HistoryStep("denied", record.time, why=record.message)]))
            case Placed() | Refused() | Unfinished() | Bind() | Woken() | Released() | Evicted():
                self._tell(record)

    def _follow(self, record: Record) -> None:
        if self._replay is None:
            if not isinstance(record, Start):
                return
            self._replay = JournalReplay()
        try:
            self._replay.apply(record)
        except BrokenJournal as error:
            self.history.notes.append(f"{error}; refusals have no numbers until the next state")
            self._replay = None

    def _on_start(self, start: Start) -> None:
        if self._process and self._process != start.identity:
            for story in self._stories.values():
                if not story.is_over:
                    story.steps.append(HistoryStep("scheduler-started", start.time))
        self._process = start.identity

    def _story(self, uid: str) -> PodStory:
        if uid not in self._stories:
            self._stories[uid] = PodStory(uid)
            self.history.stories.append(self._stories[uid])
        return self._stories[uid]

    def _tell(self, record: Placed | Refused | Unfinished | Bind | Woken | Released | Evicted) -> None:
        story = self._story(record.pod.uid)
        if isinstance(record, Decision) and not any(step.ask == record.ask for step in story.steps):
            story.steps.append(HistoryStep("asked", record.time, ask=record.ask))
        last = story.steps[-1] if story.steps else None
        match record:
            case Refused():
                nearest = self._nearest(record)
                said = (record.reasons, nearest)
                if last is not None and last.what == "refused" and (last.reasons, last.nearest) == said:
                    story.steps[-1] = replace(last, refusals=record.refusals, until=record.time)
                    return
                step = HistoryStep("refused", record.time, reasons=record.reasons, nearest=nearest)
                step = replace(step, refusals=record.refusals, candidates=_count(record))
            case Placed():
                step = HistoryStep("placed", record.time, node=record.node, grants=record.grants, score=record.score)
                asked = next((step.time for step in story.steps if step.what == "asked"), record.time)
                step = replace(step, candidates=_count(record), waited=record.time - asked)
            case Unfinished():
                if last is not None and last.what == "unfinished":
                    return
                step = HistoryStep("unfinished", record.time, candidates=_count(record))
            case Bind():
                what: StepKind = "not-bound" if record.error else "bound"
                step = HistoryStep(what, record.time, node=record.node, why=record.error)
            case Woken():
                step = HistoryStep("woken", record.time)
            case Released():
                step = HistoryStep("released", record.time, node=record.node, why=record.why)
            case Evicted():
                step = HistoryStep("evicted", record.time, node=record.node, why=record.message)
        story.steps.append(step)

    def _nearest(self, refused: Refused) -> str:
        if self._replay is None or refused.of_gang:
            return ""
        try:
            candidates, request = self._replay.candidates(refused), self._replay.request(refused)
        except BrokenJournal:
            return ""
        if candidates is None:
            return ""
        ledger = self._replay.ledger
        found = near_miss(ledger, request, candidates.rows)
        found = found or finish(near_miss_by_rule(ledger, request, candidates.registered))
        return "" if found is None else found.text


def _count(decision: Decision) -> int | None:
    return None if decision.candidates is None else decision.candidates.count
