"""Lines of text with a style, and tables of them.

A style is only a name (`Style`); the command line decides what it looks like. Tables are as wide as their content;
with `width`, the last column is cut to fit the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GAP = "  "
LEAST_LAST = 12
"""characters that the last column keeps on any terminal"""


class Style(Enum):
    PLAIN = "plain"
    HEAD = "head"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"


@dataclass(frozen=True, slots=True)
class StyledLine:
    text: str = ""
    style: Style = Style.PLAIN

    def indented(self, by: int = 2) -> StyledLine:
        return StyledLine(" " * by + self.text, self.style) if self.text else self


@dataclass(frozen=True, slots=True)
class TableColumn:
    title: str
    right: bool = False


Row = tuple[Sequence[str], Style]


def table(columns: Sequence[TableColumn], rows: Iterable[Row], *, width: int | None = None) -> list[StyledLine]:
    """A heading and aligned rows; `width` is that of the terminal."""
    body = [([*cells], style) for cells, style in rows]
    sizes = [
        max([len(column.title), *(len(cells[at]) for cells, _ in body)], default=0) for at, column in enumerate(columns)
    ]
    if width is not None:
        before = sum(sizes[:-1]) + len(GAP) * (len(columns) - 1)
        sizes[-1] = max(LEAST_LAST, min(sizes[-1], width - before))
    lines = [StyledLine(_row([column.title for column in columns], columns, sizes), Style.HEAD)]
    return lines + [StyledLine(_row(cells, columns, sizes), style) for cells, style in body]


def _row(cells: Sequence[str], columns: Sequence[TableColumn], sizes: Sequence[int]) -> str:
    padded = [
        shorten(cell, size).rjust(size) if column.right else shorten(cell, size).ljust(size)
        for cell, column, size in zip(cells, columns, sizes, strict=True)
    ]
    return GAP.join(padded).rstrip()


def shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(size - 3, 0)] + "..."


def bar(share: float, *, cells: int = 10, ascii_only: bool = False) -> str:
    """A share of 1 as a row of blocks; anything above 0 shows at least one."""
    filled = min(cells, round(share * cells))
    if share > 0:
        filled = max(filled, 1)
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    return full * filled + empty * (cells - filled)


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Names separated by commas; beyond `most` they are only counted."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"


def count_of(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
