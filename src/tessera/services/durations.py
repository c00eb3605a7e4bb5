"""Durations as Go writes and reads them: 90s, 5m, 1h30m. Seconds inside, text outside."""

from __future__ import annotations

import re

from tessera.wire.quotes import quoted

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
"""nanoseconds per unit; the micro sign and the Greek letter are both in use"""

_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_PARTS = re.compile(_PART)
_WHOLE = re.compile(rf"(?:{_PART})+\Z")
_BARE = re.compile(r"[0-9]+(\.[0-9]+)?\Z")

_MAX_TEXT = 64
"""characters; longer than any useful duration"""
_MAX_NANOSECONDS = 2**63 - 1
"""what Go can hold, some 292 years"""


def parse_duration(text: str) -> float:
    """Seconds; ValueError says what is expected. Negative durations have no use here and are refused."""
    if text == "0":
        return 0.0
    if len(text) > _MAX_TEXT or not _WHOLE.match(text):
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
