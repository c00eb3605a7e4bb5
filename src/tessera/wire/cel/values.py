"""Values of expressions and what is done with them, typed as in CEL: nothing is converted, and 1 is not true.

What evaluation costs is counted in units of about a tenth of a microsecond, by a meter that ends it: whatever takes
longer with larger values says so to the meter, before it does it. The price of an operation is what the worst arguments
of their size take (`bench.selector_costs` looks for worse ones), so that units bound time. What is charged depends on
the expression and the device alone, never on a cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tessera.core.model.published_cards import CARD_COST
from tessera.wire.quantity import NotAQuantity, Whole, read

MAX_COST = CARD_COST
"""of all selectors of one request on one device: what people write takes 100 to 3000, which is a long pattern"""
MAX_FOLDED = 30_000
"""of the parts of an expression that are the same on all devices: they are evaluated once, when it is read"""

DEVICE, ATTRIBUTE = 100, 20
"""to look at a device, and for each attribute or capacity that is read of it; not part of what an expression spends"""
PART = 3
"""for each part of an expression that is evaluated: a literal, a name, an operator, a call"""
ITEM = 6
"""for each pair of items that is compared, and each item of a list that is built"""
BIND = 8
"""a variable that gets a value, by `cel.bind` or for an item of a loop"""
FAILURE = 40
"""for each failure that an expression gets over"""
READ_TEXT = 120
"""a text that is read as a quantity or as a version"""
VERSION_CHARACTER = 3
"""each character of a version: each second one may begin another part"""
NUMBERS = 60
"""two quantities that are compared, added or subtracted"""
PATTERN, PATTERN_CHARACTER, PATTERN_STATE = 200, 10, 2
"""a pattern that is used, and each character and each state of it: as if RE2 compiled it each time"""
UNICODE_CLASS = 5_000
"""a class of letters by a property, as `\\pL`: RE2 makes some 600 ranges of it"""
BAD_PATTERN = 4_000
"""a pattern that is refused: RE2 may have made all the states that fit into its memory"""
SEARCHED_STATES = 8
"""bytes of a text, times states of the pattern that is looked for in it, for one unit"""
COPIED_CHARACTERS, COPIED_ITEMS = 128, 8
"""of texts and lists that one unit copies or compares"""
CHANGED_CHARACTERS = 16
"""whose case one unit changes; of a text that is not ASCII, one"""
SEARCHED = 512
"""characters of a text, times those of a part that is looked for in it, for one unit"""


class TooCostly(Exception):
    """The work that an expression may do is done. Nothing in an expression gets over it."""


class Meter:
    """What an evaluation may still spend."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    @property
    def spent(self) -> int:
        return self.most - self.left

    def spend(self, units: int) -> None:
        """Comes before the work, so that what is too much is not done."""
        self.left -= units
        if self.left < 0:
            raise TooCostly

    def spend_on_text(self, characters: int) -> None:
        """Copying, comparing or hashing them."""
        self.spend(1 + characters // COPIED_CHARACTERS)


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
