"""Parses YAML text to a `documents` tree, event by event, without recursion.

Tags, merge keys and multiple documents are refused: our files do not need them.
"""

from __future__ import annotations

import yaml

from tessera.files.documents import DocumentError, plain_value, yaml_events
from tessera.wire.documents import MAX_ITEMS, Item, Report, Scalar, TreeBuilder, measured
from tessera.wire.quotes import quoted


def read_yaml(text: str, report: Report) -> Item:
    """The tree of the single document in `text`. Duplicate keys and the like go to `report`; raises `ConfigError` if
    the text cannot be parsed any further."""
    reader = _Reader(report)
    try:
        for event in yaml_events(measured(text, report), most=MAX_ITEMS):
            reader.take(event)
    except DocumentError as error:
        raise report.fatal(error.problem, line=error.line) from error
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
