from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tessera.scheduler.settings import DEVICE_POLICY, NODE_POLICY, NodeLockMode
from tessera.services import value_types as types
from tessera.services.value_types import Address, format_duration, parse_duration, parse_span


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
        (types.TEXT.parse, "", ""),
        (types.parse_text, "x", "x"),
        (types.parse_directory, "/usr/local", "/usr/local"),
        (types.parse_switch, "true", True),
        (types.parse_switch, "F", False),
        (types.parse_whole, "-3", -3),
        (types.AMOUNT.parse, "2147483647", 2**31 - 1),
        (types.parse_number, "2.5", 2.5),
        (types.parse_number, ".5", 0.5),
        (types.parse_number, "-1", -1.0),
        (types.parse_seconds, "30", 30.0),
        (types.parse_seconds, "1m", 60.0),
        (types.choice(NodeLockMode).parse, "never", NodeLockMode.NEVER),
        (DEVICE_POLICY.parse, "mutex, numa", "mutex, numa"),
        (types.parse_resource, "nvidia.com/gpu", "nvidia.com/gpu"),
        (types.parse_resource, "", ""),
        (types.parse_dns_name, "a-b.c", "a-b.c"),
        (types.parse_address, "none", None),
        (types.parse_address, ":9395", Address("", 9395)),
        (types.parse_address, "0.0.0.0:443", Address("0.0.0.0", 443)),
        (types.parse_address, "localhost:0", Address("localhost", 0)),
        (types.parse_address, "[::1]:8080", Address("::1", 8080)),
        (types.parse_required_address, ":1", Address("", 1)),
        (types.parse_labels, "", {}),
        (types.parse_labels, " ", {}),
        (types.parse_labels, "gpu=on, a.b/c=", {"gpu": "on", "a.b/c": ""}),
        (types.parse_labels, "gpu=on,gpu=on", {"gpu": "on"}),
    ],
)
def test_a_value_is_read(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (types.parse_text, " ", "expected a text, found nothing"),
        (types.parse_text, "a\nb", "without control characters"),
        (types.parse_text, "\udcff", "without control characters"),
        (types.parse_directory, "usr", 'expected a path that starts with /, found "usr"'),
        (types.parse_directory, "/a\nb", "expected a path"),
        (types.parse_switch, "", 'expected true or false, found ""'),
        (types.parse_switch, "yes", 'expected true or false, found "yes"'),
        (types.parse_whole, "4.5", 'expected a whole number, found "4.5"'),
        (types.parse_whole, "٤", "expected a whole number"),
        (types.parse_whole, "9" * 5000, "expected a whole number"),
        (types.AMOUNT.parse, "-1", "expected a whole number from 0 to 2147483647"),
        (types.AMOUNT.parse, "2147483648", "expected a whole number from 0 to 2147483647"),
        (types.parse_number, "nan", "expected a number"),
        (types.parse_number, "1e9", "expected a number"),
        (types.parse_seconds, "soon", "expected a duration"),
        (types.choice(NodeLockMode).parse, "NEVER", 'expected auto or always or never, found "NEVER"'),
        (NODE_POLICY.parse, "binpck", 'unknown policy "binpck"; did you mean "binpack"?'),
        (NODE_POLICY.parse, "binpack,spread", 'unknown policy "binpack,spread"'),
        (NODE_POLICY.parse, "mutex", 'unknown policy "mutex"'),
        (DEVICE_POLICY.parse, "spread,topology", 'unknown policy "topology"'),
        (types.parse_resource, "gpu", "has no domain in front"),
        (types.parse_dns_name, "", "expected a name"),
        (types.parse_dns_name, "A", "expected a name"),
        (types.parse_dns_name, "a" * 254, "expected a name"),
        (types.parse_address, "", "expected HOST:PORT, :PORT or none"),
        (types.parse_address, "9395", "expected HOST:PORT"),
        (types.parse_address, ":http", "expected HOST:PORT"),
        (types.parse_address, ":65536", "expected HOST:PORT"),
        (types.parse_address, ":-1", "expected HOST:PORT"),
        (types.parse_address, "::1:80", "expected HOST:PORT"),
        (types.parse_address, "a b:80", "expected HOST:PORT"),
        (types.parse_required_address, "none", 'expected HOST:PORT or :PORT, found "none"'),
        (types.parse_labels, "gpu", 'expected labels such as gpu=on,zone=a, found "gpu"'),
        (types.parse_labels, "=on", "expected labels"),
        (types.parse_labels, "gpu=on,", "expected labels"),
        (types.parse_labels, "A B=c", "expected labels"),
        (types.parse_labels, "UP/a=c", "expected labels"),
        (types.parse_labels, "a=-c", "expected labels"),
        (types.parse_labels, "gpu=on,gpu=off", '"gpu" is given twice'),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400
