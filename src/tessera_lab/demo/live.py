"""The story on a terminal: the text scrolls, and the cards stay below it as bars that fill and empty.

One line per card, one colour per pod; the same view always gives the same bars. They fit 80 columns; wider terminals
get longer bars. `draw_picture` uses the same parts for the picture in the documentation.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tessera_lab.demo.screens import CardView, ClusterView, DemoStarted, describe_hardware

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


PICTURE_COLUMNS = 100

_WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


class LiveScreen:
    """Use it as `with`; the last view stays on the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._palette = Palette()
        self._view: ClusterView | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def on_started(self, started: DemoStarted, view: ClusterView) -> None:
        ready = f"A cluster of {describe_hardware(view)} is ready after {started.seconds:.1f} s."
        self._print(Text(ready + (" Try this in another terminal:" if started.commands else ""), style="bold"))
        for command in started.commands:
            self._print(Text(f"  {command}", style="cyan"))
        if started.page:
            # On one line, whatever the width: a terminal makes it a link.
            self._console.print(Text(f"The dashboard: {started.page}", style="bold"), soft_wrap=True)
        self.on_change(view)

    def on_step(self, number: int, title: str) -> None:
        self._print(step_heading(number, title))

    def on_result(self, lines: Sequence[str], view: ClusterView) -> None:
        self.on_change(view)
        for line in lines:
            self._print(narration(line))

    def on_change(self, view: ClusterView) -> None:
        if view != self._view:
            self._view = view
            self._live.update(draw_cluster(view, width=self._console.width, palette=self._palette), refresh=True)

    def on_end(self, text: str) -> None:
        self._print(Text(f"\n{text}", style="bold"))

    def _print(self, what: RenderableType) -> None:
        self._console.print(what)


def step_heading(number: int, title: str) -> Text:
    return Text(f"\n{number}. {title}", style="bold")


def narration(line: str) -> Padding:
    """A line of the story, wrapped under its own beginning."""
    text = line.lstrip()
    return Padding(Text(text, style="yellow" if text != line else ""), (0, 0, 0, 3 + len(line) - len(text)))


def draw_picture(told: Sequence[tuple[str, Sequence[str]]], view: ClusterView) -> str:
    """An SVG of the terminal after these steps. It needs nothing from the network."""
    console = Console(
        record=True,
        width=PICTURE_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        legacy_windows=False,
    )
    console.print(Text("$ tessera demo", style="bold green"))
    for number, (title, lines) in enumerate(told, 1):
        console.print(step_heading(number, title))
        for line in lines:
            console.print(narration(line))
    console.print()
    console.print(draw_cluster(view, width=PICTURE_COLUMNS, palette=Palette()))
    return _WEB_FONT.sub("", console.export_svg(title="tessera demo", unique_id="tessera-demo"))
