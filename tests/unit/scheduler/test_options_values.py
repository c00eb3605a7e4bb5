from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tessera.scheduler.settings import NodeLockMode
from tessera.services import flag_values as read
from tessera.services.addresses import Address
from tessera.services.durations import format_duration, parse_duration, parse_span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("5m0s", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("300ms", 0.3),
        ("7us", 7e-6),
        ("7µs", 7e-6),
        ("7μs", 7e-6),
        ("1000ns", 1e-6),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", ""),
        ("5", "; write 5s"),
        ("2.5", "; write 2.5s"),
        ("-5m", ""),
        ("5 m", ""),
        ("5d", ""),
        ("m", ""),
        ("5m\n", ""),
        ("٥m", ""),
        ("9" * 65 + "h", ""),
        ("9" * 10_000, ""),
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 90s, 5m or 1h30m, found") as caught:
        parse_duration(text)
    assert str(caught.value).endswith(f'"{hint}') if hint else "; write" not in str(caught.value)


def test_a_duration_that_go_could_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 292 years"):
        parse_duration("9999999999h")


def test_a_span_of_nothing_is_refused() -> None:
    assert parse_span("1ms") == 0.001
    with pytest.raises(ValueError, match="above 0"):
        parse_span("0s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.5, "0.5s"),
        (20.0, "20s"),
        (60.0, "1m"),
        (61.25, "1m1.25s"),
        (300.0, "5m"),
        (5400.0, "1h30m"),
        (3601.0, "1h1s"),
        (3600.0, "1h"),
    ],
)
def test_a_duration_is_written_short_and_reads_back(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (read.text_of, "", ""),
        (read.some_text, "x", "x"),
        (read.directory_of, "/usr/local", "/usr/local"),
        (read.switch_of, "true", True),
        (read.switch_of, "F", False),
        (read.whole_of, "-3", -3),
        (read.amount_of, "2147483647", 2**31 - 1),
        (read.number_of, "2.5", 2.5),
        (read.number_of, ".5", 0.5),
        (read.number_of, "-1", -1.0),
        (read.seconds_of, "30", 30.0),
        (read.seconds_of, "1m", 60.0),
        (read.one_of(NodeLockMode), "never", NodeLockMode.NEVER),
        (read.words_of(("a", "b"), several=True), "a, b", "a, b"),
        (read.resource_of, "nvidia.com/gpu", "nvidia.com/gpu"),
        (read.resource_of, "", ""),
        (read.dns_name_of, "a-b.c", "a-b.c"),
        (read.address_of, "none", None),
        (read.address_of, ":9395", Address("", 9395)),
        (read.address_of, "0.0.0.0:443", Address("0.0.0.0", 443)),
        (read.address_of, "localhost:0", Address("localhost", 0)),
        (read.address_of, "[::1]:8080", Address("::1", 8080)),
        (read.some_address_of, ":1", Address("", 1)),
        (read.labels_of, "", {}),
        (read.labels_of, " ", {}),
        (read.labels_of, "gpu=on, a.b/c=", {"gpu": "on", "a.b/c": ""}),
        (read.labels_of, "gpu=on,gpu=on", {"gpu": "on"}),
    ],
)
def test_a_value_is_read(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (read.some_text, " ", "expected a text, found nothing"),
        (read.some_text, "a\nb", "without control characters"),
        (read.some_text, "\udcff", "without control characters"),
        (read.directory_of, "usr", 'expected a path that starts with /, found "usr"'),
        (read.directory_of, "/a\nb", "expected a path"),
        (read.switch_of, "", 'expected true or false, found ""'),
        (read.switch_of, "yes", 'expected true or false, found "yes"'),
        (read.whole_of, "4.5", 'expected a whole number, found "4.5"'),
        (read.whole_of, "٤", "expected a whole number"),
        (read.whole_of, "9" * 5000, "expected a whole number"),
        (read.amount_of, "-1", "expected a whole number from 0 to 2147483647"),
        (read.amount_of, "2147483648", "expected a whole number from 0 to 2147483647"),
        (read.number_of, "nan", "expected a number"),
        (read.number_of, "1e9", "expected a number"),
        (read.seconds_of, "soon", "expected a duration"),
        (read.one_of(NodeLockMode), "NEVER", 'expected auto or always or never, found "NEVER"'),
        (read.words_of(("binpack",), several=False), "binpck", 'unknown policy "binpck"; did you mean "binpack"?'),
        (read.words_of(("a", "b"), several=False), "a,b", 'unknown policy "a,b"'),
        (read.resource_of, "gpu", "has no domain in front"),
        (read.dns_name_of, "", "expected a name"),
        (read.dns_name_of, "A", "expected a name"),
        (read.dns_name_of, "a" * 254, "expected a name"),
        (read.address_of, "", "expected HOST:PORT, :PORT or none"),
        (read.address_of, "9395", "expected HOST:PORT"),
        (read.address_of, ":http", "expected HOST:PORT"),
        (read.address_of, ":65536", "expected HOST:PORT"),
        (read.address_of, ":-1", "expected HOST:PORT"),
        (read.address_of, "::1:80", "expected HOST:PORT"),
        (read.address_of, "a b:80", "expected HOST:PORT"),
        (read.some_address_of, "none", 'expected HOST:PORT or :PORT, found "none"'),
        (read.labels_of, "gpu", 'expected labels such as gpu=on,zone=a, found "gpu"'),
        (read.labels_of, "=on", "expected labels"),
        (read.labels_of, "gpu=on,", "expected labels"),
        (read.labels_of, "A B=c", "expected labels"),
        (read.labels_of, "UP/a=c", "expected labels"),
        (read.labels_of, "a=-c", "expected labels"),
        (read.labels_of, "gpu=on,gpu=off", '"gpu" is given twice'),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400
