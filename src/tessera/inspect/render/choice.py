"""Why a node and its cards were chosen, as lines for people: scores, or by how much the loss would grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from tessera.core.policies.fragmentation import Growth
from tessera.core.policies.fragmentation.growth import MISSING
from tessera.inspect.choice import Fits, ScoredNode
from tessera.inspect.demand import ExpectedDemand, SliceDemand
from tessera.inspect.render.lines import Style, StyledLine, TableColumn, count_of, join_names, table

CARDS = 16
"""how many cards are listed with their scores"""
SLICES = 3
"""how many of the expected slices are listed"""
DIGITS = 4
"""after the decimal point, of amounts in cards"""

PARTS = (
    ("leftovers", "leftover parts", "parts of cards too small for the pods expected"),
    ("unserved", "host too small", "idle cards that the host has too little free CPU or memory for; ? = unknown"),
    ("groups", "groups broken", "groups of idle cards that pods request together"),
    ("scarce", "scarce model", "cards of a model that other pods depend on"),
    ("emptiness", "empty node", "room on the node, which would be whole sooner without the pod"),
)
"""parts of the growth: field, name and meaning"""


def choice_lines(verdict: Fits, expected: ExpectedDemand | None) -> Iterator[StyledLine]:
    if verdict.best and verdict.best[0].growth is not None:
        yield from _growths(verdict)
    else:
        yield from _scores(verdict)
    shown = ", ".join(f"{one.index} ({_card(one.score, verdict)})" for one in verdict.cards[:CARDS])
    what = "how much more of each would be lost to leftovers" if verdict.cards_by_growth else "scores"
    yield StyledLine(f"cards of {verdict.cards_of} in the order of the card policy, with {what}: {shown}")
    if expected is not None:
        yield StyledLine(_expectation(expected), Style.DIM)


def _scores(verdict: Fits) -> Iterator[StyledLine]:
    more = f", {verdict.fitting - len(verdict.best)} more" if verdict.fitting > len(verdict.best) else ""
    nodes = ", ".join(f"{one.node} ({one.score:.2f})" for one in verdict.best)
    yield StyledLine(f"nodes that fit in the order of the node policy, with scores: {nodes}{more}")


def _growths(verdict: Fits) -> Iterator[StyledLine]:
    yield StyledLine(
        "the pod goes where the loss grows least: what the expected pods cannot use, in cards; below 0 is a gain"
    )
    yield StyledLine(_verdict(verdict.best))
    rows = [(one.node, *_cells(one.growth)) for one in verdict.best if one.growth is not None]
    titles = ("NODE", "LOSS GROWS", *(name.upper() for _, name, _ in PARTS))
    columns = [TableColumn(title, itemgetter(at), right=at > 0) for at, title in enumerate(titles)]
    yield from (line.indented() for line in table(columns, rows))
    if verdict.fitting > len(verdict.best):
        yield StyledLine(
            f"and {count_of(verdict.fitting - len(verdict.best), 'more node')} where it grows at least as much"
        ).indented()
    for _, name, meaning in PARTS:
        yield StyledLine(f"{name}: {meaning}", Style.DIM).indented(4)
    if not verdict.cards_by_growth:
        yield StyledLine("these numbers are for the best cards of each node; the card policy may choose others")


def _cells(growth: Growth) -> list[str]:
    if not growth.is_weighed:
        return ["tried last", *("?" for _ in PARTS)]
    return [_signed(growth.total), *(_signed(getattr(growth, field)) for field, _, _ in PARTS)]


def _verdict(nodes: Sequence[ScoredNode]) -> str:
    """Why the first node was chosen."""
    winner, others = nodes[0], nodes[1:]
    if not others:
        return f"{winner.node} is the only node that fits"
    second = others[0]
    mine, its = winner.growth, second.growth
    assert mine is not None  # the caller has checked
    assert its is not None
    if mine.total == its.total:
        return f"{winner.node} and {second.node} lose the same: the first by name is chosen"
    if not its.is_weighed:
        return f"{winner.node} is chosen because the loss of {second.node} is unknown"
    parts = {name: (getattr(its, field) or 0.0) - (getattr(mine, field) or 0.0) for field, name, _ in PARTS}
    differing = sorted(((gain, name) for name, gain in parts.items() if round(gain, DIGITS)), reverse=True)
    said = [f"{name} {abs(gain):.{DIGITS}f} {'less' if gain > 0 else 'more'}" for gain, name in differing]
    less = f"{winner.node} loses {its.total - mine.total:.{DIGITS}f} cards less than {second.node}"
    return f"{less}: {', '.join(said)}" if said else less


def _signed(amount: float | None) -> str:
    return "?" if amount is None else f"{amount:+.{DIGITS}f}" if amount else "0"


def _card(score: float, verdict: Fits) -> str:
    if not verdict.cards_by_growth:
        return f"{score:.2f}"
    return _signed(score) if score < MISSING / 2 else "no room"


def _expectation(expected: ExpectedDemand) -> str:
    often = join_names([_slice(one) for one in expected.slices[:SLICES]])
    more = f" and {len(expected.slices) - SLICES} more" if len(expected.slices) > SLICES else ""
    if not expected.learned_from:
        known = f"{expected.pods} of the {expected.needed} pods needed to learn from have been seen"
        return f"expected pods (assumed; {known}): slices of {often}{more}"
    learned = f"learned from {count_of(expected.learned_from, 'pod')} of this cluster"
    return f"expected pods ({learned}): slices of {often}{more}"


def _slice(one: SliceDemand) -> str:
    size = f"{one.memory_percent} %"
    if one.memory_percent != one.cores_percent:
        size = f"{one.memory_percent} % memory and {one.cores_percent} % cores"
    return f"{size} ({100 * one.part:.0f} in 100)"
