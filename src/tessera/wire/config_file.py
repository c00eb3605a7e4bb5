"""Configuration files, YAML or JSON: values of the types that they are declared with, or all that is wrong.

Each problem names file, line and path, and for an unknown word the nearest one that is known. A key without a value
counts as absent, as in Go. Whole numbers are 0 to 2^31-1 unless `Meta` says otherwise. Nothing is coerced. Duplicate
keys, tags, merge keys and several documents are refused. Size and nesting are bounded by `files.documents`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import yaml

from tessera.files.documents import YAML_LOADER, DocumentError, check_json, plain_value, yaml_events
from tessera.wire.errors import WireError, quoted
from tessera.wire.golang import INT32_MAX

MAX_BYTES = 2**20
"""bytes of a file; as much as a ConfigMap can hold"""
MAX_ITEMS = 200_000
"""values in a file, those behind aliases counted as often as they are used"""
MAX_PROBLEMS = 50
"""problems reported per file"""

Check = Callable[[str, str], str | None]
"""(key, text) -> what is wrong with the text; for rules that a type cannot express"""

_LIST_ALL = 12
"""if no key is similar, list all known keys up to this many"""
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of keys",
}
"""of msgspec's names of types"""
_QUOTED_TYPES = re.compile("`([^`]*)`")
_BAD: Any = object()
"""placeholder for a value that was reported"""
_WHOLE = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


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
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        more = [f"and {unlisted} more problems"] if unlisted else []
        super().__init__("\n".join([*map(str, self.problems), *more]))


def unreadable(path: object, why: str) -> ConfigError:
    """The error for a file that is not there, or is not text."""
    return ConfigError([Problem(str(path), 0, "", f"cannot be read: {why}")])


