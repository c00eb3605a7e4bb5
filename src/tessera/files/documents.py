"""JSON and YAML from files, as plain values: dict, list, str, int, float, bool and None.

Values and nesting are bounded before anything is built, those behind YAML aliases counted as often as they are used,
so code that walks a document needs no limits of its own. Nothing recurs here: no file overflows a stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

MAX_DEPTH = 100
"""levels of nesting; real files have about ten, CustomResourceDefinitions some more"""
MAX_VALUES = 5_000_000
"""values of a file; a snapshot of 5000 nodes and 80,000 pods has 2.4 million"""
MAX_ALIASED = 200_000
"""values that aliases add"""

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
TOO_MANY_ALIASED = f"aliases stand for more than {MAX_ALIASED} values; write them out, or use fewer"

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: ten times faster, same events"""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z", re.ASCII)
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_DIGITS = 40
"""characters of the longest number; a longer one fits no field and only costs time"""

PlainValue = str | int | float | bool | None

_YAML: Final = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({None, "!", f"{_YAML}str"})
_PLAIN_TAGS = frozenset({f"{_YAML}{name}" for name in ("int", "float", "bool", "null")})
_COLLECTION_TAGS = frozenset({None, "!", f"{_YAML}map", f"{_YAML}seq"})

_MERGE: Final = object()
"""the key `<<`"""

_STRUCTURE = b'"[]{},'
_NO_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
_ONE_BRACKET = bytes.maketrans(b"{}", b"[]")


class DocumentError(ValueError):
    """A file that cannot be used."""

    def __init__(self, problem: str, line: int = 0) -> None:
        """`line`: 1-based; 0 where the whole file is meant."""
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem = problem
        self.line = line


def read_documents(data: bytes | str) -> list[Any]:
    """The documents of a file of JSON or YAML, without empty ones. Raises DocumentError."""
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if text.lstrip()[:1] in (b"{", b"["):
        try:
            return [read_json(text)]
        except NotJson as error:
            # YAML may begin like this too. What reads as neither is most likely JSON.
            try:
                return _yaml_documents(text)
            except DocumentError:
                raise error from None
    return _yaml_documents(text)


class NotJson(DocumentError):
    """Within the limits, but not JSON."""


def read_json(data: bytes) -> Any:
    """Raises DocumentError."""
    check_json(data)
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotJson(f"not valid JSON: {error}") from error


def check_json(data: bytes, *, most: int = MAX_VALUES) -> None:
    """Raises DocumentError if there are too many values, or too many levels of them, for JSON to be parsed."""
    # All at the speed of memory: brackets that are not in strings, and then level by level those that hold none.
    structure = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_ONE_BRACKET, _NO_STRUCTURE)
    if structure.count(b'"') > 4 * most:
        raise DocumentError(_too_many(most))
    outside = b"".join(structure.split(b'"')[::2])
    if outside.count(b",") + outside.count(b"[") >= most:
        raise DocumentError(_too_many(most))
    brackets = outside.replace(b",", b"")
    for _ in range(MAX_DEPTH):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    # What never closes is for the parser to refuse, unless it is too deep to be parsed.
    if brackets.count(b"[") > MAX_DEPTH or b"[]" in brackets:
        raise DocumentError(TOO_DEEP)


