"""Tables of cards, nodes and pods, with bars, and the lines below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from tessera.inspect.render.lines import Style, StyledLine, TableColumn, bar, count_of, join_names, table
from tessera.inspect.usage import (
    Amount,
    CardUsage,
    MeasuredHolder,
    NodeUsage,
    PendingPod,
    PodUsage,
    UnreadableNode,
    UsageTotals,
)

BARS = "MEMORY"
"""title of the column with bars"""
HOLDERS = 4
PENDING = 10
"""pending pods that are named"""
FULL = 0.9
"""share of its memory from which a card is shown as full"""


def cards_table(uses: Sequence[CardUsage], *, width: int | None, wide: bool, ascii_only: bool) -> list[StyledLine]:
    uuids: list[TableColumn[CardUsage]] = [TableColumn("UUID", lambda use: use.card)] if wide else []
    columns: list[TableColumn[CardUsage]] = [
        TableColumn("NODE", lambda use: use.node),
        TableColumn("CARD", lambda use: use.index, right=True),
        *uuids,
        TableColumn("MODEL", lambda use: short_model(use.model)),
        TableColumn("MODE", lambda use: use.mode or "-"),
        *_amount_columns(ascii_only=ascii_only),
        *_measured_columns(uses),
        TableColumn("PODS", lambda use: _who(use, wide=wide)),
    ]
    return _fitted(columns, uses, width)


def nodes_table(uses: Sequence[NodeUsage], *, width: int | None, ascii_only: bool) -> list[StyledLine]:
    columns: list[TableColumn[NodeUsage]] = [
        TableColumn("NODE", lambda use: use.node),
        TableColumn("CARDS", lambda use: use.cards, right=True),
        *_amount_columns(ascii_only=ascii_only),
        *_measured_columns(uses),
        TableColumn("PODS", lambda use: use.pods, right=True),
        TableColumn("MODELS", _models),
    ]
    return _fitted(columns, uses, width)


def pods_table(uses: Sequence[PodUsage], *, width: int | None) -> list[StyledLine]:
    columns: list[TableColumn[PodUsage]] = [
        TableColumn("NAMESPACE", lambda use: use.namespace),
        TableColumn("POD", lambda use: use.name),
        TableColumn("NODE", lambda use: use.node),
        TableColumn("CARDS", lambda use: use.cards, right=True),
        TableColumn("MIB", lambda use: use.memory_mib, right=True),
        TableColumn("CORES", lambda use: use.cores, right=True),
        *_measured_columns(uses),
        TableColumn("SLICES", _slices),
    ]
    return table(columns, uses, width=width)


Shown = TypeVar("Shown", CardUsage, NodeUsage)


def _fitted(columns: Sequence[TableColumn[Shown]], uses: Sequence[Shown], width: int | None) -> list[StyledLine]:
    """Without bars if the terminal is too narrow for them."""
    lines = table(columns, uses, style=_style, width=width)
    if width is None or all(len(line.text) <= width for line in lines):
        return lines
    return table([column for column in columns if column.title != BARS], uses, style=_style, width=width)


def _amount_columns(*, ascii_only: bool) -> list[TableColumn[CardUsage | NodeUsage]]:
    return [
        TableColumn(BARS, lambda use: bar(use.memory_mib.share, ascii_only=ascii_only)),
        TableColumn("MIB", lambda use: amount_text(use.memory_mib), right=True),
        TableColumn("CORES", lambda use: amount_text(use.cores), right=True),
        TableColumn("SLOTS", lambda use: amount_text(use.slots), right=True),
    ]


def _measured_columns(
    uses: Sequence[CardUsage | NodeUsage | PodUsage],
) -> list[TableColumn[CardUsage | NodeUsage | PodUsage]]:
    """None if nothing is known of any of them."""
    if all(use.measured is None for use in uses):
        return []
    return [
        TableColumn("USED", lambda use: _known(use.measured.memory_mib if use.measured else None), right=True),
        TableColumn("BUSY", lambda use: _known(use.measured.percent if use.measured else None, "%"), right=True),
    ]


def _known(number: int | None, unit: str = "") -> str:
    return "?" if number is None else f"{number}{unit}"


def overview_lines(
    totals: UsageTotals | None,
    unreadable: Sequence[UnreadableNode],
    pending: Sequence[PendingPod],
    *,
    note: str,
    now: float,
) -> Iterator[StyledLine]:
    """What stands below the table: totals (if nodes could be listed), what is not in it, and why use is unknown."""
    if totals is not None and totals.cards:
        yield StyledLine()
        yield StyledLine(_totals(totals))
    for one in unreadable:
        yield StyledLine(f"not readable: node {one.node}: {one.reason}", Style.BAD)
    if pending:
        yield StyledLine()
        yield StyledLine(f"{count_of(len(pending), 'device pod')} pending (tessera explain says why)", Style.WARN)
        for pod in pending[:PENDING]:
            since = pod.since and datetime.fromisoformat(pod.since).timestamp()
            waits = f" for {age_text(int(now - since))}" if since else ""
            yield StyledLine(f"{pod.namespace}/{pod.name}{waits}: {'; '.join(pod.asks)}").indented()
        if len(pending) > PENDING:
            yield StyledLine(f"and {len(pending) - PENDING} more").indented()
    if note:
        yield StyledLine(note, Style.DIM)


def _totals(totals: UsageTotals) -> str:
    memory = totals.memory_mib
    closed = f" ({totals.closed_cards} closed)" if totals.closed_cards else ""
    parts = [
        f"total: {count_of(totals.cards, 'card')}{closed} on {count_of(totals.nodes, 'node')}",
        f"{amount_text(memory)} MiB ({memory.share:.0%}) granted to {count_of(totals.pods, 'pod')}",
        f"cores {amount_text(totals.cores)}",
        f"slots {amount_text(totals.slots)}",
    ]
    if totals.measured is not None and totals.measured.memory_mib is not None:
        parts.append(f"{totals.measured.memory_mib} MiB used")
    return ", ".join(parts)


def age_text(seconds: int) -> str:
    """As kubectl shows it, in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def short_model(name: str) -> str:
    """Without the vendor, which the rest of the name implies."""
    return name.removeprefix("NVIDIA-").removeprefix("NVIDIA ") or "-"


def amount_text(one: Amount) -> str:
    return f"{one.used}/{one.total}" if one.total or one.used else "-"


def _who(use: CardUsage, *, wide: bool) -> str:
    pods = join_names([_holder(pod) for pod in use.pods], 100 if wide else HOLDERS)
    return " ".join(filter(None, (f"({use.state})" if use.state else "", pods))) or "-"


def _holder(pod: MeasuredHolder) -> str:
    used = pod.measured.memory_mib if pod.measured is not None else None
    return f"{pod.label} {pod.memory_mib}" + ("" if used is None else f" (uses {used})")


def _models(use: NodeUsage) -> str:
    return join_names([short_model(name) for name in use.models], 3) + (f" ({use.state})" if use.state else "")


def _slices(use: PodUsage) -> str:
    return join_names(
        [f"{one.container or one.claim}: card {one.index} {one.memory_mib} MiB" for one in use.slices], HOLDERS
    )


def _style(use: CardUsage | NodeUsage) -> Style:
    if use.state:
        return Style.BAD
    return Style.WARN if use.memory_mib.share >= FULL else Style.DIM if use.memory_mib.used == 0 else Style.PLAIN
