"""Replaces strings in the selectors of DeviceClasses and of requests for devices.

Selectors are texts that people write. Of their strings, those stay that match something that devices publish, and
amounts and versions: the others match no device, and a hash in their place matches none either. Comments go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tessera.inspect.state import Json

ChangeText = Callable[[str], str]

_STRING_OR_COMMENT = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<raw>[rR]?)(?P<quote>'''|\"\"\"|'|")(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""",
    re.VERBOSE | re.DOTALL,
)
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:[kMGTPE]i?|m)?")


class SelectorReplacer:
    """Replaces strings in CEL expressions. `published`: every name and value that devices have. `node_text` replaces
    names of nodes and uids in strings that stay."""

    def __init__(self, published: Iterable[str], *, digest: ChangeText, node_text: ChangeText) -> None:
        self._published = frozenset(published)
        self._digest = digest
        self._node_text = node_text

    def text(self, expression: str) -> str:
        return _STRING_OR_COMMENT.sub(self._replaced, expression)

    def _replaced(self, found: re.Match[str]) -> str:
        if found["comment"] is not None:
            return ""
        text = found["text"]
        if not text or _AMOUNT.fullmatch(text) or any(text in each or _matches(text, each) for each in self._published):
            return f"{found['raw']}{found['quote']}{self._node_text(text)}{found['quote']}"
        return f"'{self._digest(text)}'"


def _matches(pattern: str, text: str) -> bool:
    """Whether the text is found by a regular expression, if the pattern is one."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def published_texts(slices: Iterable[Json]) -> set[str]:
    """Every name and string that devices publish."""
    found: set[str] = set()
    for each in slices:
        spec = each.get("spec") or {}
        found.add(spec.get("driver", ""))
        for device in spec.get("devices") or ():
            found.add(device.get("name", ""))
            for name, value in (device.get("attributes") or {}).items():
                found.update(name.split("/"), (text for text in value.values() if isinstance(text, str)))
            for name in device.get("capacity") or ():
                found.update(name.split("/"))
    return found - {""}
