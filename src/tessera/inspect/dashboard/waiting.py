"""The pods that wait for devices: since when, why, what comes nearest, and the smallest change that would fit.

A gang has one row for as long as one of its members waits and the gang is not whole; its members have none then.

Pods of one shape and with the same candidates get the same answer, which is found once. Answers are found again when
the ledger has changed, a few milliseconds at a time, and viewers are told only of those that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from tessera.core.ledger.holders import owner_uid
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.core.search.gangs import describe_members
from tessera.core.search.selection import Selected
from tessera.inspect.dashboard.pods import WaitingPod, WaitingRow, waiting_row
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.steps import Allowance, Pace, Pause, TooLong, finish_in_steps
from tessera.inspect.dashboard.totals import SliceSize, count_slices
from tessera.inspect.gang_status import GangStatus, gang_status
from tessera.inspect.render.lines import count_of
from tessera.inspect.state import Json
from tessera.inspect.verdicts import NodeGroup, judge_refusal
from tessera.scheduler.engine_view import NOT_JUDGED, EngineView, GangMember, GangView
from tessera.scheduler.queue.unschedulable_pods import MAX_WORK

MAX_PODS = 2_000
"""that are listed; the page says how many there are"""
MAX_S = 20.0
"""of processor time for one answer: 16 requests on 10,000 nodes with 8 cards take as much"""
NAMED_REASONS = 3
"""the most frequent ones"""
NAMED_VICTIMS = 3
"""of a nominated pod"""


class Answer(NamedTuple):
    """Why a pod waits, in sentences."""

    why: str
    nearest: str = ""
    change: str = ""


NOT_YET = Answer("not judged yet")
NEVER = (-1, NOT_YET)


class WaitingPods:
    """The waiting pods of one source."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self.rows: dict[str, WaitingRow] = {}
        """by uid"""
        self._pods: list[WaitingPod] = []
        self._gangs: list[GangView] = []
        self._answers: dict[Hashable, tuple[int, Answer]] = {}
        """by shape, with the position of the arrays' log at which it was found"""
        self._gang_answers: dict[str, tuple[Hashable, GangStatus]] = {}
        """by the uid of the row, with what it depends on"""

    def clear(self) -> None:
        self.rows, self._answers, self._pods = {}, {}, []
        self._gangs, self._gang_answers = [], {}

    @property
    def asked(self) -> Counter[SliceSize]:
        """The slices that they ask for."""
        requests = [pod.request for pod in self._pods if pod.request is not None]
        return count_slices([*requests, *(request for gang in self._gangs for request in gang.pending)])

    def waited(self, now: float) -> list[float]:
        """Seconds, as far as it is known since when they wait."""
        return [now - row.since for row in self.rows.values() if row.since is not None]

    def refresh(self) -> dict[str, WaitingRow | None]:
        """The rows that changed since the last call, with the answers that there are; None for those that are gone."""
        gangs = self._gangs = list(_first(self._source.view.waiting_gangs()))
        members = {member.request.uid for gang in gangs for member in gang.members}
        pods = self._pods = list(islice((pod for pod in self._source.waiting() if pod.uid not in members), MAX_PODS))
        rows = {row_uid(gang): self._gang_row(gang) for gang in gangs}
        rows |= {pod.uid: waiting_row(pod, *self._answer_of(pod)) for pod in pods}
        before, self.rows = self.rows, rows
        changed = {uid: row for uid, row in rows.items() if before.get(uid) != row}
        return changed | {uid: None for uid in before if uid not in rows}

    async def judge(self, pause: Pause) -> None:
        """Find the answers that are missing or out of date, the oldest first. `pause` gets the seconds that a step
        took."""
        now = self._source.ledger.arrays.now
        samples = {_shape(pod): pod for pod in self._pods if pod.request is not None}
        self._answers = {shape: self._answers[shape] for shape in samples if shape in self._answers}
        stale = [shape for shape in samples if shape not in self._answers or self._answers[shape][0] < now]
        for shape in sorted(stale, key=lambda shape: self._answers.get(shape, NEVER)[0]):
            request, names = samples[shape].request, samples[shape].candidates.names
            assert request is not None  # it has a shape
            at = self._source.ledger.arrays.now
            self._answers[shape] = at, await self._answer(request, names, pause)
        await self._judge_gangs(pause)

    async def _judge_gangs(self, pause: Pause) -> None:
        pace, found = Pace(pause), dict[str, tuple[Hashable, GangStatus]]()
        for listed in list(self._gangs):
            uid, gang = row_uid(listed), self._source.view.gang(listed.namespace, listed.group.name)
            if gang is None:
                continue  # Its members are gone since.
            state, known = self._state(gang), self._gang_answers.get(uid)
            if known is None or known[0] != state:
                known = state, gang_status(self._source.cluster, gang)
                await pace.step()
            found[uid] = known
        self._gang_answers = found

    def _state(self, gang: GangView) -> Hashable:
        """All that an answer about the gang depends on."""
        arrays = self._source.ledger.arrays
        return arrays.epoch, arrays.now, gang

    def _gang_row(self, gang: GangView) -> WaitingRow:
        uid = row_uid(gang)
        _, found = self._gang_answers.get(uid, (None, None))
        # Members that are bound, or made anew, do not make the others wait for a shorter time.
        before = self.rows.get(uid)
        known = [self._source.gang_since(gang), before.since if before is not None else None]
        return WaitingRow(
            uid=uid,
            namespace=gang.namespace,
            name=gang.group.name,
            owner=self._source.origin(gang.members[0].request.uid).owner,
            since=min((since for since in known if since is not None), default=None),
            asks=describe_members([member.request for member in gang.members if member.state != "done"]),
            why=found.text if found is not None else NOT_JUDGED,
            gang=gang_document(gang, self._source.ledger, found.fitting if found is not None else None),
        )

    async def _answer(self, request: PodRequest, names: Sequence[str], pause: Pause) -> Answer:
        """In steps of some milliseconds, so that a decision that waits does not wait for long."""
        try:
            return await finish_in_steps(_judge(self._source.view, request, names), Allowance(pause, MAX_S))
        except TooLong:
            return NOT_YET

    def _answer_of(self, pod: WaitingPod) -> Answer:
        if claim := self._claim(pod):
            return Answer(claim)
        return Answer(pod.problem) if pod.request is None else self._answers.get(_shape(pod), NEVER)[1]

    def _claim(self, pod: WaitingPod) -> str:
        """What a nominated pod waits for; empty if it is not nominated."""
        ledger = self._source.ledger
        nomination = ledger.nominations.get(pod.uid)
        if nomination is None:
            return f"nominated for {pod.nominated_node}, where other pods make room" if pod.nominated_node else ""
        entries = [entry for uid in sorted(nomination.victims) if (entry := ledger.pod(uid)) is not None]
        names = [f"{entry.facts.namespace}/{entry.facts.name}" for entry in entries[:NAMED_VICTIMS]]
        names += [count_of(len(entries) - NAMED_VICTIMS, "other")] if len(entries) > NAMED_VICTIMS else []
        where = f"nominated for {nomination.facts.node}"
        have = "has" if len(entries) == 1 else "have"
        return f"{where}: it waits until {', '.join(names)} {have} left" if names else f"{where}, where it fits now"


