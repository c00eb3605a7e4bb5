"""JSON as Go programs read it: keys match in any case, unknown keys and nulls are ignored.

Each format checks its own values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tessera.wire.errors import WireError

T = TypeVar("T", bound=msgspec.Struct)


def decode_array(text: str, kind: type[T], *, what: str, member: str) -> list[T]:
    """The members of a JSON array, for which `null` has none. Messages call them `member` and their position."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"{what} is not valid JSON: {error}") from error
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"{what} must be a JSON array, not {type(value).__name__}")
    return [_convert(fold(raw, kind), kind, f"{member} {position}") for position, raw in enumerate(value)]


def encode(value: Any) -> str:
    """Compact JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError as error:
        raise WireError(f"cannot be written as JSON: {error}") from error


def fold(value: Any, kind: type[msgspec.Struct]) -> Any:
    """An object with only the keys of `kind`, spelled as on the wire, at every level; other values unchanged."""
    if not isinstance(value, dict):
        return value
    fields = _fields(kind)
    return {
        fields[lowered].encode_name: _folded(member, fields[lowered].type)
        for key, member in value.items()
        if member is not None and (lowered := key.lower()) in fields
    }


def _folded(value: Any, info: inspect.Type) -> Any:
    match info:
        case inspect.StructType(cls=cls):
            return fold(value, cls)
        case inspect.ListType(item_type=of) if isinstance(value, list):
            return [_folded(member, of) for member in value]
    return value


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, inspect.Field]:
    """By name in lower case."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name.lower(): field for field in info.fields}


def _convert(value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(f"{what}: {error}") from error
