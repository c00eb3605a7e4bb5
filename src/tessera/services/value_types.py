"""The types of settings: how a value is written behind a flag, read, and printed again.

A parser returns the value, or raises ValueError with what it expected and what it found; the caller adds the name of
the flag. Nothing here knows which setting it reads. Heavy modules are imported by the parsers that need them, so that
`--help` stays quick. Durations are written and read as Go does: 90s, 5m, 1h30m; seconds inside, text outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from tessera.wire.errors import quoted
from tessera.wire.golang import INT32_MAX, parse_bool

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
"""nanoseconds per unit; the micro sign and the Greek letter are both in use"""

_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_PARTS = re.compile(_PART)
_WHOLE_SECONDS = re.compile(rf"(?:{_PART})+\Z")
_BARE = re.compile(r"[0-9]+(\.[0-9]+)?\Z")

_MAX_TEXT = 64
"""characters; longer than any useful duration"""
_MAX_NANOSECONDS = 2**63 - 1
"""what Go can hold, some 292 years"""

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

NONE = "none"
"""switches a listener off"""
MAX_PORT = 65535
MIN_BYTES, MAX_BYTES = 2**20, 2**40

_WHOLE = re.compile(r"[+-]?[0-9]{1,10}\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12})\Z", re.ASCII)

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\Z", re.ASCII)
_MAX_DNS_NAME = 253
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z", re.ASCII)
_MAX_LABEL = 63
_HOST = re.compile(r"[A-Za-z0-9_.:%-]*\Z", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds; ValueError says what is expected. Negative durations have no use here and are refused."""
    if text == "0":
        return 0.0
    if len(text) > _MAX_TEXT or not _WHOLE_SECONDS.match(text):
        hint = f"; write {text}s" if len(text) <= _MAX_TEXT and _BARE.match(text) else ""
        raise ValueError(f"expected a duration such as 90s, 5m or 1h30m, found {quoted(text)}{hint}")
    nanoseconds = sum(float(number) * _UNITS[unit] for number, unit in _PARTS.findall(text))
    if nanoseconds > _MAX_NANOSECONDS:
        raise ValueError(f"expected at most 292 years, found {quoted(text)}")
    return nanoseconds / _UNITS["s"]


