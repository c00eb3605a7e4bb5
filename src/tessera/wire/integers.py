"""Decimal integers in annotations, read as Go reads them: ASCII digits with an optional sign, nothing else.

Python's `int` also accepts blanks, underscores and digits of other scripts, and is slow for long texts.
"""

from __future__ import annotations

import re

from tessera.wire.errors import WireError
from tessera.wire.quotes import quoted

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
