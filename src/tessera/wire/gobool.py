"""Booleans as Go's strconv writes and reads them, in annotations and registrations."""

from __future__ import annotations

_LITERALS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def parse_bool(text: str) -> bool | None:
    """The value of a Go bool literal, or None."""
    return _LITERALS.get(text)


def format_bool(value: bool) -> str:
    return "true" if value else "false"
