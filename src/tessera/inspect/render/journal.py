"""Records of a journal for people: one line each, and both sides of a decision that comes out differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from tessera.core.selection import OTHER_REASONS
from tessera.inspect.render.explanation import plain_reasons
from tessera.inspect.render.lines import Style, StyledLine, count_of
from tessera.inspect.replay import Difference, Outcome, PlacedOutcome
from tessera.wire.journal import (
    Bind,
    Denied,
    Device,
    Evicted,
    ForecastRecord,
    Grant,
    Grants,
    HostRecord,
    NodeRecord,
    NodeState,
    NominationRecord,
    Placed,
    PodAsk,
    PodRecord,
    PodRef,
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

KIND_WIDTH = len("stepped-down")
MOST_REASONS = 3
"""of a refusal that are named in a line"""


def record_line(record: Record) -> StyledLine:
    """The time, the kind, which pod or node, and what happened."""
    kind = str(type(record).__struct_config__.tag)
    text, style = _text(record)
    return StyledLine(f"{time_text(record.time)}  {kind:<{KIND_WIDTH}}  {text}", style)


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
    return f"refused: {reasons_text(outcome.reasons, most=None)}"


def pod_text(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"


def grants_text(grants: Grants) -> str:
    """The slices, container by container."""
    found = [(container, one) for held in grants.values() for container, slices in enumerate(held) for one in slices]
    several = len({container for container, _ in found}) > 1
    return ", ".join(
        f"container {container}: {_slice(one)}" if several else _slice(one)
        for container, one in sorted(found, key=_place)
    )


def reasons_text(reasons: Iterable[tuple[str, int]], *, most: int | None = MOST_REASONS) -> str:
    """Why no node fits, the most frequent reason first."""
    found = sorted(reasons, key=lambda reason: (-reason[1], reason[0]))
    if not found:
        return "no node was named"
    texts = [_reason(text, count) for text, count in found[:most]]
    more = len(found) - len(texts)
    return "; ".join([*texts, f"{more} more reasons"] if more else texts)


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


def _slice(grant: Grant) -> str:
    size = f"{grant.memory} MiB" if grant.memory else ""
    cores = f"{grant.cores} cores" if grant.cores else ""
    mig = f"MIG {grant.mig.profile} at {grant.mig.start}" if grant.mig is not None else ""
    amounts = ", ".join(filter(None, (size, cores, mig)))
    return f"card {grant.index} ({grant.uuid}){f' {amounts}' if amounts else ''}"


def _place(found: tuple[int, Grant]) -> tuple[int, int]:
    container, grant = found
    return container, grant.index


def _reason(text: str, count: int) -> str:
    words = plain_reasons(text) if text != OTHER_REASONS else ""
    return f"{count_of(count, 'node')}: {f'{words} ({text})' if words else text}"


def _text(record: Record) -> tuple[str, Style]:
    match record:
        case Placed():
            where = "its bind names" if record.at_bind else "placed on"
            return (
                f"{pod_text(record.pod)}  {where} {record.node}: {grants_text(record.grants)};"
                f" score {record.score:g}{_among(record)}",
                Style.GOOD,
            )
        case Refused():
            again = f" (refused {record.refusals} times)" if record.refusals > 1 else ""
            reasons = reasons_text(record.reasons.items())
            return f"{pod_text(record.pod)}  no node fits{again}: {reasons}{_among(record)}", Style.WARN
        case Unfinished():
            return f"{pod_text(record.pod)}  the search takes long and goes on{_among(record)}", Style.PLAIN
        case Bind(error=""):
            return f"{pod_text(record.pod)}  bound to {record.node}", Style.GOOD
        case Bind():
            return f"{pod_text(record.pod)}  not bound to {record.node}: {record.error}", Style.BAD
        case Denied():
            return f"{record.namespace}/{record.name}  denied at admission: {record.message}", Style.BAD
        case Woken():
            return f"{pod_text(record.pod)}  fits now: kube-scheduler was made to ask again", Style.PLAIN
        case Released():
            return f"{pod_text(record.pod)}  freed its cards on {record.node}: {_WHY[record.why]}", Style.PLAIN
        case Evicted():
            because = f": {record.message}" if record.message else ""
            return f"{pod_text(record.pod)}  evicted from {record.node}{because}", Style.WARN
    return _state_text(record)


_WHY = {
    "ended": "it ended",
    "deleted": "it was deleted",
    "expired": "its reservation expired",
    "given up": "its reservation was given up",
}


def _state_text(record: Record) -> tuple[str, Style]:
    match record:
        case Start():
            return f"tessera {record.version}, process {record.identity}", Style.HEAD
        case SnapshotEnd():
            return "the state is complete; what follows is what happened", Style.DIM
        case TookOver():
            return "this process decides from now on", Style.HEAD
        case SteppedDown():
            return "this process decides no more", Style.HEAD
        case NodeRecord():
            return f"{record.name}  {'gone' if record.state is None else _node_text(record.state)}", Style.DIM
        case PodRecord(state=None):
            return f"uid {record.uid}  holds nothing", Style.DIM
        case PodRecord(state=held) if held is not None:
            how = "bound" if record.observed else "binding" if record.grants == "bound" else "reserved"
            what = held.problem or grants_text(held.grants) or "nothing"
            return f"{held.namespace}/{held.name}  holds on {held.node} ({how}): {what}", Style.DIM
        case NominationRecord(state=None):
            return f"uid {record.uid}  claims nothing", Style.DIM
        case NominationRecord(state=claim) if claim is not None:
            what = grants_text(claim.grants) or "nothing"
            return f"{claim.namespace}/{claim.name}  is nominated for {claim.node}: {what}", Style.DIM
        case QuotaRecord():
            limits = "gone" if record.limits is None else ", ".join(f"{k} {v}" for k, v in record.limits.items())
            return f"{record.namespace}/{record.name}  {limits or 'limits no devices'}", Style.DIM
        case HostRecord():
            free = record.free
            return (
                f"{record.name}  {'unknown' if free is None else f'{free.cpu}m cpu, {free.memory} MiB free'}",
                Style.DIM,
            )
        case ForecastRecord():
            return f"number {record.id}, of {count_of(len(record.forecast.slices), 'slice')}", Style.DIM
    return "", Style.PLAIN


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


def _among(record: Placed | Refused | Unfinished) -> str:
    """Among how many nodes, and how long it took."""
    nodes = f"{count_of(record.candidates.count, 'candidate')}, " if record.candidates is not None else ""
    return f" [{nodes}{record.microseconds} us]"