def _judge(view: EngineView, request: PodRequest, names: Sequence[str]) -> Generator[None, None, Answer]:
    selector = view.selector
    _, selected = yield from selector.select_in_steps((request,), selector.candidates(names), MAX_WORK)
    if isinstance(selected, Selected):
        return Answer(f"it fits on {selected.placement.node}, and waits for its turn")
    held = view.held_for_gang(request, selector.candidates(names))
    if held:
        return Answer(held)
    found = yield from judge_refusal(view, request, names, selected, cards=False, work=MAX_WORK)
    nearest = "; ".join(filter(None, (found.near_miss, *found.wishes)))
    return Answer(reasons_text(found.groups) or "kube-scheduler excludes every node", nearest, found.change)


def reasons_text(groups: Iterable[NodeGroup]) -> str:
    """The most frequent reasons in words: nodes that say the same with other numbers of cards count together."""
    nodes: Counter[str] = Counter()
    for group in groups:
        nodes[group.words or group.reason] += len(group.nodes)
    of = count_of(nodes.total(), "node")
    return "; ".join(f"{count} of {of}: {words}" for words, count in nodes.most_common(NAMED_REASONS))


def _first(gangs: Iterable[GangView]) -> Iterator[GangView]:
    """As many as have `MAX_PODS` members together."""
    left = MAX_PODS
    for gang in gangs:
        left -= len(gang.members)
        if left < 0:
            return
        yield gang


def row_uid(gang: GangView) -> str:
    """No pod's: uids of pods have no slash."""
    return owner_uid(f"{gang.namespace}/{gang.group.name}")


def gang_document(gang: GangView, ledger: Ledger, fitting: int | None) -> Json:
    """What its row says beside what a pod's says. `fitting`: members that would fit now, if that is known."""
    return {
        "size": gang.group.size,
        "required": gang.required,
        "exist": gang.present,
        "gated": gang.gated,
        "bound": gang.bound,
        "fit": fitting,
        "until": gang.until,
        "members": [_member(member, ledger) for member in gang.members],
    }


def _member(member: GangMember, ledger: Ledger) -> list[str]:
    """Its name, its state and its node, if it has one."""
    entry = ledger.pod(member.request.uid)
    node = entry.facts.node if entry is not None else ""
    state = entry.state.value if entry is not None else "waits" if member.state == "pending" else member.state
    return [member.request.name, state, node]


def _shape(pod: WaitingPod) -> Hashable:
    assert pod.request is not None
    return pod.request.shape, pod.namespace, pod.candidates
