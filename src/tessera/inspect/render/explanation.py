"""Explanations, verdicts, choices and simulations for people, with the reasons of the wire in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tessera.core.policies.fragmentation.growth import MISSING
from tessera.inspect.demand import ExpectedDemand, SliceDemand
from tessera.inspect.explanation import Explanation, PodVerdict
from tessera.inspect.gang_status import GangStatus
from tessera.inspect.preemption import PreemptionOutlook
from tessera.inspect.render.lines import Style, StyledLine, TableColumn, count_of, join_names, table
from tessera.inspect.render.usage import short_model
from tessera.inspect.request import RequestSummary
from tessera.inspect.simulation import SimulatedPlacement, Simulation
from tessera.inspect.slices import GrantedSlice
from tessera.inspect.state import ClusterState
from tessera.inspect.verdicts import CardRefusal, Fits, FitsNowhere, NodeGroup, ScoredNode

CARDS = 16
"""how many cards are listed with their scores"""
SLICES = 3
"""how many of the expected slices are listed"""
DIGITS = 4
"""after the decimal point, of amounts in cards"""

LISTED = 20
"""how many copies are listed one by one"""


def choice_lines(verdict: Fits, expected: ExpectedDemand | None) -> Iterator[StyledLine]:
    yield StyledLine(_nodes(verdict))
    shown = ", ".join(f"{one.index} ({_card(one.score, verdict)})" for one in verdict.cards[:CARDS])
    what = "how much more of each would be lost to leftovers" if verdict.cards_by_growth else "scores"
    yield StyledLine(f"cards of {verdict.cards_of} in the order of the card policy, with {what}: {shown}")
    if expected is not None:
        yield StyledLine(_expectation(expected), Style.DIM)


def _nodes(verdict: Fits) -> str:
    more = f", {verdict.fitting - len(verdict.best)} more" if verdict.fitting > len(verdict.best) else ""
    nodes = ", ".join(f"{one.node} ({_node(one)})" for one in verdict.best)
    by_growth = any(one.growth is not None for one in verdict.best)
    what = "how much their loss grows, in cards" if by_growth else "scores"
    return f"nodes that fit in the order of the node policy, with {what}: {nodes}{more}"


def _node(one: ScoredNode) -> str:
    if one.growth is None:
        return f"{one.score:.2f}"
    return _signed(one.growth) if one.growth < MISSING / 2 else "tried last"


def _signed(amount: float) -> str:
    return f"{amount:+.{DIGITS}f}" if amount else "0"


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


HOLDERS = 5
"""how many holders of a card are named"""

STYLES = {
    PodVerdict.PLACED: Style.GOOD,
    PodVerdict.FITS: Style.GOOD,
    PodVerdict.REFUSED: Style.BAD,
    PodVerdict.INVALID: Style.BAD,
    PodVerdict.UNACCOUNTED: Style.BAD,
    PodVerdict.GANG_WAITING: Style.BAD,
    PodVerdict.CLAIM_WAITING: Style.BAD,
    PodVerdict.UNJUDGED: Style.WARN,
}

SAID = (
    PodVerdict.FITS,
    PodVerdict.REFUSED,
    PodVerdict.INVALID,
    PodVerdict.GANG_WAITING,
    PodVerdict.CLAIM_WAITING,
    PodVerdict.UNJUDGED,
)
"""verdicts with which kube-scheduler's own message is shown"""


def explanation_lines(found: Explanation, *, width: int | None = None) -> Iterator[StyledLine]:
    yield StyledLine(f"{found.namespace}/{found.name}: {_headline(found)}", STYLES.get(found.status, Style.PLAIN))
    for note in found.notes:
        yield StyledLine(f"note: {note}", Style.WARN)
    if found.problem:
        yield StyledLine(found.problem, Style.BAD).indented()
    if found.gang is not None:
        yield from gang_lines(found.gang)
    if found.request is not None:
        yield from request_lines(found.request, with_claims=not found.claims)
    if found.claims:
        yield from section("ResourceClaims", [StyledLine(line) for each in found.claims for line in each.lines])
    if found.status is PodVerdict.PLACED:
        yield from _placed(found)
    elif isinstance(found.verdict, Fits):
        yield from _would_go(found, found.verdict)
    elif found.verdict is not None:
        yield from refusal_lines(found.verdict, found.kept_off, width=width)
    if found.preemption is not None:
        yield from section("Preemption", [preemption_line(found.preemption)])
    if found.moves is not None:
        yield from section("Defragmentation", [StyledLine(found.moves.sentence, Style.GOOD)])
    if found.said and found.status in SAID:
        yield from section("kube-scheduler's last message", [StyledLine(found.said)])


def preemption_line(found: PreemptionOutlook) -> StyledLine:
    return StyledLine(found.text, Style.GOOD if found.node else Style.PLAIN)


