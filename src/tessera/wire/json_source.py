"""JSON text to a `documents` tree.

The standard library checks the grammar; a second walk over the tokens only finds line numbers. NaN and Infinity are not
JSON and are refused; a duplicate key is reported.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NoReturn

from tessera.wire.documents import MAX_DEPTH, MAX_ITEMS, Item, Key, Report, Scalar, listing, measured, table
from tessera.wire.quotes import quoted
from tessera.wire.yaml_source import plain_value

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s\[\]{}:,"]+')
"""strings, brackets and words; separators carry no information once the grammar is known to be right"""


@dataclass(slots=True)
class _Open:
    line: int
    items: list[Item] = field(default_factory=list)
    entries: dict[str, tuple[Key, Item]] | None = None
    key: Key | None = None


def read_json(text: str, report: Report) -> Item:
    """The tree of `text`; raises `ConfigError` if it is not JSON."""
    text = measured(text, report)
    _check_grammar(text, report)
    stack = [_Open(1)]
    line, seen = 1, 0
    for count, token in enumerate(_TOKEN.finditer(text)):
        line += text.count("\n", seen, token.start())
        seen = token.start()
        if count > MAX_ITEMS:
            raise report.fatal(f"more than {MAX_ITEMS} values", line=line)
        word, top = token.group(), stack[-1]
        if word in "[{":
            if len(stack) > MAX_DEPTH:
                raise report.fatal(f"nested more than {MAX_DEPTH} levels deep", line=line)
            stack.append(_Open(line, entries={} if word == "{" else None))
        elif word in "]}":
            stack.pop()
            made = table(top.entries.values(), top.line) if top.entries is not None else listing(top.items, top.line)
            _put(stack[-1], made, report)
        elif word[0] == '"':
            value = json.loads(word)
            if top.entries is not None and top.key is None:
                top.key = Key(value, line)
            else:
                _put(top, Scalar(value, line, value, quoted=True), report)
        else:
            _put(top, Scalar(plain_value(word), line, word), report)
    return stack[0].items[0]


def _put(parent: _Open, item: Item, report: Report) -> None:
    if parent.entries is None or parent.key is None:
        parent.items.append(item)
        return
    key, parent.key = parent.key, None
    earlier = parent.entries.get(key.text)
    if earlier is None:
        parent.entries[key.text] = (key, item)
    else:
        report.add(f"the key {quoted(key.text)} is given twice, first in line {earlier[0].line}", line=key.line)


class _NotJson(ValueError):
    """A word that Python's parser accepts and JSON does not have."""


def _refuse_constant(word: str) -> NoReturn:
    raise _NotJson(word)


def _check_grammar(text: str, report: Report) -> None:
    try:
        # Numbers stay text here: they may have too many digits for int() and are checked later.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise report.fatal(f"not valid JSON: {error.msg} (column {error.colno})", line=error.lineno) from error
    except _NotJson as error:
        raise report.fatal(f"not valid JSON: {error} is not a JSON number") from error
    except RecursionError as error:
        raise report.fatal(f"nested more than {MAX_DEPTH} levels deep") from error
