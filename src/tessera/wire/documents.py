"""A configuration file as a tree that remembers where every value was written, and the error that lists all problems.

`yaml_source` and `json_source` build the tree, `strict` turns it into typed values. A tree is immutable and bounded in
depth and size by `files.documents`, so code that walks it needs no limits of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tessera.files.documents import PlainValue
from tessera.wire.errors import WireError
from tessera.wire.quotes import quoted

MAX_BYTES = 2**20
"""bytes of a file; as much as a ConfigMap can hold"""

MAX_ITEMS = 200_000
"""values in a file, those behind aliases counted as often as they are used"""

MAX_PROBLEMS = 50
"""problems reported per file"""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One plain value; `text` is how the file spells it."""

    value: PlainValue
    line: int
    text: str
    quoted: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return "nothing"
        return f"the text {quoted(self.text)}" if isinstance(self.value, str) else bare(self.text)


@dataclass(frozen=True, slots=True)
class Listing:
    items: tuple[Item, ...]
    line: int

    def __str__(self) -> str:
        return "a list"


@dataclass(frozen=True, slots=True)
class Key:
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    """Keys and values in the order of the file; a key occurs once."""

    entries: tuple[tuple[Key, Item], ...]
    line: int

    def __str__(self) -> str:
        return "a table of keys"


Item = Scalar | Listing | Table


def bare(text: str) -> str:
    """Foreign text for a message: one line, bounded, without quotes."""
    return quoted(text)[1:-1]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a file."""

    file: str
    line: int
    """1-based; 0 where the whole file is meant"""
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.text}" if self.path else f"{place}: {self.text}"


class ConfigError(WireError):
    """A file that cannot be used, with everything that is wrong in it."""

    def __init__(self, problems: Iterable[Problem], *, unlisted: int = 0) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        if unlisted:
            lines.append(f"and {unlisted} more problems")
        super().__init__("\n".join(lines))


class Report:
    """Collects the problems of one file while it is read."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._problems: list[Problem] = []
        self._unlisted = 0

    @property
    def full(self) -> bool:
        """Further problems are only counted."""
        return len(self._problems) >= MAX_PROBLEMS

    def add(self, text: str, *, line: int = 0, path: str = "") -> None:
        if self.full:
            self._unlisted += 1
        else:
            self._problems.append(Problem(self.file, line, path, text))

    def fatal(self, text: str, *, line: int = 0) -> ConfigError:
        """The error to raise when reading cannot continue."""
        self.add(text, line=line)
        return self.error()

    def error(self) -> ConfigError:
        return ConfigError(sorted(self._problems, key=lambda problem: problem.line), unlisted=self._unlisted)

    def check(self) -> None:
        """Raise if anything was reported."""
        if self._problems:
            raise self.error()


def measured(text: str, report: Report) -> str:
    """`text` without a byte-order mark, if it is short enough and proper Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise report.fatal("the file is not valid UTF-8", line=1 + text.count("\n", 0, error.start)) from error
    if size > MAX_BYTES:
        raise report.fatal(f"the file has {size} bytes; at most {MAX_BYTES} are read")
    return text.removeprefix("\ufeff")


@dataclass(slots=True)
class _Open:
    """A list or table whose end has not been seen."""

    line: int
    is_table: bool
    anchor: str | None
    items: list[Item] = field(default_factory=list)
    entries: dict[str, tuple[Key, Item]] = field(default_factory=dict)
    key: Key | None = None
    bad_key: bool = False
    """the key was refused: its value is dropped"""


class TreeBuilder:
    """Builds a tree from what a parser meets."""

    def __init__(self, report: Report) -> None:
        self.root: Item = Scalar(None, 0, "")
        self.anchors: dict[str, Item] = {}
        self._report = report
        self._open: list[_Open] = []

    def open(self, line: int, *, is_table: bool, anchor: str | None = None) -> None:
        self._open.append(_Open(line, is_table, anchor))

    def close(self) -> None:
        closed = self._open.pop()
        if closed.is_table:
            self.add(Table(tuple(closed.entries.values()), closed.line), closed.anchor)
        else:
            self.add(Listing(tuple(closed.items), closed.line), closed.anchor)

    def add(self, item: Item, anchor: str | None = None) -> None:
        if anchor is not None:
            self.anchors[anchor] = item
        if not self._open:
            self.root = item
            return
        parent = self._open[-1]
        if not parent.is_table:
            parent.items.append(item)
        elif parent.key is None and not parent.bad_key:
            self._begin_entry(parent, item)
        else:
            if parent.key is not None:
                parent.entries[parent.key.text] = (parent.key, item)
            parent.key, parent.bad_key = None, False

    def _begin_entry(self, parent: _Open, item: Item) -> None:
        parent.bad_key = True
        if not isinstance(item, Scalar):
            self._report.add(f"{item} cannot be a key", line=item.line)
        elif item.text == "<<" and not item.quoted:
            self._report.add("merge keys (<<) are not supported; write the keys out", line=item.line)
        elif item.text in parent.entries:
            first = parent.entries[item.text][0].line
            self._report.add(f"the key {quoted(item.text)} is given twice, first in line {first}", line=item.line)
        else:
            parent.bad_key = False
            parent.key = Key(item.text, item.line)
