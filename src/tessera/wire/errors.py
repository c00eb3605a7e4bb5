"""The one exception of this package, input that cannot be decoded, and how messages show foreign text: quoted, escaped
and shortened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


class WireError(ValueError):
    """Malformed input. The message says what is wrong, where, and what would be right."""


MAX_QUOTED = 120
"""characters; enough for any name, short enough for an event"""
MAX_NAMED = 3
"""names per message"""


def shortened(text: str) -> str:
    """The text, or its beginning if it is too long for a message."""
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"


def quoted(text: str) -> str:
    """In double quotes, with controls, quotes and backslashes escaped: the form of Go's `%q` for ordinary text."""
    printable = shortened(text).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(printable, ensure_ascii=False)


def listed(names: Iterable[str]) -> str:
    """The first names as one text, and how many more there are."""
    every = list(names)
    shown = ", ".join(shortened(name) for name in every[:MAX_NAMED])
    return f"{shown} and {len(every) - MAX_NAMED} more" if len(every) > MAX_NAMED else shown
