"""Quantities in the one spelling that kube-apiserver stores: `3000` becomes `3k`, `0.1` `100m`, `1024Mi` `1Gi`.

The value changes only below a thousandth. Reading is `wire.quantity`'s.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tessera.wire.quantity import NotAQuantity, read

_DECIMAL = {-3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_EXPONENT = re.compile(r"[0-9.][eE][+-]?[0-9]")


def canonical(text: str | int | float) -> str | NotAQuantity:
    """`text` as the API server writes amounts of resources back: rounded away from zero to thousandths."""
    found = read(text)
    if isinstance(found, NotAQuantity):
        return found
    value = _to_thousandths(Fraction(found.value))
    spelled = str(text)
    if spelled.endswith("i") and abs(value) >= 1024 and value.denominator == 1:
        return _binary(value.numerator)
    return _decimal(value, exponent=bool(_EXPONENT.search(spelled)))


def _to_thousandths(value: Fraction) -> Fraction:
    rounded = -(-abs(value.numerator) * 1000 // value.denominator)
    return Fraction(rounded if value > 0 else -rounded, 1000)


def _binary(value: int) -> str:
    steps = 0
    while steps < len(_BINARY) - 1 and value % 1024 == 0:
        value //= 1024
        steps += 1
    return f"{value}{_BINARY[steps]}"


def _decimal(value: Fraction, *, exponent: bool) -> str:
    parts = int(value * 1000)
    power = -3
    while parts and power < 18 and parts % 1000 == 0:
        parts //= 1000
        power += 3
    if not parts:
        return "0"
    if exponent:
        return f"{parts}e{power}" if power else str(parts)
    return f"{parts}{_DECIMAL[power]}"
