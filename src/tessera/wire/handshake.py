"""Handshake values on nodes: the scheduler asks with `Requesting_<time>`, a plugin answers with `Reported …`.

Decoding never fails: an unreadable time is None. Times on the wire are in the writer's
local zone, so callers pass a zone. What a state means for a node is not decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, tzinfo

_REQUESTING = "Requesting"
_REPORTED = "Reported"
_TIME = re.compile(r"([12][0-9]{3}([-.])[0-9]{2}\2[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?")
"""dashes since HAMi v2.5, dots in v2.4; years near the ends of the calendar are refused, since adding could overflow"""


@dataclass(frozen=True, slots=True)
class Requesting:
    """The scheduler asked, and no plugin has answered since."""

    time: datetime | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A plugin asks for its registration to be read again."""


def decode_handshake(text: str | None, *, zone: tzinfo) -> Requesting | Reported | None:
    """Decode a handshake annotation; None if it is missing. HAMi finds its keyword anywhere in the text, and treats
    every other value like a report, as when a scheduler up to v2.9 gave the node up (`Deleted_<time>`)."""
    if text is None:
        return None
    return Requesting(_time_after_word(text, zone)) if _REQUESTING in text else Reported()


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
    try:
        return datetime.fromisoformat(f"{found[1].replace('.', '-')} {found[3]}").replace(tzinfo=zone)
    except ValueError:
        return None