def yaml_events(data: bytes | str, *, most: int = MAX_VALUES) -> Iterator[Any]:
    """The events of YAML within the limits. Raises DocumentError where they end, and for what is not YAML."""
    sizes: dict[str, tuple[int, int]] = {}
    """by anchor: values and levels"""
    opened: list[tuple[str | None, int]] = []
    """anchor of each open list or table, and the number of values before it"""
    levels = [0]
    """of what is inside each of them, and of the whole"""
    values = aliased = 0
    try:
        for event in yaml.parse(data, Loader=YAML_LOADER):
            kind = event.__class__
            if kind is yaml.ScalarEvent:
                values += 1
                if event.anchor is not None:
                    sizes[event.anchor] = 1, 0
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                values += 1
                opened.append((event.anchor, values))
                levels.append(0)
                if len(opened) > MAX_DEPTH:
                    raise DocumentError(TOO_DEEP, _line(event))
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                anchor, before = opened.pop()
                level = levels.pop() + 1
                levels[-1] = max(levels[-1], level)
                if anchor is not None:
                    sizes[anchor] = values - before + 1, level
            elif kind is yaml.AliasEvent:
                size, level = sizes.get(event.anchor, (1, 0))
                values += size
                aliased += size
                levels[-1] = max(levels[-1], level)
                if aliased > MAX_ALIASED:
                    raise DocumentError(TOO_MANY_ALIASED, _line(event))
                if len(opened) + level > MAX_DEPTH:
                    raise DocumentError(TOO_DEEP, _line(event))
            elif kind is yaml.DocumentStartEvent:
                sizes.clear()
            if values > most:
                raise DocumentError(_too_many(most), _line(event))
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise DocumentError(f"not valid YAML: {said}", mark.line + 1 if mark else 0) from error
    except yaml.reader.ReaderError as error:
        newlines = (
            data.count("\n", 0, error.position) if isinstance(data, str) else data.count(b"\n", 0, error.position)
        )
        raise DocumentError(f"not valid YAML: {error.reason}", 1 + newlines) from error
    except (UnicodeError, RecursionError) as error:
        raise DocumentError(f"not valid YAML: {error}") from error


def plain_value(text: str) -> PlainValue:
    """What an unquoted word means: the plain values of YAML 1.2 plus yes/no/on/off, as the Go libraries do."""
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


def _yaml_documents(data: bytes) -> list[Any]:
    documents: list[Any] = []
    builder = _Builder(documents)
    for event in yaml_events(data):
        builder.take(event)
    return [document for document in documents if document is not None]


class _Builder:
    """Values from events. Keys are text as it is written; the last of equal keys counts; `<<` merges."""

    def __init__(self, documents: list[Any]) -> None:
        self._target: Any = documents
        """list or table that is open"""
        self._key: Any = None
        """of the value that comes next in a table: text, or _MERGE; None = a key comes next"""
        self._outer: list[tuple[Any, Any, str | None]] = []
        """open ones around it, with their keys, and its anchor"""
        self._anchors: dict[str, Any] = {}

    def take(self, event: Any) -> None:
        kind = event.__class__
        if kind is yaml.ScalarEvent:
            self._scalar(event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if event.tag not in _COLLECTION_TAGS:
                raise DocumentError(f"the tag {event.tag[:40]!r} is not supported", _line(event))
            if isinstance(self._target, dict) and self._key is None:
                raise DocumentError("a list or table cannot be a key", _line(event))
            self._outer.append((self._target, self._key, event.anchor))
            self._target = {} if kind is yaml.MappingStartEvent else []
            self._key = None
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            made = self._target
            self._target, self._key, anchor = self._outer.pop()
            self._add(made, anchor, event)
        elif kind is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                raise DocumentError(f"*{event.anchor[:40]} is used here, but not defined before", _line(event))
            self._add(self._anchors[event.anchor], None, event)
        elif kind is yaml.DocumentStartEvent:
            self._anchors = {}

    def _scalar(self, event: Any) -> None:
        if isinstance(self._target, dict) and self._key is None:
            self._key = _MERGE if event.value == "<<" and event.implicit[0] else event.value
            if event.anchor is not None:
                self._anchors[event.anchor] = event.value
            return
        if event.implicit[0] or event.tag in _PLAIN_TAGS:
            value: PlainValue = plain_value(event.value)
        elif event.tag in _TEXT_TAGS:
            value = event.value
        else:
            raise DocumentError(f"the tag {event.tag[:40]!r} is not supported", _line(event))
        self._add(value, event.anchor, event)

    def _add(self, value: Any, anchor: str | None, event: Any) -> None:
        if anchor is not None:
            self._anchors[anchor] = value
        if not isinstance(self._target, dict):
            self._target.append(value)
        elif self._key is None:
            # An alias as a key.
            if not isinstance(value, str):
                raise DocumentError("a list or table cannot be a key", _line(event))
            self._key = value
        elif self._key is _MERGE:
            self._key = None
            sources = value if isinstance(value, list) else [value]
            if not all(isinstance(source, dict) for source in sources):
                raise DocumentError("<< needs a table, or a list of tables", _line(event))
            for source in sources:
                self._target.update({key: source[key] for key in source if key not in self._target})
        else:
            self._target[self._key] = value
            self._key = None


def _too_many(most: int) -> str:
    return f"more than {most} values"


def _line(event: Any) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
