"""Regular expressions of `matches()`: RE2, whose syntax and results are those of an apiserver.

A search takes time that grows with text times pattern, whatever the pattern is. RE2 keeps the last 128 patterns; what
is charged does not depend on that. Go knows no `\\C`, so it is refused.
"""

from __future__ import annotations

import re
from typing import Any

import re2

from tessera.wire.cel.costs import (
    BAD_PATTERN,
    PATTERN,
    PATTERN_CHARACTER,
    PATTERN_STATE,
    SEARCHED_STATES,
    UNICODE_CLASS,
    Meter,
)

MAX_BYTES = 128 * 1024
"""of memory for a pattern and its searches, which is enough for some 8000 states"""

_OPTIONS = re2.Options()
_OPTIONS.max_mem, _OPTIONS.log_errors, _OPTIONS.never_capture = MAX_BYTES, False, True
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class BadPattern(Exception):
    """A pattern that is wrong or too large."""


def check_pattern(pattern: str, meter: Meter) -> None:
    """Raises BadPattern."""
    _compile(pattern, meter)


def matches(text: str, pattern: str, meter: Meter) -> bool:
    """Whether some part of the text matches. Raises BadPattern."""
    compiled, encoded = _compile(pattern, meter), _encode(text)
    meter.spend(len(encoded) * compiled.programsize // SEARCHED_STATES)
    return compiled.search(encoded) is not None


def _compile(text: str, meter: Meter) -> Any:
    meter.spend(PATTERN + PATTERN_CHARACTER * len(text))
    pattern = _encode(text)
    escapes = _ESCAPED.findall(pattern)
    meter.spend(UNICODE_CLASS * (escapes.count(b"p") + escapes.count(b"P")))
    if b"C" in escapes:
        raise BadPattern("the escape \\C")
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        meter.spend(BAD_PATTERN)
        raise BadPattern(error.args[0].decode(errors="replace")) from None
    meter.spend(PATTERN_STATE * compiled.programsize)
    return compiled


def _encode(text: str) -> bytes:
    """As UTF-8. Literals may have half a surrogate pair, which is looked for as it is."""
    return text.encode(errors="surrogatepass")
