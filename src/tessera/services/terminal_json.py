"""JSON that people may read on a terminal: names and messages of others must not steer it.

Every command writes its JSON through here. Characters that are not printable (controls such as U+009B, and those that
turn the direction of a line such as U+202E) are escaped, which changes nothing for programs.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_PLAIN = re.compile(r"[^\n\x20-\x7e]")
"""what may have to be escaped; only strings hold it, since an encoder writes none between them"""


def encode_json(content: Any, *, indent: int = 0, ascii_only: bool = False) -> str:
    """One document with a line break at its end; on one line if there is no indent."""
    data = msgspec.json.encode(content)
    text = (msgspec.json.format(data, indent=indent) if indent else data).decode()
    return escape_json(f"{text}\n", ascii_only=ascii_only)


def escape_json(text: str, *, ascii_only: bool = False) -> str:
    """JSON with escapes; `ascii_only`: for everything that is not ASCII."""

    def escaped(found: re.Match[str]) -> str:
        one = found[0]
        if one.isprintable() and not ascii_only:
            return one
        # JSON's escapes have four digits each, so that some characters need two.
        return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]

    return _PLAIN.sub(escaped, text)
