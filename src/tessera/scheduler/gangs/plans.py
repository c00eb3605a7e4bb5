"""The life of a plan, from the holds for all members to its end in time.

    begun      every member has a hold; it ends if no member comes for `--gang-timeout`, and some time later anyway
    given up   everything is released, and binds that wait fail; the next plan follows after a pause that grows

If members did not come, the next plan waits until kube-scheduler has asked for all of them, and so do the plans of all
gangs of the namespace for a while: otherwise one pod, created again and again, could hold the whole cluster.
"""

from __future__ import annotations

from tessera.core.misfits import Misfit
from tessera.scheduler.clock import Clock
from tessera.scheduler.gangs.gang import Gang, GangState
from tessera.scheduler.gangs.holds import GangHolds
from tessera.scheduler.gangs.reports import GangReports
from tessera.scheduler.gangs.turns import GangTurns
from tessera.scheduler.settings import Settings

LONGEST_PLAN = 6
"""times `--gang-timeout`: a plan whose members come one by one, each in time, ends nevertheless"""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""seconds between two plans of a gang whose last plan was given up; doubled each time"""
DISTRUST_SECONDS = 600.0
"""for which nothing is held for members of a namespace that do not exist, after some of them did not come"""


class GangPlans:
    """Of all gangs."""

    def __init__(
        self, holds: GangHolds, turns: GangTurns, clock: Clock, *, settings: Settings, reports: GangReports
    ) -> None:
        self._holds = holds
        self._turns = turns
        self._clock = clock
        self._settings = settings
        self._reports = reports
        self._distrusted: dict[str, float] = {}
        """namespace -> until when nothing is held for members that do not exist"""

    def begin(self, gang: Gang) -> None:
        """WAITING, NOMINATED -> PLANNED: every member has its hold."""
        now = self._clock.monotonic()
        gang.state, gang.tried, gang.misfit, gang.replans = GangState.PLANNED, None, None, 0
        gang.deadline, gang.ends = now + self._settings.gang_seconds, now + LONGEST_PLAN * self._settings.gang_seconds
        gang.refused_at = None
        self._turns.end(gang)
        self._reports.tell(gang, f"a place for each of {gang.free_holds} members is held")

    def extend(self, gang: Gang) -> None:
        """The plan has made progress."""
        gang.deadline = self._clock.monotonic() + self._settings.gang_seconds

    def give_up(self, gang: Gang, why: str, *, pause: bool = True) -> Misfit:
        """PLANNED -> WAITING: release everything; no bind that waits is written."""
        self._holds.give_up(gang)
        gang.state, gang.tried = GangState.WAITING, None
        if pause:
            gang.not_before = self._clock.monotonic() + min(FIRST_PAUSE * 2**gang.failures, LONGEST_PAUSE)
            gang.failures += 1
        misfit = self._reports.tell_given_up(gang, f"the plan was given up: {why}")
        gang.end_waits(misfit.text)
        return misfit

    def end_if_overdue(self, gang: Gang) -> None:
        """The plan, or what is held for the rest of a gang that is bound in part."""
        now = self._clock.monotonic()
        if gang.state is GangState.PLANNED and now >= min(gang.deadline, gang.ends):
            gang.must_ask = True
            if gang.present() < gang.required:
                self.distrust(gang)
            self.give_up(gang, f"{gang.progress} in time")
        elif gang.state in (GangState.COMPLETING, GangState.WHOLE) and gang.holds and now >= gang.deadline:
            self._holds.release(gang)

    def distrust(self, gang: Gang) -> None:
        """Places were held for members that did not come."""
        self._distrusted[gang.namespace] = self._clock.monotonic() + DISTRUST_SECONDS

    def must_ask(self, gang: Gang) -> bool:
        """Whether kube-scheduler must have asked for all members before the next plan."""
        return gang.must_ask or self._clock.monotonic() < self._distrusted.get(gang.namespace, 0.0)

    def tick(self) -> None:
        now = self._clock.monotonic()
        self._distrusted = {name: until for name, until in self._distrusted.items() if until > now}
