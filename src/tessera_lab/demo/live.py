"""The story on a terminal: the text scrolls, and the cards stay below it as bars that fill and empty.

`draw_picture` uses the same parts for the picture in the documentation, so that it shows what a terminal shows.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tessera_lab.demo.bars import Palette, draw_cluster
from tessera_lab.demo.screens import DemoStarted, describe_hardware
from tessera_lab.demo.view import ClusterView

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
