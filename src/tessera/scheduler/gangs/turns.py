"""Turns of starving gangs, so that small pods cannot starve a gang for ever.

The complete gang that has waited longest, and for longer than `--gang-starvation-timeout`, gets its turn: what becomes
free is held for it until all of it fits, or for at most `TURN_SECONDS`. One gang has the turn at a time;
after it, it is the last in line.
"""

from __future__ import annotations

import structlog

from tessera.scheduler.clock import Clock
from tessera.scheduler.gangs.gang import Gang, GangState
from tessera.scheduler.gangs.holds import GangHolds
from tessera.scheduler.gangs.registry import GangRegistry
from tessera.scheduler.settings import Settings

log = structlog.get_logger(__name__)

TURN_SECONDS = 600.0
"""that a turn lasts at most"""


class GangTurns:
    """Whose turn it is."""

    def __init__(self, registry: GangRegistry, holds: GangHolds, clock: Clock, settings: Settings) -> None:
        self._registry = registry
        self._holds = holds
        self._clock = clock
        self._settings = settings
        self.favoured: Gang | None = None
        """the gang whose turn it is"""
        self._ends = 0.0

    def has(self, gang: Gang) -> bool:
        return self.favoured is gang

    def give(self) -> None:
        """Give the turn to the complete gang that has starved longest, if no other has it."""
        starving, now = self._settings.gang_starving_seconds, self._clock.monotonic()
        if self.favoured is not None or not starving:
            return
        waiting = [
            gang
            for gang in self._registry
            if gang.state is GangState.WAITING
            and gang.group.is_sized
            and gang.present() >= gang.required
            and now >= max(gang.since + starving, gang.not_before)
        ]
        if waiting:
            self.favoured = min(waiting, key=lambda gang: (gang.since, gang.name))
            self.favoured.tried = None
            self._ends = now + TURN_SECONDS
            log.info("what becomes free is held for a starving gang", gang=self.favoured.name)

    def end(self, gang: Gang | None = None) -> None:
        """The gang needs its turn no more; None: no gang has one any more. What is held stays its own."""
        if gang is None or self.favoured is gang:
            self.favoured = None

    def end_overdue(self) -> None:
        now = self._clock.monotonic()
        if self.favoured is not None and now >= self._ends:
            log.info("turn of a starving gang ends", gang=self.favoured.name)
            self._holds.release(self.favoured)
            self.favoured.since, self.favoured = now, None
