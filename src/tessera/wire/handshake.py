"""Handshake values on nodes: the scheduler asks with `Requesting_<time>`, a plugin answers with `Reported …`.

Decoding never fails: an unknown value is `Other`, an unreadable time is None. Times on the wire are in the writer's
local zone, so callers pass a zone. What a state means for a node is not decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, tzinfo

_REQUESTING = "Requesting"
_REPORTED = "Reported"
_DELETED = "Deleted"
_TIME = re.compile(r"([12][0-9]{3})([-.])([0-9]{2})\2([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?")
"""dashes since HAMi v2.5, dots in v2.4; years near the ends of the calendar are refused, since adding could overflow"""


@dataclass(frozen=True, slots=True)
class Absent:
    """No handshake on the node."""


@dataclass(frozen=True, slots=True)
class Requesting:
    """The scheduler asked, and no plugin has answered since."""

    time: datetime | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A plugin asks for its registration to be read again."""

    text: str
    """free text after the word, normally a time"""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A scheduler up to v2.9 gave the node up."""

    time: datetime | None


@dataclass(frozen=True, slots=True)
class Other:
    """Any other value; HAMi treats it like a report."""

    text: str


Handshake = Absent | Requesting | Reported | Deleted | Other


def decode_handshake(text: str | None, *, zone: tzinfo) -> Handshake:
    """Decode a handshake annotation; None means that it is missing. HAMi finds its keywords anywhere in the text."""
    if text is None:
        return Absent()
    if _REQUESTING in text:
        return Requesting(_time_after_word(text, zone))
    if _DELETED in text:
        return Deleted(_time_after_word(text, zone))
    if text.startswith(_REPORTED):
        return Reported(text.removeprefix(_REPORTED).strip())
    return Other(text)


def encode_requesting(now: datetime, *, zone: tzinfo) -> str:
    return f"{_REQUESTING}_{_local(now, zone)}"


def encode_reported(now: datetime, *, zone: tzinfo) -> str:
    return f"{_REPORTED} {_local(now, zone)}"


def _local(now: datetime, zone: tzinfo) -> str:
    return now.astimezone(zone).replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")


def _time_after_word(text: str, zone: tzinfo) -> datetime | None:
    found = _TIME.fullmatch(text.partition("_")[2])
    if found is None:
        return None
    year, _, month, day, hour, minute, second = found.groups()
    try:
        return datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=zone)
    except ValueError:
        return None
