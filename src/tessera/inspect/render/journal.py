"""Records of a journal for people: a table of them, the history of a pod, and the answer of `tessera replay`.

Of a decision that comes out differently, both sides are shown.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from tessera.core.model.misfits import plain_reasons
from tessera.core.search.selection import OTHER_REASONS
from tessera.inspect.pod_history import BAD_ENDS, HistoryStep, PodHistory
from tessera.inspect.render.lines import GAP, Style, StyledLine, count_of, printable
from tessera.inspect.replay import Difference, Outcome, PlacedOutcome, ReplayCounts
from tessera.inspect.state import Json
from tessera.services.value_types import format_duration
from tessera.wire.journal import (
    Bind,
    Decision,
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
    SteppedDown,
    TookOver,
    Unfinished,
    Woken,
)
from tessera.wire.journal_values import Device, Grant, Grants, NodeState, PodAsk, PodRef

MAX_REASONS = 3
"""of a refusal that are named in a line"""
KIND_WIDTH = len("unfinished")
LEAST_SUBJECT, MAX_SUBJECT, MAX_SUBJECT_NARROW = 16, 28, 24
"""the column of pods and nodes grows with what it holds, between these"""
LEAST_TEXT = 24
"""characters of the last column on any terminal"""
NARROW = 100
"""columns of a terminal below which milliseconds and what a decision cost are left out"""

STYLES = {"placed": Style.GOOD, "bound": Style.GOOD} | dict.fromkeys(BAD_ENDS, Style.WARN)


class JournalTable:
    """Records as rows of a table that has no end. Its widths follow what has been shown so far."""

    def __init__(self, *, width: int | None) -> None:
        """`width` is that of the terminal; None if lines may have any length."""
        self._width = width
        self._is_narrow = width is not None and width < NARROW
        self._most_subject = MAX_SUBJECT_NARROW if self._is_narrow else MAX_SUBJECT
        self._subject = LEAST_SUBJECT
        self._day = ""

    def lines(self, record: Record) -> Iterator[StyledLine]:
        """A row, which may have several lines, after the day if that is another one."""
        day, time = time_text(record.time).removesuffix("Z").split("T")
        if self._is_narrow:
            time = time.partition(".")[0]
        if day != self._day:
            self._day = day
            yield StyledLine(f"{day} UTC", Style.HEAD)
        subject, text, style = _row(record)
        subject, text = printable(subject), printable(text + self._effort(record))
        self._subject = max(self._subject, min(len(subject), self._most_subject))
        head = f"{time}{GAP}{_kind(record):<{KIND_WIDTH}}{GAP}{subject:<{self._subject}}"
        indent = len(time) + KIND_WIDTH + self._subject + 3 * len(GAP)
        parts = self._wrap(text, indent)
        if len(head) + len(GAP) > indent and self._width is not None:
            yield StyledLine(head, style)
        else:
            yield StyledLine(f"{head}{GAP}{parts.pop(0)}".rstrip(), style)
        for part in parts:
            yield StyledLine(f"{' ' * indent}{part}", style)

    def _effort(self, record: Record) -> str:
        """Among how many nodes was decided, and how long that took; where there is room for it."""
        if not isinstance(record, Decision) or self._is_narrow:
            return ""
        nodes = f"{count_of(record.candidates.count, 'node')}, " if record.candidates is not None else ""
        return f" [{nodes}{record.microseconds} us]"

    def _wrap(self, text: str, indent: int) -> list[str]:
        if self._width is None:
            return [text]
        return textwrap.wrap(text, max(LEAST_TEXT, self._width - indent), break_long_words=False) or [""]


def _kind(record: Record) -> str:
    return str(type(record).__struct_config__.tag)


def record_text(record: Record) -> str:
    """What happened, without the time, the kind and the pod."""
    _, text, _ = _row(record)
    return text


def time_text(time: float) -> str:
    """In the form that --since reads."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def difference_lines(difference: Difference) -> Iterator[StyledLine]:
    """What was recorded, and what is decided now."""
    decision = difference.decision
    which = f"record {decision.sequence} of {time_text(decision.time)}"
    yield StyledLine(f"{which}: the decision about {pod_text(decision.pod)} differs", Style.BAD)
    yield StyledLine(f"it asked for {ask_text(decision.ask)}").indented()
    yield StyledLine(f"recorded: {outcome_text(difference.recorded)}", Style.WARN).indented()
    yield StyledLine(f"now:      {outcome_text(difference.decided)}", Style.WARN).indented()
    if difference.best:
        best = ", ".join(f"{name} ({score:g})" for name, score in difference.best)
        yield StyledLine(f"the best nodes now, with their scores: {best}", Style.DIM).indented()


