"""Why a node and its cards were chosen, as lines for people: scores, or the growth of the loss and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.core.policies.fragmentation import Growth
from tessera.core.policies.fragmentation.growth import MISSING
from tessera.inspect.choice import Fits, ScoredNode
from tessera.inspect.demand import Asked, Expected
from tessera.inspect.render.lines import Column, Line, Style, counted, listed, table

CARDS = 16
"""cards named with their scores"""
SLICES = 3
"""slices named of those that pods ask for"""
DIGITS = 4
"""of amounts in cards"""

PARTS = (
    ("leftovers", "leftover parts", "parts of cards that no pod will come for"),
    ("unserved", "host too small", "idle cards beyond what the host's free CPU and memory can serve; ? = not known"),
    ("groups", "groups broken", "whole groups of cards that pods ask for together"),
    ("scarce", "scarce model", "cards of a model that other pods cannot do without"),
)
"""of the growth: field, name and what it counts"""


def why(verdict: Fits, expected: Expected | None) -> Iterator[Line]:
    if verdict.best and verdict.best[0].growth is not None:
        yield from _growths(verdict)
    else:
        yield from _scores(verdict)
    shown = ", ".join(f"{one.index} ({_card(one.score, verdict)})" for one in verdict.cards[:CARDS])
    what = "how much more of each would be lost to leftovers" if verdict.cards_by_growth else "their scores"
    yield Line(f"cards of {verdict.cards_of}, best first by the card policy, with {what}: {shown}")
    if expected is not None:
        yield Line(_expectation(expected), Style.DIM)


def _scores(verdict: Fits) -> Iterator[Line]:
    more = f", {verdict.fitting - len(verdict.best)} more" if verdict.fitting > len(verdict.best) else ""
    nodes = ", ".join(f"{one.node} ({one.score:.2f})" for one in verdict.best)
    yield Line(f"nodes that fit, best first by the node policy, with their scores: {nodes}{more}")


def _growths(verdict: Fits) -> Iterator[Line]:
    yield Line("the pod goes where the loss grows least: what the pods to come cannot use, in cards; below 0 is a gain")
    yield Line(_verdict(verdict.best))
    columns = [Column("NODE"), Column("LOSS GROWS", right=True), *(Column(n.upper(), right=True) for _, n, _ in PARTS)]
    rows = [((one.node, *_cells(one.growth)), Style.PLAIN) for one in verdict.best if one.growth is not None]
    yield from (line.indented() for line in table(columns, rows))
    if verdict.fitting > len(verdict.best):
        yield Line(f"and {counted(verdict.fitting - len(verdict.best), 'more node')} where it grows no less").indented()
    for _, name, meaning in PARTS:
        yield Line(f"{name}: {meaning}", Style.DIM).indented(4)
    if not verdict.cards_by_growth:
        yield Line("this is on the best cards of each node; the card policy may take others")


def _cells(growth: Growth) -> list[str]:
    if not growth.is_weighed:
        return ["tried last", *("?" for _ in PARTS)]
    return [_signed(growth.total), *(_signed(getattr(growth, field)) for field, _, _ in PARTS)]


def _verdict(nodes: Sequence[ScoredNode]) -> str:
    """Why the first of them won."""
    winner, others = nodes[0], nodes[1:]
    if not others:
        return f"{winner.node} is the only node that fits"
    second = others[0]
    mine, its = winner.growth, second.growth
    assert mine is not None  # the caller has looked
    assert its is not None
    if mine.total == its.total:
        return f"{winner.node} and {second.node} lose alike: the first by name is taken"
    if not its.is_weighed:
        return f"{winner.node} is taken because no card of {second.node} could be weighed"
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


def _expectation(expected: Expected) -> str:
    often = listed([_slice(one) for one in expected.slices[:SLICES]])
    more = f" and {len(expected.slices) - SLICES} more" if len(expected.slices) > SLICES else ""
    if not expected.learned_from:
        known = f"{expected.pods} of the {expected.needed} pods that it takes to learn are known"
        return f"the pods to come are guessed, {known}: slices of {often}{more}"
    return f"the pods to come, as {counted(expected.learned_from, 'pod')} of this cluster tell: slices of {often}{more}"


def _slice(one: Asked) -> str:
    size = f"{one.memory_percent} %"
    if one.memory_percent != one.cores_percent:
        size = f"{one.memory_percent} % memory and {one.cores_percent} % cores"
    return f"{size} ({100 * one.part:.0f} in 100)"
