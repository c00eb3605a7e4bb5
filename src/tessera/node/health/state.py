"""The health of one card: a pure state machine that lets a card recover, but slowly.

    healthy --fault--> unhealthy --good probe--> recovering --GOOD_PROBES, and quiet for long enough--> healthy
                           ^                         |
                           +---------fault-----------+

Quiet means no fault. Each relapse doubles the quiet period, up to QUIET_MOST_S; a card that stayed healthy for
FORGIVEN_S starts afresh. Nothing else makes a card healthy, whatever the fault was. The caller supplies the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GOOD_PROBES = 3
"""in a row, before a card is trusted again"""
QUIET_S = 60.0
QUIET_MOST_S = 1800.0
FORGIVEN_S = 6 * 3600.0
"""of health, after which earlier relapses do not count"""
UNKNOWN = "unknown fault"

_DOUBLINGS = 16
"""beyond this the quiet period is always the longest"""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one card. Times are in seconds of a monotonic clock."""

    problem: str = ""
    """why it takes no new work; empty if healthy"""
    faults: int = 0
    """all so far"""
    spells: int = 0
    """how often it became unhealthy and was not forgiven"""
    good_probes: int = 0
    """since the last fault"""
    changed_at: float = 0.0
    """time of the last fault or recovery"""

    @property
    def healthy(self) -> bool:
        return not self.problem

    @property
    def quiet_s(self) -> float:
        """How long it must be without a fault before it recovers."""
        return min(QUIET_MOST_S, QUIET_S * 2.0 ** min(max(self.spells - 1, 0), _DOUBLINGS))


def after_fault(health: Health, problem: str, *, now: float) -> Health:
    """Without a good probe in between, the first problem stays, because it is the cause."""
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
    """The card was read, and its events can be received."""
    if health.healthy:
        return health
    good = health.good_probes + 1
    if good >= GOOD_PROBES and now - health.changed_at >= health.quiet_s:
        return Health(faults=health.faults, spells=health.spells, changed_at=now)
    return replace(health, good_probes=min(good, GOOD_PROBES))
