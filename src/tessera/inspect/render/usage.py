"""Tables of cards, nodes and pods, with bars."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.inspect.render.lines import Style, StyledLine, TableColumn, bar, join_names, table
from tessera.inspect.usage import Amount, CardUsage, NodeUsage, PodUsage

HOLDERS = 4
FULL = 0.9
"""share of its memory from which a card is shown as full"""


def cards_table(uses: Sequence[CardUsage], *, width: int | None, wide: bool, ascii_only: bool) -> list[StyledLine]:
    uuids: list[TableColumn[CardUsage]] = [TableColumn("UUID", lambda use: use.card)] if wide else []
    columns: list[TableColumn[CardUsage]] = [
        TableColumn("NODE", lambda use: use.node),
        TableColumn("CARD", lambda use: use.index, right=True),
        *uuids,
        TableColumn("MODEL", lambda use: short_model(use.model)),
        *_amount_columns(ascii_only=ascii_only),
        TableColumn("PODS", lambda use: _who(use, wide=wide)),
    ]
    return table(columns, uses, style=_style, width=width)


def nodes_table(uses: Sequence[NodeUsage], *, width: int | None, ascii_only: bool) -> list[StyledLine]:
    columns: list[TableColumn[NodeUsage]] = [
        TableColumn("NODE", lambda use: use.node),
        TableColumn("CARDS", lambda use: use.cards, right=True),
        *_amount_columns(ascii_only=ascii_only),
        TableColumn("PODS", lambda use: use.pods, right=True),
        TableColumn("MODELS", _models),
    ]
    return table(columns, uses, style=_style, width=width)


def pods_table(uses: Sequence[PodUsage], *, width: int | None) -> list[StyledLine]:
    columns: list[TableColumn[PodUsage]] = [
        TableColumn("NAMESPACE", lambda use: use.namespace),
        TableColumn("POD", lambda use: use.name),
        TableColumn("NODE", lambda use: use.node),
        TableColumn("CARDS", lambda use: use.cards, right=True),
        TableColumn("MIB", lambda use: use.memory_mib, right=True),
        TableColumn("CORES", lambda use: use.cores, right=True),
        TableColumn("SLICES", _slices),
    ]
    return table(columns, uses, width=width)


def _amount_columns(*, ascii_only: bool) -> list[TableColumn[CardUsage | NodeUsage]]:
    return [
        TableColumn("MEMORY", lambda use: bar(use.memory_mib.share, ascii_only=ascii_only)),
        TableColumn("MIB", lambda use: amount_text(use.memory_mib), right=True),
        TableColumn("CORES", lambda use: amount_text(use.cores), right=True),
        TableColumn("SLOTS", lambda use: amount_text(use.slots), right=True),
    ]


def short_model(name: str) -> str:
    """Without the vendor, which the rest of the name implies."""
    return name.removeprefix("NVIDIA-").removeprefix("NVIDIA ") or "-"


def amount_text(one: Amount) -> str:
    return f"{one.used}/{one.total}" if one.total or one.used else "-"


def _who(use: CardUsage, *, wide: bool) -> str:
    pods = join_names([f"{pod.namespace}/{pod.name} {pod.memory_mib}" for pod in use.pods], 100 if wide else HOLDERS)
    return " ".join(filter(None, (f"({use.state})" if use.state else "", pods))) or "-"


def _models(use: NodeUsage) -> str:
    return join_names([short_model(name) for name in use.models], 3) + (f" ({use.state})" if use.state else "")


def _slices(use: PodUsage) -> str:
    return join_names([f"{one.container}: card {one.index} {one.memory_mib} MiB" for one in use.slices], HOLDERS)


def _style(use: CardUsage | NodeUsage) -> Style:
    if use.state:
        return Style.BAD
    return Style.WARN if use.memory_mib.share >= FULL else Style.DIM if use.memory_mib.used == 0 else Style.PLAIN