def outcome_text(outcome: Outcome) -> str:
    if isinstance(outcome, PlacedOutcome):
        return f"placed on {outcome.node}: {grants_text(outcome.grants)}; score {outcome.score:g}"
    return f"refused: {reasons_text(outcome.reasons)}"


def pod_text(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"


def grants_text(grants: Grants, *, uuids: bool = True) -> str:
    """The slices, container by container; equal ones together."""
    found: dict[int, dict[str, list[Grant]]] = {}
    for held in grants.values():
        for container, slices in enumerate(held):
            for one in slices:
                found.setdefault(container, {}).setdefault(_amounts(one), []).append(one)
    several = len(found) > 1
    return "; ".join(
        (f"container {container}: " if several else "")
        + ", ".join(_cards(same, amounts, uuids=uuids) for amounts, same in groups.items())
        for container, groups in sorted(found.items())
    )


def _cards(grants: Sequence[Grant], amounts: str, *, uuids: bool) -> str:
    ordered = sorted(grants, key=lambda grant: grant.index)
    names = [f"{grant.index} ({grant.uuid})" if uuids else str(grant.index) for grant in ordered]
    if len(names) == 1:
        return f"card {names[0]} {amounts}".rstrip()
    return f"cards {', '.join(names[:-1])} and {names[-1]}{f', {amounts} each' if amounts else ''}"


def _amounts(grant: Grant) -> str:
    size = f"{grant.memory} MiB" if grant.memory else ""
    cores = f"{grant.cores} cores" if grant.cores else ""
    mig = f"MIG {grant.mig.profile} at {grant.mig.start}" if grant.mig is not None else ""
    return ", ".join(filter(None, (size, cores, mig)))


def reasons_text(reasons: Iterable[tuple[str, int]]) -> str:
    """Why no node fits, the most frequent reason first, with the texts that kube-scheduler gets."""
    found = sorted(reasons, key=lambda reason: (-reason[1], reason[0]))
    return "; ".join(_reason(text, count) for text, count in found) or "no node was named"


def brief_reasons_text(reasons: Mapping[str, int]) -> str:
    """Why no node fits, in words alone; different numbers of cards with the same reasons are one."""
    counts: Counter[str] = Counter()
    for text, count in reasons.items():
        counts[(plain_reasons(text) if text != OTHER_REASONS else "") or text] += count
    found = sorted(counts.items(), key=lambda reason: (-reason[1], reason[0]))
    texts = [f"{count_of(count, 'node')}: {words}" for words, count in found[:MAX_REASONS]]
    more = len(found) - len(texts)
    return "; ".join([*texts, *([f"{count_of(more, 'more reason')}"] if more else [])]) or "no node was named"


def ask_text(ask: PodAsk) -> str:
    """What the containers ask for."""
    parts = []
    for container in ask.containers:
        for one in container.requests:
            memory = f"{one.memory} MiB" if one.memory else f"{one.percent} % of the memory" if one.percent else ""
            amounts = " and ".join(filter(None, (memory, f"{one.cores} cores" if one.cores else "")))
            each = " with " if one.count == 1 else ", each with "
            parts.append(f"{count_of(one.count, f'{one.vendor} card')}{each if amounts else ''}{amounts}")
    return "; ".join(parts) or "no devices"


def _reason(text: str, count: int) -> str:
    words = plain_reasons(text) if text != OTHER_REASONS else ""
    return f"{count_of(count, 'node')}: {f'{words} ({text})' if words else text}"


def _row(record: Record) -> tuple[str, str, Style]:
    """Which pod or node, what happened, and how that looks."""
    match record:
        case Placed():
            where = "its bind names" if record.at_bind else "on"
            slices = grants_text(record.grants, uuids=False)
            text = f"{where} {record.node}: {slices}; score {record.score:g}"
            return pod_text(record.pod), text, Style.GOOD
        case Refused():
            again = f"({count_of(record.refusals, 'time')} so far) " if record.refusals > 1 else ""
            text = f"{again}{brief_reasons_text(record.reasons)}"
            return pod_text(record.pod), text, Style.WARN
        case Unfinished():
            return pod_text(record.pod), "the search takes long and goes on", Style.PLAIN
        case Bind(error=""):
            return pod_text(record.pod), f"to {record.node}", Style.GOOD
        case Bind():
            return pod_text(record.pod), f"not to {record.node}: {record.error}", Style.BAD
        case Denied():
            return f"{record.namespace}/{record.name}", f"at admission: {record.message}", Style.BAD
        case Woken():
            return pod_text(record.pod), "fits now: kube-scheduler was made to ask again", Style.PLAIN
        case Released():
            return pod_text(record.pod), f"its cards on {record.node}: {WHY_RELEASED[record.why]}", Style.PLAIN
        case Evicted():
            because = f": {record.message}" if record.message else ""
            return pod_text(record.pod), f"from {record.node}{because}", Style.WARN
        case Gang():
            return f"{record.namespace}/{record.name}", f"{record.state}: {record.text}", Style.PLAIN
    return _state_row(record)


WHY_RELEASED = {
    "ended": "it ended",
    "deleted": "it was deleted",
    "expired": "its reservation expired",
    "given up": "its reservation was given up",
}


def _state_row(record: Record) -> tuple[str, str, Style]:
    match record:
        case Start():
            return "", f"tessera {record.version}, process {record.identity}", Style.HEAD
        case SnapshotEnd():
            return "", "the state is complete; what follows is what happened", Style.DIM
        case TookOver():
            return "", "this process decides from now on", Style.HEAD
        case SteppedDown():
            return "", "this process decides no more", Style.HEAD
        case NodeRecord():
            return record.name, "gone" if record.state is None else _node_text(record.state), Style.DIM
        case PodRecord(state=None):
            return f"uid {record.uid}", "holds nothing", Style.DIM
        case PodRecord(state=held) if held is not None:
            how = "bound" if record.observed else "binding" if record.grants == "bound" else "reserved"
            what = held.problem or grants_text(held.grants, uuids=False) or "nothing"
            return f"{held.namespace}/{held.name}", f"holds on {held.node} ({how}): {what}", Style.DIM
        case NominationRecord(state=None):
            return f"uid {record.uid}", "claims nothing", Style.DIM
        case NominationRecord(state=claim) if claim is not None:
            what = grants_text(claim.grants, uuids=False) or "nothing"
            return f"{claim.namespace}/{claim.name}", f"is nominated for {claim.node}: {what}", Style.DIM
        case QuotaRecord():
            limits = "gone" if record.limits is None else ", ".join(f"{k} {v}" for k, v in record.limits.items())
            return f"{record.namespace}/{record.name}", limits or "limits no devices", Style.DIM
        case HostRecord():
            free = record.free
            return record.name, "unknown" if free is None else f"{free.cpu}m cpu, {free.memory} MiB free", Style.DIM
        case ForecastRecord():
            return f"number {record.id}", f"of {count_of(len(record.forecast.slices), 'slice')}", Style.DIM
    return "", "", Style.PLAIN


def _node_text(state: NodeState) -> str:
    if state.problem:
        return f"takes no pods: {state.problem}"
    unhealthy = sum(1 for card in state.devices if not card.healthy)
    marks = [f"{unhealthy} unhealthy"] if unhealthy else []
    marks += [f"{len(state.cordoned)} cordoned"] if state.cordoned else []
    models = ", ".join(sorted({_model(card) for card in state.devices}))
    return f"{count_of(len(state.devices), 'card')}{f' ({models})' if models else ''}{''.join(f', {m}' for m in marks)}"


def _model(card: Device) -> str:
    return card.model or card.vendor


def history_lines(history: PodHistory) -> Iterator[StyledLine]:
    yield StyledLine(
        f"{history.namespace}/{history.name}: the journal of {time_text(history.begin)} to {time_text(history.end)}"
    )
    for story in history.stories:
        yield StyledLine()
        yield StyledLine(f"pod {story.uid}" if story.uid else "denied at admission: it never existed", Style.HEAD)
        for step in story.steps:
            style = STYLES.get(step.what, Style.PLAIN)
            first, *more = _texts(step)
            yield StyledLine(f"{time_text(step.time)}  {first}", style).indented()
            for text in more:
                yield StyledLine(text, style).indented(4)
    for note in history.notes:
        yield StyledLine(f"note: {note}", Style.WARN)


def history_document(history: PodHistory) -> Json:
    """Steps have the fields that belong to their kind."""
    document: Json = msgspec.to_builtins(history)
    for story in document["stories"]:
        story["steps"] = [{key: value for key, value in step.items() if value not in EMPTY} for step in story["steps"]]
    return document


EMPTY: tuple[object, ...] = (None, "", {}, 0)


def _texts(step: HistoryStep) -> Iterator[str]:
    """What happened, and more about it."""
    match step.what:
        case "denied":
            yield f"denied: {step.why}"
        case "held":
            yield f"known from then on: it holds on {step.node}: {grants_text(step.grants or {}) or 'nothing'}"
        case "asked" if step.ask is not None:
            yield f"asks for {ask_text(step.ask)}"
            yield f"node policy {step.ask.node_policy}, card policy {step.ask.device_policy}"
        case "refused":
            yield f"refused: {_among(step)}{reasons_text(step.reasons.items())}"
            if step.nearest:
                yield step.nearest
            if step.refusals > 1:
                last = f", the last time at {time_text(step.until)}" if step.until else ""
                yield f"refused {count_of(step.refusals, 'time')} so far{last}"
        case "unfinished":
            yield "the search takes long and goes on"
        case "placed":
            yield f"placed on {step.node}: {grants_text(step.grants or {})}"
            waited = f"; {format_duration(round(step.waited, 3))} after it was first asked about" if step.waited else ""
            among = f", among {count_of(step.candidates, 'node')}" if step.candidates else ""
            yield f"score {step.score or 0.0:g}{among}{waited}"
        case _:
            yield _brief(step)


def _brief(step: HistoryStep) -> str:
    because = f": {step.why}" if step.why else ""
    match step.what:
        case "bound":
            return f"bound to {step.node}"
        case "not-bound":
            return f"not bound to {step.node}{because}"
        case "woken":
            return "woken: it fits now, and kube-scheduler was made to ask again"
        case "released":
            return f"released its cards on {step.node}: {WHY_RELEASED.get(step.why, step.why)}"
        case "evicted":
            return f"evicted from {step.node}{because}"
    return "another process of the scheduler wrote from here on"


def _among(step: HistoryStep) -> str:
    return f"none of {count_of(step.candidates, 'node')} fits; " if step.candidates else ""


def replay_lines(
    counts: ReplayCounts, difference: Difference | None, *, notes: Sequence[str], version: str
) -> Iterator[StyledLine]:
    """`version` is that of the code that decides now."""
    equal = _equal(counts, difference)
    if difference is not None:
        yield from difference_lines(difference)
        yield StyledLine(f"{count_of(equal, 'decision')} before it came out the same", Style.DIM)
    elif equal:
        which = "the decision comes" if equal == 1 else f"all {equal} decisions come"
        yield StyledLine(f"equal: {which} out the same", Style.GOOD)
    else:
        yield StyledLine("the journal has no decision that could be made again", Style.WARN)
    if counts.unfinished:
        yield StyledLine(f"{count_of(counts.unfinished, 'unfinished decision')} left out: nothing was decided")
    if counts.of_gangs:
        yield StyledLine(f"{count_of(counts.of_gangs, 'refusal')} left out: the pod's gang waited as a whole")
    if counts.without_candidates:
        text = f"{count_of(counts.without_candidates, 'decision')} left out: their candidates were not recorded"
        yield StyledLine(text, Style.WARN)
    for note in notes:
        yield StyledLine(f"note: {note}", Style.WARN)
    wrote = count_of(counts.processes, "process").replace("processs", "processes")
    yield StyledLine(
        f"from {count_of(counts.records, 'record')} of {wrote} of tessera {', '.join(counts.versions)};"
        f" decided again by tessera {version}",
        Style.DIM,
    )


def replay_document(
    counts: ReplayCounts, difference: Difference | None, *, files: Sequence[str], notes: Sequence[str]
) -> Json:
    return {
        "files": list(files),
        "equal": difference is None,
        "decisions_equal": _equal(counts, difference),
        "unfinished": counts.unfinished,
        "without_candidates": counts.without_candidates,
        "of_gangs": counts.of_gangs,
        "records": counts.records,
        "processes": counts.processes,
        "versions": list(counts.versions),
        "notes": list(notes),
        "difference": None if difference is None else _difference(difference),
    }


def _equal(counts: ReplayCounts, difference: Difference | None) -> int:
    return counts.checked - (difference is not None)


def _difference(difference: Difference) -> Json:
    decision = difference.decision
    return {
        "sequence": decision.sequence,
        "time": decision.time,
        "pod": decision.pod,
        "ask": decision.ask,
        "recorded": _outcome(difference.recorded),
        "decided": _outcome(difference.decided),
        "best_nodes": [{"node": node, "score": score} for node, score in difference.best],
    }


def _outcome(outcome: Outcome) -> Json:
    if isinstance(outcome, PlacedOutcome):
        return {"node": outcome.node, "score": outcome.score, "grants": outcome.grants}
    return {"reasons": [{"reason": text, "nodes": nodes} for text, nodes in outcome.reasons]}