def parse_span(text: str) -> float:
    """Seconds, above 0."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"expected a duration above 0, found {quoted(text)}")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads as `seconds`, down to a microsecond."""
    microseconds = round(seconds * 10**6)
    whole, rest = divmod(microseconds, 10**6)
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    parts = [
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{left}{fraction}s" if left or rest or not whole else "",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port to listen on; an empty host means all interfaces."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class FlagKind(Enum):
    """How a flag is written."""

    TEXT = "text"
    """--flag VALUE or --flag=VALUE; the last one counts"""
    SWITCH = "switch"
    """--flag, --flag=true or --flag=false, as in Go"""
    LIST = "list"
    """may be repeated; the values are joined by commas"""
    SET = "set"
    """may be repeated; each value is parsed by itself"""


def show_plain(value: Any) -> Any:
    """A value as YAML can print it and a flag can read it."""
    match value:
        case None:
            return ""
        case Enum():
            return value.value
        case Path():
            return str(value)
        case frozenset():
            return sorted(value)
    return value


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """One type of value."""

    metavar: str
    parse: Callable[[str], T]
    show: Callable[[T], Any] = show_plain
    kind: FlagKind = FlagKind.TEXT


# -- parsers


def matching(pattern: re.Pattern[str], expected: str, make: Callable[[str], T]) -> Callable[[str], T]:
    """Reads a text of this form, and at most as long as a DNS name."""

    def parse(text: str) -> T:
        if len(text) > _MAX_DNS_NAME or not pattern.match(text):
            raise ValueError(f"expected {expected}, found {quoted(text)}")
        return make(text)

    return parse


def parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a text, found nothing")
    if not text.isprintable():
        raise ValueError(f"expected a text without control characters, found {quoted(text)}")
    return text


def parse_directory(text: str) -> str:
    """An absolute path inside containers."""
    if not text.startswith("/") or not text.isprintable():
        raise ValueError(f"expected a path that starts with /, found {quoted(text)}")
    return text


def parse_switch(text: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise ValueError(f"expected true or false, found {quoted(text)}")
    return value


parse_whole = matching(_WHOLE, "a whole number", int)
parse_number = matching(_NUMBER, "a number", float)
parse_dns_name = matching(_DNS_NAME, "a name of lower-case letters, digits, - and .", str)


def parse_between(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        if not _WHOLE.match(text) or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}, found {quoted(text)}")
        return int(text)

    return parse


def parse_bytes(text: str) -> int:
    """A number of bytes, at least 1 MiB, as Kubernetes writes it: 64Mi."""
    from tessera.wire.quantity import Whole, read

    found = read(text)
    if not isinstance(found, Whole) or not MIN_BYTES <= found.value <= MAX_BYTES:
        raise ValueError(f"expected a size from 1Mi to 1Ti, such as 64Mi, found {quoted(text)}")
    return found.value


def show_bytes(size: int) -> str:
    return next(
        (f"{size >> bits}{unit}" for bits, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")) if size % (1 << bits) == 0),
        str(size),
    )


def parse_seconds(text: str) -> float:
    """A number of seconds, as HAMi writes it, or a duration."""
    return parse_number(text) if _NUMBER.match(text) else parse_duration(text)


def parse_resource(text: str) -> str:
    from tessera.wire.device_config import resource_name_problem

    problem = resource_name_problem(text)
    if problem:
        raise ValueError(problem)
    return text


def parse_address(text: str) -> Address | None:
    """HOST:PORT or :PORT; IPv6 hosts in brackets; None switches the listener off."""
    if text == NONE:
        return None
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    good_host = _HOST.match(host) and (bracketed or ":" not in host)
    if not colon or not good_host or not _WHOLE.match(port) or not 0 <= int(port) <= MAX_PORT:
        raise ValueError(f"expected HOST:PORT, :PORT or {NONE}, found {quoted(text)}")
    return Address(host, int(port))


def parse_required_address(text: str) -> Address:
    """An address for a listener that cannot be switched off."""
    address = parse_address(text)
    if address is None:
        raise ValueError(f"expected HOST:PORT or :PORT, found {quoted(text)}")
    return address


def parse_labels(text: str) -> Mapping[str, str]:
    """KEY=VALUE,KEY=VALUE; an empty text is no label."""
    pairs = [part.strip() for part in text.split(",")] if text.strip() else []
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        prefix, slash, name = key.rpartition("/")
        good_key = _is_label(name) and (not slash or (len(prefix) <= _MAX_DNS_NAME and _DNS_NAME.match(prefix)))
        if not equals or not good_key or (value and not _is_label(value)):
            raise ValueError(f"expected labels such as gpu=on,zone=a, found {quoted(pair)}")
        if found.setdefault(key, value) != value:
            raise ValueError(f"{quoted(key)} is given twice, with different values")
    return found


def _is_label(text: str) -> bool:
    return len(text) <= _MAX_LABEL and bool(_LABEL.match(text))


# -- types


def choice(members: type[E]) -> ValueType[E]:
    """One value of an enum."""
    return one_of({str(member.value): member for member in members})


def one_of(known: Mapping[str, T]) -> ValueType[T]:
    """One of these values, by the words that stand for them."""

    def parse(text: str) -> T:
        if text not in known:
            raise ValueError(f"expected {' or '.join(known)}, found {quoted(text)}")
        return known[text]

    return ValueType("|".join(known), parse)


def optional(type: ValueType[T]) -> ValueType[T | None]:
    """The same, but an empty text is None."""
    return ValueType(type.metavar, lambda text: type.parse(text) if text else None, kind=type.kind)


SWITCH = ValueType("[BOOL]", parse_switch, kind=FlagKind.SWITCH)
ANY_SWITCH = ValueType("[BOOL]", str, kind=FlagKind.SWITCH)
"""of a flag that is ignored, so that its value does not matter"""
TEXT = ValueType("TEXT", str)
FILE = ValueType("FILE", str)
NAME = ValueType("NAME", str)
DNS_NAME = ValueType("NAME", parse_dns_name)
WHOLE = ValueType("NUMBER", parse_whole)
AMOUNT = ValueType("NUMBER", parse_between(0, INT32_MAX))
COUNT = ValueType("NUMBER", parse_between(1, INT32_MAX))
BYTES = ValueType("SIZE", parse_bytes, show_bytes)
SECONDS = ValueType("SECONDS", parse_seconds, format_duration)
DURATION = ValueType("DURATION", parse_duration, format_duration)
SPAN = ValueType("DURATION", parse_span, format_duration)
RESOURCE = ValueType("RESOURCE", parse_resource)
LABELS: ValueType[Mapping[str, str]] = ValueType(
    "KEY=VALUE,...",
    parse_labels,
    lambda labels: ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
    FlagKind.LIST,
)
ADDRESS: ValueType[Address | None] = ValueType("ADDRESS", parse_address, lambda address: str(address or NONE))
REQUIRED_ADDRESS = ValueType("ADDRESS", parse_required_address, str)
DIRECTORY = ValueType("DIRECTORY", lambda text: Path(parse_directory(text)))
ABSOLUTE_FILE = ValueType("FILE", DIRECTORY.parse)
