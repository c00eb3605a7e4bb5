"""Kubernetes quantities (`3000`, `2Gi`, `1500m`, `3e3`) as exact numbers.

A text means the same before and after the apiserver rewrites it in canonical form: parts below one nano round away from
zero and binary sizes stop at the largest int64. No floats are used, and the cost is bounded for any text. Which amounts
a resource allows is not decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

MAX_LENGTH = 64
"""characters; the longest canonical text of a value that fits int64 has 33: sign, 19 digits, point, 9 digits, suffix"""
MAX_EXPONENT = 128
"""decimal; with at most 64 digits before it, anything larger is beyond int64 and anything smaller is below one nano"""
SHORT = 15
"""characters of a number that fits int64 without a check, in thousands too"""
NANO = 10**9
"""parts of a unit; Kubernetes keeps nothing finer"""

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only_part>[0-9]+))"
    r"(?:(?P<binary>[KMGTPE])i|[eE](?P<exponent>[+-]?[0-9]+)|(?P<decimal>[numkMGTPE]?))"
)
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number that fits int64: what Kubernetes' `AsInt64` answers."""

    value: int


@dataclass(frozen=True, slots=True)
class NotWhole:
    """A valid quantity that has a fraction or lies beyond int64; exponents above `MAX_EXPONENT` count as that one."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class NotAQuantity:
    """Text that Kubernetes would refuse."""

    reason: str


def read(text: str | int | float) -> Whole | NotWhole | NotAQuantity:
    """What a quantity amounts to. A JSON number is read from its shortest decimal text."""
    if isinstance(text, bool):
        return NotAQuantity("true and false are not quantities")
    if isinstance(text, int):
        return _sorted_in(Fraction(text))
    if isinstance(text, str) and len(text) <= SHORT and text.isascii():
        # Almost every quantity: plain digits, or digits in thousands as apiservers write them.
        if text.isdigit():
            return Whole(int(text))
        if text[-1:] == "k" and text[:-1].isdigit():
            return Whole(int(text[:-1]) * 1000)
    return _read_text(text if isinstance(text, str) else repr(text))


def binary_text(value: int) -> str:
    """A number of bytes as apiservers write it, e.g. `80Gi`."""
    return _shortest(value, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))


def decimal_text(value: int) -> str:
    """A whole number as apiservers write it, e.g. `1500` or `2k`."""
    return _shortest(value, 1000, ("", "k", "M", "G", "T", "P", "E"))


def _shortest(value: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while value and value % base == 0 and step + 1 < len(suffixes):
        value, step = value // base, step + 1
    return f"{value}{suffixes[step]}"


def _read_text(text: str) -> Whole | NotWhole | NotAQuantity:
    if len(text) > MAX_LENGTH:
        return NotAQuantity(f"more than {MAX_LENGTH} characters")
    found = _GRAMMAR.fullmatch(text)
    if found is None:
        return NotAQuantity("not a Kubernetes quantity")
    part = found["part"] or found["only_part"] or ""
    value = Fraction(int((found["whole"] or "") + part), 10 ** len(part))
    if found["binary"]:
        value = min(value * _BINARY[found["binary"]], Fraction(INT64_MAX))
    else:
        value *= _power_of_ten(found["exponent"] or _DECIMAL[found["decimal"] or ""])
    value = Fraction(ceil(value * NANO), NANO)
    return _sorted_in(-value if found["sign"] == "-" else value)


def _power_of_ten(exponent: str | int) -> Fraction:
    bounded = max(-MAX_EXPONENT, min(int(exponent), MAX_EXPONENT))
    return Fraction(10) ** bounded


def _sorted_in(value: Fraction) -> Whole | NotWhole:
    if value.denominator == 1 and INT64_MIN <= value <= INT64_MAX:
        return Whole(value.numerator)
    return NotWhole(value)
