"""The story on a terminal: narration scrolls, and the cards stay below it as bars that fill and empty.

The same pieces make the picture of the documents (`picture`), so that it shows what a terminal shows.
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

from tessera.lab.demo.bars import Palette, drawn
from tessera.lab.demo.screens import Started, summary
from tessera.lab.demo.view import View

PICTURE_COLUMNS = 100

_WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


class LiveScreen:
    """Use as `with`; the last view stays on the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._palette = Palette()
        self._view: View | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, started: Started, view: View) -> None:
        self._print(Text(f"Ready after {started.seconds:.1f} s: {summary(view)}. In another terminal:", style="bold"))
        for command in started.commands:
            self._print(Text(f"  {command}", style="cyan"))
        self.seen(view)

    def step(self, number: int, title: str) -> None:
        self._print(heading(number, title))

    def told(self, lines: Sequence[str], view: View) -> None:
        self.seen(view)
        for line in lines:
            self._print(said(line))

    def seen(self, view: View) -> None:
        if view != self._view:
            self._view = view
            self._live.update(drawn(view, width=self._console.width, palette=self._palette), refresh=True)

    def end(self, text: str) -> None:
        self._print(Text(f"\n{text}", style="bold"))

    def _print(self, what: RenderableType) -> None:
        self._console.print(what)


def heading(number: int, title: str) -> Text:
    return Text(f"\n{number}. {title}", style="bold")


def said(line: str) -> Padding:
    """Narration, wrapped under its own beginning."""
    text = line.lstrip()
    return Padding(Text(text, style="yellow" if text != line else ""), (0, 0, 0, 3 + len(line) - len(text)))


def picture(told: Sequence[tuple[str, Sequence[str]]], view: View) -> str:
    """An SVG of the terminal after these steps, which needs nothing from the network."""
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
        console.print(heading(number, title))
        for line in lines:
            console.print(said(line))
    console.print()
    console.print(drawn(view, width=PICTURE_COLUMNS, palette=Palette()))
    return _WEB_FONT.sub("", console.export_svg(title="tessera demo", unique_id="tessera-demo"))
