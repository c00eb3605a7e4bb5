"""The answer of `tessera replay`, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.inspect.render.journal import difference_lines
from tessera.inspect.render.lines import Style, StyledLine, count_of
from tessera.inspect.replay import Difference, Outcome, PlacedOutcome, ReplayCounts
from tessera.inspect.state import Json


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
