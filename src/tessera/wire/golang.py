"""Booleans, integers and JSON as Go programs read and write them, in annotations and registrations.

Integers are ASCII digits with an optional sign: Python's `int` also accepts blanks, underscores and digits of other
scripts, and is slow for long texts. In JSON keys match in any case, unknown keys and nulls are ignored. Each format
checks its own values. msgspec is imported late: settings read such texts too, and `--help` must stay quick.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.wire.errors import WireError, quoted

if TYPE_CHECKING:
    from msgspec import Struct

_LITERALS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def parse_bool(text: str) -> bool | None:
    """The value of a Go bool literal, or None."""
    return _LITERALS.get(text)


def format_bool(value: bool) -> str:
    return "true" if value else "false"


INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_LENGTH = 64
"""characters; room for leading zeros, no room for long arithmetic"""


def parse_integer(text: str) -> int | None:
    """An int64, or None."""
    if len(text) > _MAX_LENGTH or _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def counter(text: str, field: str) -> int:
    """A number that HAMi keeps in 32 bits and that cannot be negative."""
    value = parse_integer(text)
    if value is None or not 0 <= value <= INT32_MAX:
        raise WireError(f"invalid {field} field: {quoted(text)} is not a whole number from 0 to {INT32_MAX}")
    return value


T = TypeVar("T", bound="Struct")


def decode_array(text: str, kind: type[T], *, what: str, member: str) -> list[T]:
    """The members of a JSON array, for which `null` has none. Messages call them `member` and their position."""
    import msgspec

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
    import msgspec

    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError as error:
        raise WireError(f"cannot be written as JSON: {error}") from error


def fold(value: Any, kind: type[Struct]) -> Any:
    """An object with only the keys of `kind`, spelled as on the wire, at every level; other values unchanged."""
    if not isinstance(value, dict):
        return value
    keys, folded = _keys(kind), {}
    for key, member in value.items():
        name, inner = keys.get(key.lower(), ("", None))
        if name and member is not None:
            if inner is not None:
                member = [fold(each, inner) for each in member] if isinstance(member, list) else fold(member, inner)
            folded[name] = member
    return folded


@cache
def _keys(kind: type[Struct]) -> Mapping[str, tuple[str, type[Struct] | None]]:
    """By name in lower case: the name on the wire, and the struct that the member or its members are."""
    import msgspec
    from msgspec import inspect

    found = {}
    for field in msgspec.structs.fields(kind):
        info = inspect.type_info(field.type)
        info = info.item_type if isinstance(info, inspect.ListType) else info
        inner = info.cls if isinstance(info, inspect.StructType) else None
        found[field.encode_name.lower()] = (field.encode_name, inner)
    return found


def _convert(value: Any, kind: type[T], what: str) -> T:
    import msgspec

    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(f"{what}: {error}") from error
