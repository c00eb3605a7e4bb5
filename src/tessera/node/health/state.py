"""Whether one card may be used: a pure state machine that lets a card come back, but never in a hurry.

    healthy --fault--> unhealthy --good probe--> recovering --GOOD_PROBES, and quiet for long enough--> healthy
                           ^                         |
                           +---------fault-----------+

Quiet means no fault. Every relapse of a card that had come back doubles the quiet, up to QUIET_MOST_S; one that stayed
healthy for FORGIVEN_S starts afresh. Nothing else brings a card back, whatever the fault was. Time is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GOOD_PROBES = 3
"""in a row, before a card is trusted again"""
QUIET_S = 60.0
QUIET_MOST_S = 1800.0
FORGIVEN_S = 6 * 3600.0
"""of health, after which earlier spells do not count any more"""
UNKNOWN = "unknown fault"

_DOUBLINGS = 16
"""beyond this every quiet is the longest one"""


@dataclass(frozen=True, slots=True)
class Health:
    """Of one card. Moments are seconds of a clock that only goes forward."""

    problem: str = ""
    """why it takes no new work; empty = healthy"""
    faults: int = 0
    """all there ever were"""
    spells: int = 0
    """times that it fell from health and was not forgiven"""
    good_probes: int = 0
    """since the last fault"""
    changed_at: float = 0.0
    """when it had its last fault or became healthy, whichever was later"""

    @property
    def healthy(self) -> bool:
        return not self.problem

    @property
    def quiet_s(self) -> float:
        """How long it has to be without a fault before it comes back."""
        return min(QUIET_MOST_S, QUIET_S * 2.0 ** min(max(self.spells - 1, 0), _DOUBLINGS))


def after_fault(health: Health, problem: str, *, now: float) -> Health:
    """`problem` says what went wrong. With no good probe in between the first one stays: it is the cause."""
    spells = health.spells
    if health.healthy:
        spells = 1 if now - health.changed_at >= FORGIVEN_S else spells + 1
    follows = not health.healthy and not health.good_probes
    return Health(
        problem=health.problem if follows else problem or UNKNOWN,
        faults=health.faults + 1,
        spells=spells,
        changed_at=now,
    )


def after_good_probe(health: Health, *, now: float) -> Health:
    """The card was read, and its events can be heard."""
    if health.healthy:
        return health
    good = health.good_probes + 1
    if good >= GOOD_PROBES and now - health.changed_at >= health.quiet_s:
        return Health(faults=health.faults, spells=health.spells, changed_at=now)
    return replace(health, good_probes=min(good, GOOD_PROBES))