def source_lines(state: ClusterState) -> Iterator[StyledLine]:
    """What the answer is based on; the last lines of every answer."""
    known = f"flags of {state.setup.flags_from}" if state.setup.flags_from else "the scheduler's flags are unknown"
    yield StyledLine()
    yield StyledLine(f"from {state.source}; device configuration: {state.setup.device_config_from}; {known}", Style.DIM)
    yield from unseen_lines(state)


def unseen_lines(state: ClusterState) -> Iterator[StyledLine]:
    """What could not be read, and what that means."""
    for text in state.unseen:
        yield StyledLine(f"not readable: {text}", Style.WARN)


def request_lines(request: RequestSummary, *, with_claims: bool = True) -> Iterator[StyledLine]:
    """`with_claims`: what claims ask for as well."""
    lines = [StyledLine(one.text) for one in request.asked if with_claims or not one.claim]
    yield from section("Requests", [*lines, StyledLine("; ".join(wish.text for wish in request.wishes))])


def gang_lines(gang: GangStatus) -> Iterator[StyledLine]:
    least = "" if gang.minimum == gang.size else f", at least {gang.minimum} together"
    heading = f"Gang {gang.namespace}/{gang.name}, {count_of(gang.size, 'member')}{least}"
    lines = [StyledLine(gang.text, Style.GOOD if gang.fits else Style.BAD)]
    lines += [preemption_line(gang.preemption)] if gang.preemption is not None else []
    yield from section(heading, lines)


def refusal_lines(
    verdict: FitsNowhere, kept_off: Sequence[NodeGroup], *, width: int | None, what: str = "Why not"
) -> Iterator[StyledLine]:
    """Why the pod does not fit, and what would help."""
    candidates = sum(len(group.nodes) for group in verdict.groups)
    heading = (
        f"{what}, on {count_of(candidates, 'node')}" if candidates else f"{what}: kube-scheduler excludes every node"
    )
    yield from section(heading, _groups(verdict.groups))
    if kept_off:
        yield from section("Excluded by kube-scheduler before Tessera is asked", _groups(kept_off))
    if verdict.near_miss:
        holders = join_names([holder.text for holder in verdict.holders], HOLDERS)
        held = [StyledLine(f"that card is held by {holders}")] if holders else []
        yield from section("Closest fit", [StyledLine(verdict.near_miss, Style.WARN), *held])
    if verdict.wishes:
        yield from section("What there is", [StyledLine(text, Style.WARN) for text in verdict.wishes])
    if verdict.mode:
        yield from section("What the pod lacks", [StyledLine(verdict.mode, Style.GOOD)])
    if verdict.changes:
        changes = [StyledLine(change.text, Style.GOOD) for change in verdict.changes]
        yield from section("Any one of these changes would make it fit", changes)
    if verdict.cards:
        yield from section("Card by card", _cards(verdict.cards, width))
    if candidates and not (verdict.near_miss or verdict.changes or verdict.mode or verdict.wishes):
        yield from section(
            "What would help", [StyledLine("no smaller request would fit either: see the reasons above")]
        )


def slice_text(one: GrantedSlice) -> str:
    size = f"{one.memory_mib} MiB" if one.memory_mib else "no memory"
    cores = f", {one.cores} cores" if one.cores else ""
    mig = f", MIG {one.mig}" if one.mig else ""
    where = ", ".join(filter(None, (one.card, short_model(one.model) if one.model else "")))
    return f"{one.title}: card {one.index}, {size}{cores}{mig} ({where})"


def _headline(found: Explanation) -> str:
    match found.status:
        case PodVerdict.PLACED:
            return f"placed on {found.node}"
        case PodVerdict.GANG_WAITING:
            return "waits for its gang"
        case PodVerdict.FITS:
            node = found.verdict.node if isinstance(found.verdict, Fits) else found.node
            return f"not placed yet; it fits on {node}"
        case PodVerdict.REFUSED:
            return "pending: it fits on no node"
        case PodVerdict.UNJUDGED:
            return "not placed yet; you may not list nodes, so nothing says where it would fit"
        case PodVerdict.CLAIM_WAITING:
            return "pending: it waits for a ResourceClaim"
        case PodVerdict.INVALID:
            return "pending: its request is invalid"
        case PodVerdict.UNACCOUNTED:
            return f"on {found.node}, but without an allocation"
        case PodVerdict.NO_DEVICES:
            return "requests no devices, so Tessera does not place it"
        case PodVerdict.ENDED:
            return f"ended ({found.phase}); it holds no devices"


def _placed(found: Explanation) -> Iterator[StyledLine]:
    yield from section("Holds", [StyledLine(slice_text(one)) for one in found.slices])
    if not isinstance(found.verdict, Fits):
        if found.verdict is not None:
            text = "it would not fit today: the cluster has changed since it was placed"
            yield from section("Why there", [StyledLine(text, Style.WARN)])
        return
    lines = [*choice_lines(found.verdict, found.expected)]
    if found.verdict.node != found.node:
        lines.append(
            StyledLine(
                f"today it would go to {found.verdict.node}: other pods have come or gone since",
                Style.DIM,
            )
        )
    yield from section("Why there (as the choice looks today, without this pod)", lines)


