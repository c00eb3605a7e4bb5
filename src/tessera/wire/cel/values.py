"""Values of expressions and what is done with them, typed as in CEL: nothing is converted, and 1 is not true.

Whatever takes longer with larger values says so to the meter, before it does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tessera.wire.cel.costs import COPIED_ITEMS, ITEM, NUMBERS, Meter
from tessera.wire.quantity import NotAQuantity, Whole, read

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_TEXT = 4096
"""characters of a text and items of a list that an expression may build; attributes have 64"""

MAX_VERSION = 256
"""characters of a semantic version, as in the API"""


class Failed(Exception):
    """The expression has no value on this device, e.g. because an attribute is missing."""


@dataclass(frozen=True, slots=True)
class Quantity:
    value: Fraction


@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version; what follows `+` does not count."""

    numbers: tuple[int, int, int]
    before: tuple[tuple[int, int, str], ...] = ()
    """parts of a pre-release: (0, number, "") or (1, 0, text)"""

    @property
    def order(self) -> tuple[object, ...]:
        return (self.numbers, not self.before, self.before)


Value = str | int | bool | Quantity | Semver | tuple["Value", ...] | Mapping[str, "Value"]

_NUMBER = "(0|[1-9][0-9]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


@lru_cache(maxsize=1024)
def semver(text: str) -> Semver | None:
    """A version; None if the text is none."""
    found = _SEMVER.fullmatch(text) if len(text) <= MAX_VERSION else None
    if found is None or any(len(number) > 19 for number in found.groups()[:3]):
        return None
    parts = tuple(filter(None, (found[4] or "").split(".")))
    if any(part.isdigit() and (len(part) > 19 or (part != "0" and part.startswith("0"))) for part in parts):
        return None
    before = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
    return Semver((int(found[1]), int(found[2]), int(found[3])), before)


@lru_cache(maxsize=1024)
def quantity(text: str) -> Quantity | None:
    """A quantity; None if the text is none."""
    found = read(text)
    return None if isinstance(found, NotAQuantity) else Quantity(Fraction(found.value))


def equal(meter: Meter, one: Value, other: Value) -> bool:
    """Values of different types are different. Lists that share their parts are compared part by part all the same, so
    each pair of items that is looked at counts."""
    meter.spend(ITEM)
    if isinstance(one, tuple) and isinstance(other, tuple):
        meter.spend(ITEM)
        return len(one) == len(other) and all(equal(meter, *pair) for pair in zip(one, other, strict=True))
    if type(one) is not type(other):
        return False
    if isinstance(one, str) and isinstance(other, str):
        meter.spend_on_text(min(len(one), len(other)))
    elif isinstance(one, Quantity | Semver):
        meter.spend(NUMBERS)
    return one == other


def less(meter: Meter, one: Value, other: Value) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        meter.spend_on_text(min(len(one), len(other)))
        return one < other
    if type(one) is type(other) and isinstance(one, int) and isinstance(other, int):
        return one < other
    raise Failed("values of these types have no order")


def contains(meter: Meter, container: Value, item: Value) -> bool:
    if isinstance(container, Mapping):
        if not isinstance(item, str):
            return False
        meter.spend_on_text(len(item))
        return item in container
    if isinstance(container, tuple):
        return any(equal(meter, item, each) for each in container)
    raise Failed("`in` takes a list or a map")


def compare(meter: Meter, one: Value, other: Value) -> int:
    """-1, 0 or 1 for quantities and for versions."""
    meter.spend(NUMBERS)
    if isinstance(one, Quantity) and isinstance(other, Quantity):
        return (one.value > other.value) - (one.value < other.value)
    if isinstance(one, Semver) and isinstance(other, Semver):
        meter.spend(ITEM * min(len(one.before), len(other.before)))
        return (one.order > other.order) - (one.order < other.order)
    raise Failed("compares two quantities or two versions")


def add(meter: Meter, one: Value, other: Value) -> Value:
    if type(one) is int and type(other) is int:
        return whole(one + other)
    if isinstance(one, str) and isinstance(other, str):
        _check_length(len(one) + len(other))
        meter.spend_on_text(len(one) + len(other))
        return one + other
    if isinstance(one, tuple) and isinstance(other, tuple):
        _check_length(len(one) + len(other))
        meter.spend(1 + (len(one) + len(other)) // COPIED_ITEMS)
        return one + other
    raise Failed("+ takes two values of one type")


def _check_length(length: int) -> None:
    if length > MAX_TEXT:
        raise Failed("too long")


def calculate(sign: str, one: Value, other: Value) -> int:
    """`-`, `*`, `/` and `%` of whole numbers; division rounds towards zero."""
    if not isinstance(one, int) or not isinstance(other, int) or isinstance(one, bool) or isinstance(other, bool):
        raise Failed(f"{sign} takes two whole numbers")
    if sign == "-":
        return whole(one - other)
    if sign == "*":
        return whole(one * other)
    if other == 0:
        raise Failed("division by zero")
    quotient = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)
    return whole(quotient) if sign == "/" else one - quotient * other


def whole(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise Failed("the number is too large")
    return value


def integer(of: Quantity) -> int:
    """`asInteger()` of a quantity."""
    found = read(int(of.value)) if of.value.denominator == 1 else None
    if not isinstance(found, Whole):
        raise Failed("not a whole number")
    return found.value
