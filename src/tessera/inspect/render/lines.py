"""Lines of text with a style, and tables of them.

A style is a word (`Style`); what it looks like, and whether there is colour at all, is the terminal's business. Tables
are as wide as their content; with `width` the last column is cut to fit a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GAP = "  "
LEAST_LAST = 12
"""characters that the last column keeps, however narrow the terminal is"""


class Style(Enum):
    PLAIN = "plain"
    HEAD = "head"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"


@dataclass(frozen=True, slots=True)
class Line:
    text: str = ""
    style: Style = Style.PLAIN

    def indented(self, by: int = 2) -> Line:
        return Line(" " * by + self.text, self.style) if self.text else self


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False


Row = tuple[Sequence[str], Style]


def table(columns: Sequence[Column], rows: Iterable[Row], *, width: int | None = None) -> list[Line]:
    """A heading and the rows, columns aligned; `width` is the terminal's."""
    body = [([*cells], style) for cells, style in rows]
    sizes = [
        max([len(column.title), *(len(cells[at]) for cells, _ in body)], default=0) for at, column in enumerate(columns)
    ]
    if width is not None:
        before = sum(sizes[:-1]) + len(GAP) * (len(columns) - 1)
        sizes[-1] = max(LEAST_LAST, min(sizes[-1], width - before))
    lines = [Line(_row([column.title for column in columns], columns, sizes), Style.HEAD)]
    return lines + [Line(_row(cells, columns, sizes), style) for cells, style in body]


def _row(cells: Sequence[str], columns: Sequence[Column], sizes: Sequence[int]) -> str:
    padded = [
        cut(cell, size).rjust(size) if column.right else cut(cell, size).ljust(size)
        for cell, column, size in zip(cells, columns, sizes, strict=True)
    ]
    return GAP.join(padded).rstrip()


def cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(size - 3, 0)] + "..."


def bar(share: float, *, cells: int = 10, ascii_only: bool = False) -> str:
    """`share` of a whole, as a row of blocks; anything above nothing shows."""
    filled = min(cells, round(share * cells))
    if share > 0:
        filled = max(filled, 1)
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    return full * filled + empty * (cells - filled)


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names with commas; beyond `most` they are counted."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
