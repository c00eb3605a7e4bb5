"""Functions, operators and methods that expressions may use, of values alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from tessera.wire.cel.values import (
    Failed,
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

Pure = Callable[..., Value]
"""of values; raises Failed for those that it does not take"""


def _of_the_compiler(*values: Value) -> Value:
    raise AssertionError("this method is compiled in a way of its own")


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise Failed("takes a text")
    return value


def _not(value: Value) -> bool:
    if not isinstance(value, bool):
        raise Failed("! takes true or false")
    return not value


def _negate(value: Value) -> int:
    if type(value) is not int:
        raise Failed("- takes a whole number")
    return whole(-value)


def _size(value: Value) -> int:
    if isinstance(value, str | tuple):
        return len(value)
    raise Failed("size() takes a text or a list")


def _quantity(value: Value) -> Quantity:
    found = quantity(_text(value))
    if found is None:
        raise Failed("not a quantity")
    return found


def _semver(value: Value) -> Semver:
    found = semver(_text(value))
    if found is None:
        raise Failed("not a semantic version")
    return found


def _version_part(place: int) -> Pure:
    def part(value: Value) -> int:
        if not isinstance(value, Semver):
            raise Failed("takes a version")
        return value.numbers[place]

    return part


def _as_quantity(value: Value) -> Quantity:
    if not isinstance(value, Quantity):
        raise Failed("takes a quantity")
    return value


def _amount(value: Value) -> Fraction:
    """Of a quantity, or of a whole number beside one."""
    return Fraction(value) if type(value) is int else _as_quantity(value).value


def _letters(change: Callable[[str], str]) -> Pure:
    """Only letters of ASCII change."""
    return lambda value: "".join([change(letter) if letter.isascii() else letter for letter in _text(value)])


FUNCTIONS: Mapping[str, tuple[int, Pure]] = {
    "==": (2, equal),
    "!=": (2, lambda one, other: not equal(one, other)),
    "<": (2, less),
    ">": (2, lambda one, other: less(other, one)),
    "<=": (2, lambda one, other: not less(other, one)),
    ">=": (2, lambda one, other: not less(one, other)),
    "+": (2, add),
    **{sign: (2, lambda one, other, sign=sign: calculate(sign, one, other)) for sign in "-*/%"},
    "!": (1, _not),
    "negate": (1, _negate),
    "size": (1, _size),
    "quantity": (1, _quantity),
    "isQuantity": (1, lambda value: quantity(_text(value)) is not None),
    "semver": (1, _semver),
    "isSemver": (1, lambda value: semver(_text(value)) is not None),
}
METHODS: Mapping[str, tuple[int, Pure]] = {
    "startsWith": (1, lambda text, start: _text(text).startswith(_text(start))),
    "endsWith": (1, lambda text, end: _text(text).endswith(_text(end))),
    "contains": (1, lambda text, part: _text(part) in _text(text)),
    "matches": (1, _of_the_compiler),
    "lowerAscii": (0, _letters(str.lower)),
    "upperAscii": (0, _letters(str.upper)),
    "size": (0, _size),
    "compareTo": (1, compare),
    "isGreaterThan": (1, lambda one, other: compare(one, other) > 0),
    "isLessThan": (1, lambda one, other: compare(one, other) < 0),
    "major": (0, _version_part(0)),
    "minor": (0, _version_part(1)),
    "patch": (0, _version_part(2)),
    "isInteger": (0, lambda value: _as_quantity(value).value.denominator == 1),
    "asInteger": (0, lambda value: integer(_as_quantity(value))),
    "add": (1, lambda one, other: Quantity(_as_quantity(one).value + _amount(other))),
    "sub": (1, lambda one, other: Quantity(_as_quantity(one).value - _amount(other))),
}