def nearest(word: str, known: Iterable[str], *, what: str = "keys") -> str:
    """A hint that ends a message about an unknown word; `what` is its plural noun."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word[:64].lower(), by_lower, n=1)
    if close:
        return f'; did you mean "{by_lower[close[0]]}"?'
    if 0 < len(by_lower) <= _LIST_ALL:
        return f"; known {what} are {', '.join(sorted(by_lower.values()))}"
    return ""


class ConfigFile:
    """The plain values of a file, and what is wrong with them."""

    def __init__(self, text: str, *, file: str, is_json: bool = False) -> None:
        """Raises ConfigError if there is nothing to read."""
        self.file = file
        self._problems: list[Problem] = []
        self._unlisted = 0
        self._lines: dict[str, int] = {}
        """by path"""
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise self.fatal("the file is not valid UTF-8", line=1 + text.count("\n", 0, error.start)) from error
        if size > MAX_BYTES:
            raise self.fatal(f"the file has {size} bytes; at most {MAX_BYTES} are read")
        text = text.removeprefix("\ufeff")
        try:
            self.value = self._json(text) if is_json else self._yaml(text)
        except DocumentError as error:
            raise self.fatal(error.problem, line=error.line) from error

    def line(self, path: str) -> int:
        """Of the value at a path, or of what it is in."""
        while path and path not in self._lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._lines.get(path, 0)

    @property
    def is_full(self) -> bool:
        """Further problems are only counted."""
        return len(self._problems) >= MAX_PROBLEMS

    def add(self, text: str, *, path: str = "", line: int | None = None) -> None:
        if self.is_full:
            self._unlisted += 1
        else:
            self._problems.append(Problem(self.file, self.line(path) if line is None else line, path, text))

    def fatal(self, text: str, *, line: int | None = None) -> ConfigError:
        """The error to raise when reading cannot continue."""
        self.add(text, line=line)
        return self.error()

    def error(self) -> ConfigError:
        return ConfigError(self._problems, unlisted=self._unlisted)

    def check(self) -> None:
        """Raise if anything was reported."""
        if self._problems:
            raise self.error()

    def convert(
        self, type_: Any, value: Any, path: str = "", *, any_case: bool = False, check: Check | None = None
    ) -> Any:
        """A part of the file as `type_`, which msgspec types describe. Problems are noted; the value must not be used
        then. With `any_case` the case of keys does not matter, as in Go's JSON."""
        return _Converter(self, any_case, check).convert(type_, value, path)

    # -- reading

    def _yaml(self, text: str) -> Any:
        documents = 0
        for event in yaml_events(text, most=MAX_ITEMS):
            line = event.start_mark.line + 1 if event.start_mark else 0
            if getattr(event, "tag", None) is not None:
                self.add(f"the tag {quoted(event.tag)} is not supported; write the value alone", line=line)
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise DocumentError("a second document starts here; write one document per file", line)
        try:
            node = yaml.compose(text, Loader=YAML_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            raise DocumentError(f"not valid YAML: {error.problem}", mark.line + 1 if mark else 0) from error
        return None if node is None else self._plain(node, "", set())

    def _plain(self, node: yaml.Node, path: str, around: set[int]) -> Any:
        """`around`: the nodes that it is in."""
        line = self._lines[path] = node.start_mark.line + 1
        if id(node) in around:
            raise DocumentError("an alias stands in what it names", line)
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else plain_value(node.value)
        around = {*around, id(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(member, f"{path}[{at}]", around) for at, member in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, member in node.value:
            first = self._lines.get(_below(path, key.value)) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(key, yaml.ScalarNode):
                self.add("a list or table cannot be a key", line=key.start_mark.line + 1)
            elif key.value == "<<" and not key.style:
                self.add("merge keys (<<) are not supported; write the keys out", line=key.start_mark.line + 1)
            elif key.value in found:
                said = f"the key {quoted(key.value)} is given twice, first in line {first}"
                self.add(said, line=key.start_mark.line + 1)
            else:
                below = _below(path, key.value)
                found[key.value] = self._plain(member, below, around)
                self._lines[below] = key.start_mark.line + 1
        return found

    def _json(self, text: str) -> Any:
        try:
            check_json(text.encode(), most=MAX_ITEMS)
            # Long numbers are texts, which no field for numbers takes.
            value = json.loads(
                text,
                parse_int=plain_value,
                parse_float=plain_value,
                parse_constant=_refuse_constant,
                object_pairs_hook=_refuse_duplicates,
            )
            if "\\ud" in text.lower():
                json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise DocumentError(f"not valid JSON: {error.msg} (column {error.colno})", error.lineno) from error
        except UnicodeEncodeError as error:
            raise DocumentError("half of a surrogate pair is no character") from error
        try:
            # It is YAML as well, almost always: that knows the lines.
            self._plain(yaml.compose(text, Loader=YAML_LOADER), "", set())
        except yaml.YAMLError:
            self._lines.clear()
        return value


class _Converter:
    def __init__(self, file: ConfigFile, any_case: bool, check: Check | None) -> None:
        self._file = file
        self._any_case = any_case
        self._check = check

    def convert(self, type_: Any, value: Any, path: str) -> Any:
        origin, args = get_origin(type_), get_args(type_)
        if origin in (Union, UnionType):
            members = [each for each in args if each is not msgspec.UnsetType]
            whole = [each for each in members if _holds(each, value)]
            return self.convert(whole[0], value, path) if whole else self._scalar(reduce(or_, members), value, path)
        if not _holds(type_, value):
            return self._scalar(type_, value, path)
        if isinstance(value, dict):
            return self._struct(type_, value, path)
        values = [self.convert(args[0], each, f"{path}[{at}]") for at, each in enumerate(value)]
        return _BAD if _BAD in values else origin(values)

    def _struct(self, type_: Any, value: dict[str, Any], path: str) -> Any:
        fields = {self._folded(field.encode_name): field for field in msgspec.structs.fields(type_)}
        given: dict[str, Any] = {}
        for key, member in value.items():
            field, below = fields.get(self._folded(key)), _below(path, key)
            if field is None:
                hint = "" if self._file.is_full else nearest(key, [each.encode_name for each in fields.values()])
                self._file.add(f"unknown key {quoted(key)}{hint}", path=path, line=self._file.line(below))
            elif field.name in given:
                self._file.add("is given twice, in different case", path=below)
            elif member is not None:
                given[field.name] = self._checked(key, self.convert(field.type, member, below), below)
        missing = [each.encode_name for each in fields.values() if each.required and each.name not in given]
        for name in missing:
            self._file.add(f'the key "{name}" is missing', path=path)
        if missing or _BAD in given.values():
            return _BAD
        try:
            return type_(**given)
        except ValueError as error:
            self._file.add(str(error), path=path)
            return _BAD

    def _checked(self, key: str, value: Any, path: str) -> Any:
        wrong = self._check(key, value) if self._check and isinstance(value, str) else None
        if wrong is None:
            return value
        self._file.add(wrong, path=path)
        return _BAD

    def _scalar(self, type_: Any, value: Any, path: str) -> Any:
        try:
            if isinstance(value, float) and not math.isfinite(value) and type_ is not Any:
                raise msgspec.ValidationError("Expected a finite number")
            return msgspec.convert(value, _bounded(type_))
        except msgspec.ValidationError as error:
            said = _QUOTED_TYPES.sub(_words, str(error).partition(", got ")[0])
            if get_origin(type_) is Literal:
                said = f"expected one of {', '.join(quoted(each) for each in sorted(get_args(type_)) if each)}"
            self._file.add(f"{said[0].lower()}{said[1:]}, found {spoken(value)}", path=path)
            return _BAD

    def _folded(self, key: str) -> str:
        return key.lower() if self._any_case else key


def spoken(value: Any) -> str:
    """A plain value for a message: one line, bounded."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "a table of keys"
        case list():
            return "a list"
        case str():
            return f"the text {quoted(value)}"
        case bool():
            return "true" if value else "false"
    return quoted(str(value))[1:-1]


def _words(types: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in types[1].split(" | ") if name != "null")


def _holds(type_: Any, value: Any) -> bool:
    """Whether a type is a struct and the value a table, or both are lists."""
    if isinstance(value, dict):
        return isinstance(type_, type) and issubclass(type_, msgspec.Struct)
    return isinstance(value, list) and get_origin(type_) in (list, tuple)


def _bounded(type_: Any) -> Any:
    if get_origin(type_) in (Union, UnionType):
        return reduce(or_, map(_bounded, get_args(type_)))
    return _WHOLE if type_ is int else type_


def _below(path: str, key: str) -> str:
    key = quoted(key)[1:-1]
    return f"{path}.{key}" if path else key


def _refuse_constant(word: str) -> Any:
    raise DocumentError(f"not valid JSON: {word} is not a JSON number")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentError(f"the key {quoted(key)} is given twice")
        found[key] = value
    return found
