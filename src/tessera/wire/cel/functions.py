"""Functions, operators and methods that expressions may use: of the meter and their values, and of nothing else.

The regular expressions of `matches()` are RE2's, whose syntax and results are those of an apiserver. A search takes
time that grows with text times pattern, whatever the pattern is. RE2 keeps the last 128 patterns; what is charged does
not depend on that. Go knows no `\\C`, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from string import ascii_letters
from typing import Any

import re2

from tessera.wire.cel.values import (
    BAD_PATTERN,
    CHANGED_CHARACTERS,
    MAX_VERSION,
    NUMBERS,
    PATTERN,
    PATTERN_CHARACTER,
    PATTERN_STATE,
    READ_TEXT,
    SEARCHED,
    SEARCHED_STATES,
    UNICODE_CLASS,
    VERSION_CHARACTER,
    Failed,
    Meter,
    Quantity,
    Semver,
    Value,
    add,
    calculate,
    compare,
    equal,
    integer,
    less,
    quantity,
    semver,
    whole,
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


Pure = Callable[..., Value]
"""of the meter and values; raises Failed for those that it does not take"""


def _of_the_compiler(meter: Meter, *values: Value) -> Value:
    raise AssertionError("this method is compiled in a way of its own")


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise Failed("takes a text")
    return value


def _not(meter: Meter, value: Value) -> bool:
    if not isinstance(value, bool):
        raise Failed("! takes true or false")
    return not value


def _negate(meter: Meter, value: Value) -> int:
    if type(value) is not int:
        raise Failed("- takes a whole number")
    return whole(-value)


def _size(meter: Meter, value: Value) -> int:
    if isinstance(value, str | tuple):
        return len(value)
    raise Failed("size() takes a text or a list")


def _read_quantity(meter: Meter, value: Value) -> Quantity | None:
    meter.spend(READ_TEXT)
    return quantity(_text(value))


def _quantity(meter: Meter, value: Value) -> Quantity:
    found = _read_quantity(meter, value)
    if found is None:
        raise Failed("not a quantity")
    return found


def _read_semver(meter: Meter, value: Value) -> Semver | None:
    meter.spend(READ_TEXT + VERSION_CHARACTER * min(len(_text(value)), MAX_VERSION))
    return semver(_text(value))


def _semver(meter: Meter, value: Value) -> Semver:
    found = _read_semver(meter, value)
    if found is None:
        raise Failed("not a semantic version")
    return found


def _version_part(place: int) -> Pure:
    def part(meter: Meter, value: Value) -> int:
        if not isinstance(value, Semver):
            raise Failed("takes a version")
        return value.numbers[place]

    return part


def _as_quantity(value: Value) -> Quantity:
    if not isinstance(value, Quantity):
        raise Failed("takes a quantity")
    return value


def _integer(meter: Meter, value: Value) -> int:
    meter.spend(NUMBERS)
    return integer(_as_quantity(value))


def _sum(sign: int) -> Pure:
    """Adds to a quantity another one, or a whole number, with this sign."""

    def apply(meter: Meter, one: Value, other: Value) -> Quantity:
        meter.spend(NUMBERS)
        amount = Fraction(other) if type(other) is int else _as_quantity(other).value
        return Quantity(_as_quantity(one).value + sign * amount)

    return apply


def _letters(change: Callable[[str], str]) -> Pure:
    """Only letters of ASCII change."""
    changed = {ord(letter): change(letter) for letter in ascii_letters}

    def apply(meter: Meter, value: Value) -> str:
        text = _text(value)
        if text.isascii():
            meter.spend(1 + len(text) // CHANGED_CHARACTERS)
            return change(text)
        meter.spend(len(text))
        return text.translate(changed)

    return apply


def _starts(meter: Meter, text: Value, start: Value) -> bool:
    meter.spend_on_text(len(_text(start)))
    return _text(text).startswith(_text(start))


def _ends(meter: Meter, text: Value, end: Value) -> bool:
    meter.spend_on_text(len(_text(end)))
    return _text(text).endswith(_text(end))


def _has_part(meter: Meter, text: Value, part: Value) -> bool:
    meter.spend_on_text(len(_text(text)))
    meter.spend(len(_text(text)) * len(_text(part)) // SEARCHED)
    return _text(part) in _text(text)


FUNCTIONS: Mapping[str, tuple[int, Pure]] = {
    "==": (2, equal),
    "!=": (2, lambda meter, one, other: not equal(meter, one, other)),
    "<": (2, less),
    ">": (2, lambda meter, one, other: less(meter, other, one)),
    "<=": (2, lambda meter, one, other: not less(meter, other, one)),
    ">=": (2, lambda meter, one, other: not less(meter, one, other)),
    "+": (2, add),
    **{sign: (2, lambda meter, one, other, sign=sign: calculate(sign, one, other)) for sign in "-*/%"},
    "!": (1, _not),
    "negate": (1, _negate),
    "size": (1, _size),
    "quantity": (1, _quantity),
    "isQuantity": (1, lambda meter, value: _read_quantity(meter, value) is not None),
    "semver": (1, _semver),
    "isSemver": (1, lambda meter, value: _read_semver(meter, value) is not None),
}
METHODS: Mapping[str, tuple[int, Pure]] = {
    "startsWith": (1, _starts),
    "endsWith": (1, _ends),
    "contains": (1, _has_part),
    "matches": (1, _of_the_compiler),
    "lowerAscii": (0, _letters(str.lower)),
    "upperAscii": (0, _letters(str.upper)),
    "size": (0, _size),
    "compareTo": (1, compare),
    "isGreaterThan": (1, lambda meter, one, other: compare(meter, one, other) > 0),
    "isLessThan": (1, lambda meter, one, other: compare(meter, one, other) < 0),
    "major": (0, _version_part(0)),
    "minor": (0, _version_part(1)),
    "patch": (0, _version_part(2)),
    "isInteger": (0, lambda meter, value: _as_quantity(value).value.denominator == 1),
    "asInteger": (0, _integer),
    "add": (1, _sum(1)),
    "sub": (1, _sum(-1)),
}
