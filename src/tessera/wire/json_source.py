"""JSON text to a `documents` tree.

`files.documents` checks the limits and the standard library the grammar; a second walk over the tokens only finds line
numbers. NaN and Infinity are not JSON and are refused; a duplicate key is reported.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from tessera.files.documents import DocumentError, check_json, plain_value
from tessera.wire.documents import MAX_ITEMS, Item, Report, Scalar, TreeBuilder, measured

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s\[\]{}:,"]+')
"""strings, brackets and words; separators carry no information once the grammar is known to be right"""


def read_json(text: str, report: Report) -> Item:
    """The tree of `text`; raises `ConfigError` if it is not JSON."""
    text = measured(text, report)
    _check_grammar(text, report)
    tree = TreeBuilder(report)
    line, seen = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", seen, token.start())
        seen = token.start()
        word = token.group()
        if word in "[{":
            tree.open(line, is_table=word == "{")
        elif word in "]}":
            tree.close()
        elif word[0] == '"':
            value = json.loads(word)
            tree.add(Scalar(value, line, value, quoted=True))
        else:
            tree.add(Scalar(plain_value(word), line, word))
    return tree.root


class _NotJson(ValueError):
    """A word that Python's parser accepts and JSON does not have."""


def _refuse_constant(word: str) -> NoReturn:
    raise _NotJson(word)


def _check_grammar(text: str, report: Report) -> None:
    try:
        check_json(text.encode(), most=MAX_ITEMS)
        # Numbers stay text here: they may have too many digits for int() and are checked later.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise report.fatal(f"not valid JSON: {error.msg} (column {error.colno})", line=error.lineno) from error
    except _NotJson as error:
        raise report.fatal(f"not valid JSON: {error} is not a JSON number") from error
    except DocumentError as error:
        raise report.fatal(error.problem) from error
