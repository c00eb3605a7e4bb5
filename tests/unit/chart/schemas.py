"""As much of JSON Schema as the chart's schema uses. A keyword that is not known here raises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

ANNOTATIONS = frozenset({"$schema", "title", "description", "definitions"})
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where the value is not what the schema says."""
    for keyword, said in schema.items():
        if keyword not in ANNOTATIONS:
            yield from _CHECKS[keyword](value, said, schema, root, path)


def _ref(value: Any, said: str, schema: Any, root: Any, path: str) -> Iterator[str]:
    yield from problems(value, root["definitions"][said.removeprefix("#/definitions/")], root, path)


def _type(value: Any, said: str | list[str], schema: Any, root: Any, path: str) -> Iterator[str]:
    names = [said] if isinstance(said, str) else said
    # Only to Python is a bool an integer.
    fits = "boolean" in names if isinstance(value, bool) else any(isinstance(value, TYPES[name]) for name in names)
    if not fits:
        yield f"{path}: {value!r} is no {' or '.join(names)}"


def _properties(value: Any, said: dict[str, Any], schema: Any, root: Any, path: str) -> Iterator[str]:
    for name in value.keys() & said.keys() if isinstance(value, dict) else ():
        yield from problems(value[name], said[name], root, f"{path}/{name}")


def _additional(value: Any, said: Any, schema: Any, root: Any, path: str) -> Iterator[str]:
    for name in value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else ():
        if said is False:
            yield f"{path}/{name}: not known"
        else:
            yield from problems(value[name], said, root, f"{path}/{name}")


def _items(value: Any, said: Any, schema: Any, root: Any, path: str) -> Iterator[str]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from problems(item, said, root, f"{path}/{index}")


def _any_of(value: Any, said: list[Any], schema: Any, root: Any, path: str) -> Iterator[str]:
    if all(any(problems(value, each, root, path)) for each in said):
        yield f"{path}: {value!r} is none of what it may be"


def _enum(value: Any, said: list[Any], schema: Any, root: Any, path: str) -> Iterator[str]:
    if value not in said:
        yield f"{path}: {value!r} is not one of {said}"


def _pattern(value: Any, said: str, schema: Any, root: Any, path: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(said, value):
        yield f"{path}: {value!r} does not match {said}"


def _limit(value: Any, said: float, schema: Any, root: Any, path: str) -> Iterator[str]:
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    if isinstance(value, int | float) and not (least <= value <= most and value > schema.get("exclusiveMinimum", -1)):
        yield f"{path}: {value} is too small or too large"


def _length(value: Any, said: int, schema: Any, root: Any, path: str) -> Iterator[str]:
    if isinstance(value, str) and len(value) < said:
        yield f"{path}: {value!r} is too short"


_CHECKS: dict[str, Callable[[Any, Any, Any, Any, str], Iterator[str]]] = {
    "$ref": _ref,
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "anyOf": _any_of,
    "enum": _enum,
    "pattern": _pattern,
    "minimum": _limit,
    "maximum": _limit,
    "exclusiveMinimum": _limit,
    "minLength": _length,
}
