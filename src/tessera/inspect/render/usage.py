"""Tables of cards, nodes and pods, with bars."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.inspect.render.lines import Style, StyledLine, TableColumn, bar, join_names, table
from tessera.inspect.usage import Amount, CardUsage, NodeUsage, PodUsage

HOLDERS = 4
FULL = 0.9
"""share of its memory from which a card is shown as full"""


def cards_table(uses: Sequence[CardUsage], *, width: int | None, wide: bool, ascii_only: bool) -> list[StyledLine]:
    columns = [
        TableColumn("NODE"),
        TableColumn("CARD", right=True),
        *([TableColumn("UUID")] if wide else []),
        TableColumn("MODEL"),
        TableColumn("MEMORY"),
        TableColumn("MIB", right=True),
        TableColumn("CORES", right=True),
        TableColumn("SLOTS", right=True),
        TableColumn("PODS"),
    ]
    rows = [
        (
            (
                use.node,
                str(use.index),
                *([use.card] if wide else []),
                short_model(use.model),
                bar(use.memory_mib.share, ascii_only=ascii_only),
                amount_text(use.memory_mib),
                amount_text(use.cores),
                amount_text(use.slots),
                _who(use, wide=wide),
            ),
            _style(use.memory_mib, use.state),
        )
        for use in uses
    ]
    return table(columns, rows, width=width)


def nodes_table(uses: Sequence[NodeUsage], *, width: int | None, ascii_only: bool) -> list[StyledLine]:
    columns = [
        TableColumn("NODE"),
        TableColumn("CARDS", right=True),
        TableColumn("MEMORY"),
        TableColumn("MIB", right=True),
        TableColumn("CORES", right=True),
        TableColumn("SLOTS", right=True),
        TableColumn("PODS", right=True),
        TableColumn("MODELS"),
    ]
    rows = [
        (
            (
                use.node,
                str(use.cards),
                bar(use.memory_mib.share, ascii_only=ascii_only),
                amount_text(use.memory_mib),
                amount_text(use.cores),
                amount_text(use.slots),
                str(use.pods),
                join_names([short_model(name) for name in use.models], 3) + (f" ({use.state})" if use.state else ""),
            ),
            _style(use.memory_mib, use.state),
        )
        for use in uses
    ]
    return table(columns, rows, width=width)


def pods_table(uses: Sequence[PodUsage], *, width: int | None) -> list[StyledLine]:
    columns = [
        TableColumn("NAMESPACE"),
        TableColumn("POD"),
        TableColumn("NODE"),
        TableColumn("CARDS", right=True),
        TableColumn("MIB", right=True),
        TableColumn("CORES", right=True),
        TableColumn("SLICES"),
    ]
    rows = [
        (
            (
                use.namespace,
                use.name,
                use.node,
                str(use.cards),
                str(use.memory_mib),
                str(use.cores),
                join_names([f"{one.container}: card {one.index} {one.memory_mib} MiB" for one in use.slices], HOLDERS),
            ),
            Style.PLAIN,
        )
        for use in uses
    ]
    return table(columns, rows, width=width)


def short_model(name: str) -> str:
    """Without the vendor, which the rest of the name implies."""
    return name.removeprefix("NVIDIA-").removeprefix("NVIDIA ") or "-"


def amount_text(one: Amount) -> str:
    return f"{one.used}/{one.total}" if one.total or one.used else "-"


def _who(use: CardUsage, *, wide: bool) -> str:
    pods = join_names([f"{pod.namespace}/{pod.name} {pod.memory_mib}" for pod in use.pods], 100 if wide else HOLDERS)
    return " ".join(filter(None, (f"({use.state})" if use.state else "", pods))) or "-"


def _style(memory: Amount, state: str) -> Style:
    if state:
        return Style.BAD
    return Style.WARN if memory.share >= FULL else Style.DIM if memory.used == 0 else Style.PLAIN
