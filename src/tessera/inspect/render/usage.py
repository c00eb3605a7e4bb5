"""Cards, nodes and pods as tables with bars."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.inspect.render.lines import Column, Line, Style, bar, listed, table
from tessera.inspect.usage import Amount, CardUse, NodeUse, PodUse

HOLDERS = 4
FULL = 0.9
"""share of its memory from which a card counts as full"""


def cards_table(uses: Sequence[CardUse], *, width: int | None, wide: bool, ascii_only: bool) -> list[Line]:
    columns = [
        Column("NODE"),
        Column("CARD", right=True),
        *([Column("UUID")] if wide else []),
        Column("MODEL"),
        Column("MEMORY"),
        Column("MIB", right=True),
        Column("CORES", right=True),
        Column("SLOTS", right=True),
        Column("PODS"),
    ]
    rows = [
        (
            (
                use.node,
                str(use.index),
                *([use.card] if wide else []),
                model(use.model),
                bar(use.memory_mib.share, ascii_only=ascii_only),
                amount(use.memory_mib),
                amount(use.cores),
                amount(use.slots),
                _who(use, wide=wide),
            ),
            _style(use.memory_mib, use.state),
        )
        for use in uses
    ]
    return table(columns, rows, width=width)


def nodes_table(uses: Sequence[NodeUse], *, width: int | None, ascii_only: bool) -> list[Line]:
    columns = [
        Column("NODE"),
        Column("CARDS", right=True),
        Column("MEMORY"),
        Column("MIB", right=True),
        Column("CORES", right=True),
        Column("SLOTS", right=True),
        Column("PODS", right=True),
        Column("MODELS"),
    ]
    rows = [
        (
            (
                use.node,
                str(use.cards),
                bar(use.memory_mib.share, ascii_only=ascii_only),
                amount(use.memory_mib),
                amount(use.cores),
                amount(use.slots),
                str(use.pods),
                listed([model(name) for name in use.models], 3) + (f" ({use.state})" if use.state else ""),
            ),
            _style(use.memory_mib, use.state),
        )
        for use in uses
    ]
    return table(columns, rows, width=width)


def pods_table(uses: Sequence[PodUse], *, width: int | None) -> list[Line]:
    columns = [
        Column("NAMESPACE"),
        Column("POD"),
        Column("NODE"),
        Column("CARDS", right=True),
        Column("MIB", right=True),
        Column("CORES", right=True),
        Column("SLICES"),
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
                listed([f"{one.container}: card {one.index} {one.memory_mib} MiB" for one in use.slices], HOLDERS),
            ),
            Style.PLAIN,
        )
        for use in uses
    ]
    return table(columns, rows, width=width)


def model(name: str) -> str:
    """Without the maker's name, which says nothing that the rest does not."""
    return name.removeprefix("NVIDIA-").removeprefix("NVIDIA ") or "-"


def amount(one: Amount) -> str:
    return f"{one.used}/{one.total}" if one.total or one.used else "-"


def _who(use: CardUse, *, wide: bool) -> str:
    pods = listed([f"{pod.namespace}/{pod.name} {pod.memory_mib}" for pod in use.pods], 100 if wide else HOLDERS)
    return " ".join(filter(None, (f"({use.state})" if use.state else "", pods))) or "-"


def _style(memory: Amount, state: str) -> Style:
    if state:
        return Style.BAD
    return Style.WARN if memory.share >= FULL else Style.DIM if memory.used == 0 else Style.PLAIN
