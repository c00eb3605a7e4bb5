from __future__ import annotations

import time
from fractions import Fraction

import pytest

from tessera.wire.quantity import (
    INT64_MAX,
    INT64_MIN,
    NotAQuantity,
    NotWhole,
    Whole,
    binary_text,
    decimal_text,
    read,
)

NANO = Fraction(1, 10**9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("3000", 3000),
        ("+5", 5),
        ("-5", -5),
        ("-0", 0),
        ("007", 7),
        ("1.", 1),
        ("1.0", 1),
        ("1.000", 1),
        ("3k", 3000),
        ("1.5k", 1500),
        (".5k", 500),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("2Ki", 2048),
        ("2Mi", 2 * 2**20),
        ("2Gi", 2 * 2**30),
        ("2Ti", 2 * 2**40),
        ("2Pi", 2 * 2**50),
        ("2Ei", 2 * 2**60),
        ("1.5Gi", 3 * 2**29),
        ("0.5Ki", 512),
        ("1.Gi", 2**30),
        ("3e3", 3000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("3000e-3", 3),
        ("1.5e1", 15),
        ("1000m", 1),
        ("1000000u", 1),
        ("1000000000n", 1),
        ("0e999999999", 0),
        ("0Ei", 0),
        (str(INT64_MAX), INT64_MAX),
        (str(INT64_MIN), INT64_MIN),
        ("8Ei", INT64_MAX),
        ("10Ei", INT64_MAX),
        ("-10Ei", -INT64_MAX),
    ],
)
def test_a_whole_quantity_is_an_exact_integer(text: str, value: int) -> None:
    assert read(text) == Whole(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1500m", Fraction(3, 2)),
        ("-1500m", Fraction(-3, 2)),
        ("1n", NANO),
        ("1u", 1000 * NANO),
        ("1.3Ki", Fraction(13312, 10)),
        ("3e-1", Fraction(3, 10)),
        ("0.1n", NANO),
        ("-0.1n", -NANO),
        ("1e-999999999", NANO),
        ("0.0000000011", 2 * NANO),
        ("9223372036854775808", Fraction(2**63)),
        ("-9223372036854775809", Fraction(-(2**63) - 1)),
        ("100E", Fraction(10**20)),
    ],
)
def test_a_fraction_or_a_number_beyond_int64_is_valid_but_not_whole(text: str, value: Fraction) -> None:
    assert read(text) == NotWhole(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        " 1",
        "1 ",
        "1\n",
        "+",
        "-",
        ".",
        "Ki",
        "1ki",
        "1KI",
        "1K",
        "1g",
        "1Mib",
        "1MB",
        "1mi",
        "1i",
        "1e",
        "1e+",
        "1E+",
        "1e1.5",
        "1e3Ki",
        "1Ei5",
        "1EE",
        "1kk",
        "1.2.3",
        "--1",
        "+-1",
        "0x10",
        "1_000",
        "1,000",
        "\uff11\uff12",
        "\u0661",
        "1µ",
        "nan",
        "inf",
        "true",
        "null",
        "1" * 65,
        "\ud800",
    ],
)
def test_what_is_outside_the_grammar_is_refused(text: str) -> None:
    assert isinstance(read(text), NotAQuantity)


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (3000, Whole(3000)),
        (-1, Whole(-1)),
        (2**63, NotWhole(Fraction(2**63))),
        (3.0, Whole(3)),
        (0.1, NotWhole(Fraction(1, 10))),
        (1e22, NotWhole(Fraction(10**22))),
        (1e-7, NotWhole(100 * NANO)),
    ],
)
def test_a_json_number_is_read_from_its_shortest_text(number: float, value: Whole | NotWhole) -> None:
    assert read(number) == value


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), True])
def test_what_json_cannot_mean_as_a_number_is_refused(number: float) -> None:
    assert isinstance(read(number), NotAQuantity)


def test_a_long_text_is_refused_with_its_limit() -> None:
    assert read("9" * 100_000) == NotAQuantity("more than 64 characters")


@pytest.mark.parametrize("text", ["1e999999999", "-1e999999999", "9" * 50 + "e-99999999", "1e" + "9" * 60])
def test_a_monstrous_exponent_takes_no_time(text: str) -> None:
    begin = time.process_time()
    for _ in range(100):
        assert isinstance(read(text), NotWhole)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1, "1"), (1024, "1Ki"), (81920 * 2**20, "80Gi"), (143771 * 2**20, "143771Mi")]
)
def test_bytes_are_written_as_apiservers_do(value: int, text: str) -> None:
    assert binary_text(value) == text
    assert read(text) == Whole(value)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (100, "100"), (1000, "1k"), (1500, "1500"), (10**7, "10M")])
def test_whole_numbers_are_written_as_apiservers_do(value: int, text: str) -> None:
    assert decimal_text(value) == text
    assert read(text) == Whole(value)
