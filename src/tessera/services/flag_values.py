"""What may be written behind a flag: one function a kind of value.

Each takes the text and returns the value, or raises ValueError with what was expected and what was found; the caller
puts the flag's name in front. Nothing here knows which flag it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TypeVar

from tessera.services.addresses import Address
from tessera.services.durations import parse_duration
from tessera.wire.device_config import resource_name_problem
from tessera.wire.expectations import nearest
from tessera.wire.gobool import parse_bool
from tessera.wire.integers import INT32_MAX
from tessera.wire.quotes import quoted

E = TypeVar("E", bound=Enum)

NONE = "none"
"""switches a listener off"""
MAX_PORT = 65535

_WHOLE = re.compile(r"[+-]?[0-9]{1,10}\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12})\Z", re.ASCII)

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\Z", re.ASCII)
_MAX_DNS_NAME = 253
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z", re.ASCII)
_MAX_LABEL = 63
_HOST = re.compile(r"[A-Za-z0-9_.:%-]*\Z", re.ASCII)


def text_of(text: str) -> str:
    return text


def some_text(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a text, found nothing")
    if not text.isprintable():
        raise ValueError(f"expected a text without control characters, found {quoted(text)}")
    return text


def directory_of(text: str) -> str:
    """An absolute path inside containers."""
    if not text.startswith("/") or not text.isprintable():
        raise ValueError(f"expected a path that starts with /, found {quoted(text)}")
    return text


def switch_of(text: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise ValueError(f"expected true or false, found {quoted(text)}")
    return value


def whole_of(text: str) -> int:
    if not _WHOLE.match(text):
        raise ValueError(f"expected a whole number, found {quoted(text)}")
    return int(text)


def amount_of(text: str) -> int:
    if not _WHOLE.match(text) or not 0 <= int(text) <= INT32_MAX:
        raise ValueError(f"expected a whole number from 0 to {INT32_MAX}, found {quoted(text)}")
    return int(text)


def number_of(text: str) -> float:
    if not _NUMBER.match(text):
        raise ValueError(f"expected a number, found {quoted(text)}")
    return float(text)


def seconds_of(text: str) -> float:
    """A number of seconds, as HAMi has it, or a duration."""
    return number_of(text) if _NUMBER.match(text) else parse_duration(text)


def one_of(kind: type[E]) -> Callable[[str], E]:
    """A reader for the values of an enum."""
    members = {str(member.value): member for member in kind}

    def read(text: str) -> E:
        if text not in members:
            raise ValueError(f"expected {' or '.join(members)}, found {quoted(text)}")
        return members[text]

    return read


def words_of(known: Collection[str], *, several: bool) -> Callable[[str], str]:
    """A reader for one known word, or for a comma list of them; the text itself is the value."""

    def read(text: str) -> str:
        for word in text.split(",") if several else [text]:
            if word.strip() not in known:
                hint = nearest(word.strip(), [name for name in known if name], what="policies")
                raise ValueError(f"unknown policy {quoted(word.strip())}{hint}")
        return text

    return read


def resource_of(text: str) -> str:
    problem = resource_name_problem(text)
    if problem:
        raise ValueError(problem)
    return text


def dns_name_of(text: str) -> str:
    if len(text) > _MAX_DNS_NAME or not _DNS_NAME.match(text):
        raise ValueError(f"expected a name of lower-case letters, digits, - and ., found {quoted(text)}")
    return text


def address_of(text: str) -> Address | None:
    """HOST:PORT or :PORT; IPv6 hosts in brackets; None where the listener is switched off."""
    if text == NONE:
        return None
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    good_host = _HOST.match(host) and (bracketed or ":" not in host)
    if not colon or not good_host or not _WHOLE.match(port) or not 0 <= int(port) <= MAX_PORT:
        raise ValueError(f"expected HOST:PORT, :PORT or {NONE}, found {quoted(text)}")
    return Address(host, int(port))


def some_address_of(text: str) -> Address:
    """An address for a listener that cannot be switched off."""
    address = address_of(text)
    if address is None:
        raise ValueError(f"expected HOST:PORT or :PORT, found {quoted(text)}")
    return address


def labels_of(text: str) -> Mapping[str, str]:
    """KEY=VALUE,KEY=VALUE; empty = none."""
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
