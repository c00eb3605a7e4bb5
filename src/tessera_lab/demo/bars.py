"""Cards as bars filled by pods, with rich: one line per card, one colour per pod.

The same view always gives the same bars. They fit 80 columns; wider terminals get longer bars.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from tessera_lab.demo.view import CardView, ClusterView

COLOURS = ("#7fc8d8", "#c9a4d8", "#e6c35c", "#9ccb6b", "#7fa8e8", "#f08a7a", "#5fd3b0", "#f0a8c8")
INK = "#101418"
"""text on all of the colours"""
LEAST_BAR, MAX_BAR = 24, 56
"""characters of a bar"""
NODE, MODEL, NUMBERS = 9, 16, 25
"""characters of the columns beside the bar"""
FREE = "·"
MAX_WAITING = 4
"""how many pending pods are named"""


def draw_cluster(view: ClusterView, *, width: int, palette: Palette) -> Group:
    """The cluster, for a terminal of this width."""
    return Group(*_lines(view, width, palette))


def _lines(view: ClusterView, width: int, palette: Palette) -> Iterator[Text]:
    cells = max(LEAST_BAR, min(MAX_BAR, width - NODE - MODEL - NUMBERS - 4))
    yield Text(f"{'NODE':<{NODE}}{'CARD':<{MODEL}}{'MEMORY, BY POD':<{cells}}  {'MiB':>12} {'CORES':>8}", style="bold")
    before = ""
    for card in view.cards:
        yield _card(card, cells, palette, named=card.node != before)
        before = card.node
    for pod in view.waiting[:MAX_WAITING]:
        said = f": {pod.why}" if pod.why else ""
        line = Text("pending  ", style="bold red")
        line.append(f"{pod.pod}{said}", style="red")
        line.truncate(width, overflow="ellipsis")
        yield line
    if len(view.waiting) > MAX_WAITING:
        yield Text(f"         and {len(view.waiting) - MAX_WAITING} more", style="red")


def _card(card: CardView, cells: int, palette: Palette, *, named: bool) -> Text:
    line = Text(f"{card.node if named else '':<{NODE}}")
    model = card.model if not card.mode or card.mode == "hami-core" else f"{card.model} {card.mode}"
    line.append(set_cell_size(f"{card.index} {model}", MODEL - 1) + " ")
    line.append_text(draw_bar(card, cells, palette))
    cores = f"{card.used_cores}/{card.cores}"
    line.append(f"  {f'{card.used_mib}/{card.memory_mib}':>12} {cores:>8}")
    if not card.slices:
        line.stylize("dim", NODE)
    if card.state:
        line.append(f" {card.state}", style="bold red")
    return line


def draw_bar(card: CardView, cells: int, palette: Palette) -> Text:
    """A card's memory. Every slice gets at least one character; names are cut to fit."""
    text, left = Text(), cells
    for one, size in zip(card.slices, _sizes(card, cells), strict=True):
        name = one.pod if cell_len(one.pod) < size else one.pod.rpartition("/")[2]
        text.append(set_cell_size(f" {name}" if size > 2 else "", size), style=f"{INK} on {palette.of(one.pod)}")
        left -= size
    return text.append(FREE * left, style="dim")


def _sizes(card: CardView, cells: int) -> list[int]:
    """Characters of every slice; together at most the length of the bar."""
    if not card.memory_mib:
        return [0 for _ in card.slices]
    sizes = [max(1, int(cells * one.memory_mib / card.memory_mib)) for one in card.slices]
    while sum(sizes) > cells:
        sizes[sizes.index(max(sizes))] -= 1
    return sizes


class Palette:
    """Gives pods colours in the order in which they appear. A pod keeps its colour."""

    def __init__(self) -> None:
        self._order: dict[str, int] = {}

    def of(self, pod: str) -> str:
        return COLOURS[self._order.setdefault(pod, len(self._order)) % len(COLOURS)]
