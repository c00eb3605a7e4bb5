"""Lines of text with a style, and tables of them.

A style is only a name (`Style`); the command line decides what it looks like. Tables are as wide as their content;
with `width`, the last column is cut to fit the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")
Row = TypeVar("Row", contravariant=True)

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
class TableColumn(Generic[Row]):
    title: str
    cell: Callable[[Row], object]
    """what a row shows here"""
    right: bool = False

    def aligned(self, text: str, size: int) -> str:
        short = shorten(text, size)
        return short.rjust(size) if self.right else short.ljust(size)


def table(
    columns: Sequence[TableColumn[T]],
    rows: Sequence[T],
    *,
    style: Callable[[T], Style] = lambda _row: Style.PLAIN,
    width: int | None = None,
) -> list[StyledLine]:
    """A heading and aligned rows; `width` is that of the terminal."""
    cells = [[column.title for column in columns], *([str(column.cell(row)) for column in columns] for row in rows)]
    sizes = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    if width is not None:
        before = sum(sizes[:-1]) + len(GAP) * (len(columns) - 1)
        sizes[-1] = max(LEAST_LAST, min(sizes[-1], width - before))
    lines = [GAP.join(map(TableColumn.aligned, columns, texts, sizes)).rstrip() for texts in cells]
    return list(map(StyledLine, lines, [Style.HEAD, *map(style, rows)]))


def shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: max(size - 3, 0)] + "..."


def printable(text: str) -> str:
    """The text with escapes in place of control characters: names and messages of others must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


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
