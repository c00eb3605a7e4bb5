"""Parses YAML text to a `documents` tree, event by event, without recursion.

Understands the plain values of YAML 1.2 plus
yes/no/on/off, as the Go libraries do. Tags, merge keys and multiple documents are refused: our files do not need them.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from tessera.wire.documents import Item, Report, Scalar, ScalarValue, TreeBuilder, measured
from tessera.wire.quotes import quoted

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: ten times faster, same events"""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z", re.ASCII)
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")

_DIGITS = 40
"""characters of the longest number; a longer one fits no field and only costs time"""


def plain_value(text: str) -> ScalarValue:
    """What an unquoted word means."""
    if text in _NULLS:
        return None
    if len(text) > _DIGITS:
        return text
    word = text if text.islower() else text.lower() if text.isupper() or text.istitle() else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text) and not _leading_zero(text):
        return float(text)
    if _SPECIAL.match(text):
        return float(text.lower().replace(".", "", 1))
    return text


def _leading_zero(text: str) -> bool:
    """012 is octal to some parsers and twelve to others: keep it as text, which no number field accepts."""
    digits = text.lstrip("+-")
    return digits.isdigit() and digits.startswith("0") and len(digits) > 1


def read_yaml(text: str, report: Report) -> Item:
    """The tree of the single document in `text`. Duplicate keys and the like go to `report`; raises `ConfigError` if
    the text cannot be parsed any further."""
    reader = _Reader(report)
    try:
        for event in yaml.parse(measured(text, report), Loader=_LOADER):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise report.fatal(f"not valid YAML: {said}", line=mark.line + 1 if mark else 0) from error
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        raise report.fatal(f"not valid YAML: {error.reason}", line=line) from error
    return reader.tree.root


class _Reader:
    def __init__(self, report: Report) -> None:
        self.tree = TreeBuilder(report)
        self._report = report
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise self._report.fatal("a second document starts here; write one document per file", line=line)
            case yaml.ScalarEvent():
                self._untagged(event.tag, line)
                plain = event.implicit[0]
                value = plain_value(event.value) if plain else event.value
                self.tree.add(Scalar(value, line, event.value, quoted=not plain), event.anchor)
            case yaml.AliasEvent():
                self._alias(event.anchor, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._untagged(event.tag, line)
                self.tree.open(line, is_table=isinstance(event, yaml.MappingStartEvent), anchor=event.anchor)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self.tree.close()

    def _untagged(self, tag: str | None, line: int) -> None:
        if tag is not None:
            self._report.add(f"the tag {quoted(tag)} is not supported; write the value alone", line=line)

    def _alias(self, anchor: str | None, line: int) -> None:
        item = self.tree.anchors.get(anchor or "")
        if item is None:
            self._report.add(f"*{anchor} is used here but &{anchor} is not defined before", line=line)
        self.tree.add(item or Scalar(None, line, ""))
