"""JSON as Go programs read it: keys match in any case, unknown keys and nulls are ignored.

Each format checks its own values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from tessera.wire.errors import WireError

T = TypeVar("T", bound=msgspec.Struct)


def decode_array(text: str, what: str) -> list[Any]:
    """The members of a JSON array; `null` has none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"{what} is not valid JSON: {error}") from error
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"{what} must be a JSON array, not {type(value).__name__}")
    return value


def encode(value: Any) -> str:
    """Compact JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError as error:
        raise WireError(f"cannot be written as JSON: {error}") from error


def key_table(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """A map from lower case to the wire name, for `fold`."""
    return MappingProxyType({name.lower(): name for name in kind.__struct_encode_fields__})


def fold(value: Any, keys: Mapping[str, str]) -> Any:
    """An object with only the known keys, spelled as on the wire; other values unchanged."""
    if not isinstance(value, dict):
        return value
    return {
        keys[lowered]: member
        for key, member in value.items()
        if member is not None and (lowered := key.lower()) in keys
    }


def fold_each(value: Any, keys: Mapping[str, str]) -> Any:
    """Apply `fold` to a list; other values unchanged."""
    return [fold(member, keys) for member in value] if isinstance(value, list) else value


def convert(value: Any, kind: type[T], what: str) -> T:
    """A checked struct from a folded object."""
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(f"{what}: {error}") from error
