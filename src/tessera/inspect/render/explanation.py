"""An explanation, and a verdict, as a page for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from tessera.core.misfits import Reason
from tessera.inspect.choice import Fits
from tessera.inspect.explanation import Explanation, Status
from tessera.inspect.render.choice import why
from tessera.inspect.render.lines import Column, Line, Style, counted, listed, table
from tessera.inspect.render.usage import model
from tessera.inspect.request import Understood
from tessera.inspect.slices import Slice
from tessera.inspect.state import State
from tessera.inspect.verdicts import CardVerdict, FitsNowhere, Group

HOLDERS = 5
"""pods named as holders of a card"""

STYLES = {
    Status.PLACED: Style.GOOD,
    Status.FITS: Style.GOOD,
    Status.REFUSED: Style.BAD,
    Status.INVALID: Style.BAD,
    Status.UNACCOUNTED: Style.BAD,
}


def explained(found: Explanation, *, width: int | None = None) -> Iterator[Line]:
    yield Line(f"{found.namespace}/{found.name}: {_headline(found)}", STYLES.get(found.status, Style.PLAIN))
    for note in found.notes:
        yield Line(f"note: {note}", Style.WARN)
    if found.problem:
        yield Line(found.problem, Style.BAD).indented()
    if found.request is not None:
        yield from asked(found.request)
    if found.status is Status.PLACED:
        yield from _placed(found)
    elif isinstance(found.verdict, Fits):
        yield from _would_go(found, found.verdict)
    elif found.verdict is not None:
        yield from refused(found.verdict, found.kept_off, width=width)
    if found.said and found.status in (Status.FITS, Status.REFUSED, Status.INVALID):
        yield from section("kube-scheduler last said", [Line(found.said)])


def made_from(state: State) -> Iterator[Line]:
    """What the answer rests on; the last lines of every page."""
    known = f"flags of {state.setup.flags_from}" if state.setup.flags_from else "the scheduler's flags are not known"
    yield Line()
    yield Line(f"from {state.source}; device configuration: {state.setup.device_config_from}; {known}", Style.DIM)
    for text in state.unseen:
        yield Line(f"not seen: {text}", Style.DIM)


def asked(request: Understood) -> Iterator[Line]:
    lines = [Line(one.text) for one in request.asked]
    yield from section("Asks for", [*lines, Line("; ".join(wish.text for wish in request.wishes))])


def refused(
    verdict: FitsNowhere, kept_off: Sequence[Group], *, width: int | None, what: str = "Why not"
) -> Iterator[Line]:
    """Why there is no place, and what would help."""
    asked_about = sum(len(group.nodes) for group in verdict.groups)
    heading = f"{what}, on {counted(asked_about, 'node')}" if asked_about else f"{what}: no node is left to ask about"
    yield from section(heading, _groups(verdict.groups))
    if kept_off:
        yield from section("Ruled out by kube-scheduler's own rules, before Tessera is asked", _groups(kept_off))
    if verdict.near_miss:
        holders = listed([holder.text for holder in verdict.holders], HOLDERS)
        held = [Line(f"that card is held by {holders}")] if holders else []
        yield from section("Nearest", [Line(verdict.near_miss, Style.WARN), *held])
    if verdict.changes:
        changes = [Line(change.text, Style.GOOD) for change in verdict.changes]
        yield from section("The smallest changes that would fit, each alone", changes)
    if verdict.cards:
        yield from section("Card by card", _cards(verdict.cards, width))
    if not verdict.near_miss and not verdict.changes and asked_about:
        yield from section("What would help", [Line("no smaller request would fit: see the reasons above")])


def slice_text(one: Slice) -> str:
    size = f"{one.memory_mib} MiB" if one.memory_mib else "no share of memory"
    cores = f", {one.cores} cores" if one.cores else ""
    mig = f", MIG {one.mig}" if one.mig else ""
    where = ", ".join(filter(None, (one.card, model(one.model) if one.model else "")))
    return f"container {one.container}: card {one.index}, {size}{cores}{mig} ({where})"


def _headline(found: Explanation) -> str:
    match found.status:
        case Status.PLACED:
            return f"placed on {found.node}"
        case Status.FITS:
            node = found.verdict.node if isinstance(found.verdict, Fits) else "?"
            return f"not placed yet; it fits on {node}"
        case Status.REFUSED:
            return "pending: it fits on no node"
        case Status.INVALID:
            return "pending: its request cannot be honoured on any node"
        case Status.UNACCOUNTED:
            return f"on {found.node}, but without an allocation"
        case Status.NO_DEVICES:
            return "asks for no devices; Tessera has no say in it"
        case Status.ENDED:
            return f"ended ({found.phase}); it holds nothing"


def _placed(found: Explanation) -> Iterator[Line]:
    yield from section("Holds", [Line(slice_text(one)) for one in found.slices])
    if not isinstance(found.verdict, Fits):
        if found.verdict is not None:
            text = "it would not fit again: the cluster has changed since it was placed"
            yield from section("Why there", [Line(text, Style.WARN)])
        return
    lines = [*why(found.verdict, found.expected)]
    if found.verdict.node != found.node:
        lines.append(
            Line(f"today it would go to {found.verdict.node} instead: other pods have come or gone since", Style.DIM)
        )
    yield from section("Why there (the choice as it looks now, without this pod)", lines)


def _would_go(found: Explanation, verdict: Fits) -> Iterator[Line]:
    yield from section("Would get", [Line(slice_text(one)) for one in verdict.slices])
    yield from section("Why there", why(verdict, found.expected))


def _groups(groups: Iterable[Group]) -> Iterator[Line]:
    for group in groups:
        yield Line(f"{counted(len(group.nodes), 'node')}: {group.reason}", Style.WARN)
        words = "; ".join(filter(None, (in_words(group.reason), group.detail)))
        if words:
            yield Line(f"  {words}")
        yield Line(f"  {listed(group.nodes)}", Style.DIM)


def _cards(cards: Sequence[CardVerdict], width: int | None) -> list[Line]:
    columns = [
        Column("NODE"),
        Column("CARD", right=True),
        Column("REASON"),
        Column("ASKED", right=True),
        Column("FREE", right=True),
        Column("TOTAL", right=True),
        Column("HELD BY"),
    ]
    rows = [
        (
            (
                card.node,
                str(card.index),
                card.reason,
                *("-" if number is None else str(number) for number in (card.asked, card.free, card.total)),
                listed([holder.text for holder in card.holders], HOLDERS) or "-",
            ),
            Style.PLAIN,
        )
        for card in cards
    ]
    return table(columns, rows, width=None if width is None else width - 2)


def section(title: str, lines: Iterable[Line]) -> Iterator[Line]:
    yield Line()
    yield Line(title, Style.HEAD)
    for line in lines:
        yield line.indented()


PLAIN: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.NODE_UNREGISTERED: "no device plugin has registered cards on the node",
        Reason.NODE_UNAVAILABLE: "what the node has or has given away cannot be read",
        Reason.NODE_INSUFFICIENT_DEVICE: "the node has fewer cards than are asked for",
        Reason.VENDOR_UNKNOWN: "the device configuration knows no such cards",
        Reason.CARD_NOT_HEALTHY: "the card is unhealthy, or its use is not known exactly",
        Reason.CARD_UNHEALTHY: "the card is unhealthy",
        Reason.CARD_CORDONED: "an administrator closed the card for new pods",
        Reason.CARD_TYPE_MISMATCH: "the pod does not accept this model, or this sharing mode",
        Reason.CARD_UUID_MISMATCH: "the pod names other cards",
        Reason.NUMA_NOT_FIT: "not enough cards on one NUMA node",
        Reason.CARD_SLOTS_EXHAUSTED: "as many pods share the card as may",
        Reason.EXCLUSIVE_CONFLICT: "the pod wants the card alone, and somebody has a part of it",
        Reason.QUOTA_NOT_FIT: "the namespace's quota does not leave enough",
        Reason.CARD_INSUFFICIENT_MEMORY: "not enough free memory on the card",
        Reason.CARD_INSUFFICIENT_CORES: "not enough free cores on the card",
        Reason.CARD_CORES_EXHAUSTED: "all cores of the card are given away",
        Reason.MIG_INFEASIBLE: "no free place for a MIG instance of that size",
        Reason.CUSTOM_RULE: "a rule of the vendor refuses the card",
        Reason.TOO_FEW_CARDS: "the card would do, but there are too few of them",
        Reason.QOS_MISMATCH: "pods of another QoS policy are on the card",
        Reason.APP_CLASS_MISMATCH: "pods of another class are on the card",
        Reason.MODE_NOT_FIT: "the card is in another mode",
    }
)


def in_words(text: str) -> str:
    """What the reasons in a wire text (`1/4 CardInsufficientMemory, 3/4 CardTypeMismatch`) mean."""
    found = [words for reason, words in PLAIN.items() if reason.value in text]
    return "; ".join(found)
