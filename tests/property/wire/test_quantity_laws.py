from __future__ import annotations

from decimal import ROUND_UP, Context, Decimal, localcontext
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tessera.wire.quantity import INT64_MAX, INT64_MIN, NotAQuantity, NotWhole, Whole, read

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

digits = st.text("0123456789", min_size=1, max_size=20)
numbers = st.one_of(
    digits,
    digits.map(lambda whole: whole + "."),
    digits.map(lambda part: "." + part),
    st.tuples(digits, digits).map(".".join),
)
signs = st.sampled_from(["", "+", "-"])


def amount(text: str) -> Fraction:
    answer = read(text)
    assert not isinstance(answer, NotAQuantity)
    return Fraction(answer.value)


@given(signs, numbers, st.sampled_from(sorted(DECIMAL)))
def test_a_decimal_suffix_agrees_with_decimal_arithmetic(sign: str, number: str, suffix: str) -> None:
    with localcontext(Context(prec=200)):
        exact = Decimal(sign + number).scaleb(DECIMAL[suffix])
        expected = exact.quantize(Decimal("1e-9"), rounding=ROUND_UP)
    assert amount(sign + number + suffix) == Fraction(expected)


@given(signs, numbers, st.sampled_from(sorted(BINARY)))
def test_a_binary_suffix_agrees_with_decimal_arithmetic(sign: str, number: str, suffix: str) -> None:
    with localcontext(Context(prec=200)):
        exact = min(Decimal(number) * 2 ** BINARY[suffix], Decimal(INT64_MAX))
        expected = exact.quantize(Decimal("1e-9"), rounding=ROUND_UP)
    assert amount(sign + number + suffix) == Fraction(expected) * (-1 if sign == "-" else 1)


@given(signs, numbers, st.integers(-40, 40), st.sampled_from("eE"))
def test_an_exponent_agrees_with_decimal_arithmetic(sign: str, number: str, exponent: int, letter: str) -> None:
    with localcontext(Context(prec=200)):
        exact = Decimal(sign + number).scaleb(exponent)
        expected = exact.quantize(Decimal("1e-9"), rounding=ROUND_UP)
    assert amount(f"{sign}{number}{letter}{exponent}") == Fraction(expected)


@given(st.integers(INT64_MIN, INT64_MAX))
def test_every_int64_is_whole_as_text_and_as_number(value: int) -> None:
    assert read(str(value)) == read(value) == Whole(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_json_number_is_a_quantity(value: float) -> None:
    assert isinstance(read(value), Whole | NotWhole)


@given(st.text() | st.from_regex(r"[+-]?[0-9]*\.?[0-9]*[eEinumkKMGTP]*[+-]?[0-9]*", fullmatch=True))
def test_any_text_is_answered_and_a_whole_number_fits_int64(text: str) -> None:
    match read(text):
        case Whole(value):
            assert INT64_MIN <= value <= INT64_MAX
        case NotWhole(fraction):
            assert fraction.denominator > 1 or not INT64_MIN <= fraction <= INT64_MAX
        case NotAQuantity(reason):
            assert reason
