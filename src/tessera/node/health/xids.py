"""Which driver events make a card unhealthy: pure rules, and the two environment variables that change them.

An XID listed as fatal always counts, an ignored XID never does, and `all` in one list does not override the numbers in
the other. An uncorrectable memory error is treated like the XID that goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tessera.wire.golang import parse_integer

if TYPE_CHECKING:
    from tessera.host.cards import CardEvent

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"

HARMLESS = frozenset({13, 31, 43, 45, 68, 109})
"""faults of applications, not of the card"""
DOUBLE_BIT_ECC = 48

_EVERYTHING = frozenset({"all", "xids"})
_MEANINGS = {
    48: "uncorrectable memory error",
    63: "memory is being remapped",
    64: "memory could not be remapped",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the card's own processor does not answer",
    120: "fault of the card's own processor",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Which XIDs are fatal."""

    health_checks: bool = True
    ignored_xids: frozenset[int] = frozenset()
    """beyond those that say nothing about the card"""
    fatal_xids: frozenset[int] = frozenset()
    """win over ignored ones"""
    every_xid_is_fatal: bool = False
    every_xid_is_ignored: bool = False
    """except fatal ones"""
    unread: tuple[str, ...] = ()
    """invalid words of the lists"""

    def is_fatal(self, xid: int) -> bool:
        if not self.health_checks:
            return False
        if self.every_xid_is_fatal or xid in self.fatal_xids:
            return True
        return not (self.every_xid_is_ignored or xid in self.ignored_xids or xid in HARMLESS)

    def problem_in(self, event: CardEvent) -> str:
        """Returns why the card of this event becomes unhealthy; empty if it does not."""
        if event.xid is None:
            fatal = event.uncorrectable and self.is_fatal(DOUBLE_BIT_ECC)
            return _MEANINGS[DOUBLE_BIT_ECC] if fatal else ""
        if not self.is_fatal(event.xid):
            return ""
        where = "" if event.gpu_instance is None else f" in GPU instance {event.gpu_instance}"
        meaning = _MEANINGS.get(event.xid)
        return f"XID {event.xid}{where}" + (f": {meaning}" if meaning else "")


def read_rules(*, disable: str = "", enable: str = "") -> HealthRules:
    """Reads the values of DISABLE and ENABLE. A word that is neither a number nor `all` is ignored."""
    off, on = _read(disable), _read(enable)
    return HealthRules(
        health_checks=not off.all or on.all or bool(on.xids),
        ignored_xids=off.xids - on.xids,
        fatal_xids=on.xids,
        every_xid_is_fatal=on.all,
        every_xid_is_ignored=off.all and not on.all,
        unread=off.unread + on.unread,
    )


class _Listed(NamedTuple):
    """One of the comma lists."""

    all: bool
    xids: frozenset[int]
    unread: tuple[str, ...]


def _read(text: str) -> _Listed:
    words = [word for part in text.lower().split(",") if (word := part.strip())]
    others = [word for word in words if word not in _EVERYTHING]
    numbers = {word: parse_integer(word) for word in others}
    xids = {word: number for word, number in numbers.items() if number is not None and number >= 0}
    return _Listed(len(others) < len(words), frozenset(xids.values()), tuple(w for w in others if w not in xids))
