"""The history of a pod for people."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tessera.inspect.pod_history import BAD_ENDS, HistoryStep, PodHistory
from tessera.inspect.render.journal import WHY_RELEASED, ask_text, grants_text, reasons_text, time_text
from tessera.inspect.render.lines import Style, StyledLine, count_of
from tessera.inspect.state import Json
from tessera.services.value_types import format_duration

STYLES = {"placed": Style.GOOD, "bound": Style.GOOD} | dict.fromkeys(BAD_ENDS, Style.WARN)


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