def _would_go(found: Explanation, verdict: Fits) -> Iterator[StyledLine]:
    yield from section("Would get", [StyledLine(slice_text(one)) for one in verdict.slices])
    yield from section("Why there", choice_lines(verdict, found.expected))


def _groups(groups: Iterable[NodeGroup]) -> Iterator[StyledLine]:
    for group in groups:
        yield StyledLine(f"{count_of(len(group.nodes), 'node')}: {group.reason}", Style.WARN)
        words = "; ".join(filter(None, (group.words, group.detail)))
        if words:
            yield StyledLine(f"  {words}")
        yield StyledLine(f"  {join_names(group.nodes)}", Style.DIM)


def _cards(cards: Sequence[CardRefusal], width: int | None) -> list[StyledLine]:
    columns: list[TableColumn[CardRefusal]] = [
        TableColumn("NODE", lambda card: card.node),
        TableColumn("CARD", lambda card: card.index, right=True),
        TableColumn("REASON", lambda card: card.reason),
        TableColumn("ASKED", lambda card: _number(card.asked), right=True),
        TableColumn("FREE", lambda card: _number(card.free), right=True),
        TableColumn("TOTAL", lambda card: _number(card.total), right=True),
        TableColumn("HELD BY", lambda card: join_names([holder.text for holder in card.holders], HOLDERS) or "-"),
    ]
    return table(columns, cards, width=None if width is None else width - 2)


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def section(title: str, lines: Iterable[StyledLine]) -> Iterator[StyledLine]:
    yield StyledLine()
    yield StyledLine(title, Style.HEAD)
    for line in lines:
        yield line.indented()


def simulation_lines(found: Simulation, *, width: int | None = None) -> Iterator[StyledLine]:
    yield StyledLine(
        f"{found.namespace}/{found.name}: {_simulation_headline(found)}", Style.GOOD if found.all_fit else Style.BAD
    )
    for warning in found.warnings:
        yield StyledLine(f"warning from the webhook: {warning}", Style.WARN)
    if found.request is not None:
        yield from request_lines(found.request)
    yield from _copies(found)
    if found.why is not None:
        heading = "Why there" if found.count == 1 else f"Why the first copy goes to {found.why.node}"
        yield from section(heading, choice_lines(found.why, found.expected))
    if found.request is not None or found.stop is not None:
        yield from section("How many fit", [StyledLine(_total(found))])
    if found.stop is not None:
        what = f"What stops {'the next copy' if found.all_fit else f'copy {found.fits_in_all + 1}'}"
        if found.stop.verdict is not None:
            yield from refusal_lines(found.stop.verdict, found.stop.kept_off, width=width, what=what)
        else:
            yield from section(what, [StyledLine(found.stop.text, Style.WARN)])
        if found.stop.preemption is not None:
            yield from section("Preemption", [preemption_line(found.stop.preemption)])


def _simulation_headline(found: Simulation) -> str:
    if found.request is None and found.stop is None:
        return "requests no devices, so Tessera does not place it"
    if found.count == 1:
        return f"would go to {found.placed[0].node}" if found.placed else "would not be placed"
    return f"{min(found.fits_in_all, found.count)} of {found.count} would be placed"


def _copies(found: Simulation) -> Iterator[StyledLine]:
    if not found.placed:
        return
    if found.count == 1:
        yield from section("Would get", [StyledLine(slice_text(each)) for each in found.placed[0].slices])
        return
    nodes = ", ".join(f"{node} {number}" for node, number in found.by_node.items())
    lines = [f"{one.name} on {one.node}: {_copy_cards(one)}" for one in found.placed[:LISTED]]
    lines += [f"and {len(found.placed) - LISTED} more"] if len(found.placed) > LISTED else []
    yield from section(f"Would go to: {nodes}", map(StyledLine, lines))


def _copy_cards(one: SimulatedPlacement) -> str:
    """Groups equal slices of a container."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for each in one.slices:
        holder = each.container or f"claim {each.claim}"
        groups.setdefault((holder, each.memory_mib, each.cores), []).append(str(each.index))
    return "; ".join(
        f"{container} gets card{'s' if len(cards) > 1 else ''} {', '.join(cards)} ({memory} MiB, {cores} cores"
        f"{' each' if len(cards) > 1 else ''})"
        for (container, memory, cores), cards in groups.items()
    )


def _total(found: Simulation) -> str:
    if found.stop is None:
        return f"at least {found.fits_in_all}; counting stopped there"
    beyond = found.fits_in_all - found.count
    more = f": {beyond} more than requested" if beyond > 0 else ""
    return f"{found.fits_in_all} in all{more}"
