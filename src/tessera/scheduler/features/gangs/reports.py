"""What the scheduler says about gangs: to their members, to the log and to observers, and how many came to what."""

from __future__ import annotations

import structlog

from tessera.core.gang_trial import Placed
from tessera.core.misfits import Misfit, Reason, node_misfit
from tessera.scheduler.features.gangs.gang import Gang
from tessera.scheduler.observer import GangEvent, PreemptionEvent, SchedulerObserver

log = structlog.get_logger(__name__)


class GangReports:
    """Tells observers what gangs wait for."""

    def __init__(self, observer: SchedulerObserver) -> None:
        self._observer = observer
        self.given_up = 0
        """plans that came to nothing"""
        self.bound = 0
        """gangs that became whole"""

    def tell(self, gang: Gang, text: str) -> None:
        log.info("gang", gang=gang.name, state=gang.state.value, text=text)
        self._observer.on_gang(GangEvent(gang.namespace, gang.group.name, gang.state.value, text, tuple(gang.members)))

    def tell_whole(self, gang: Gang, text: str) -> None:
        self.bound += 1
        self.tell(gang, text)

    def tell_given_up(self, gang: Gang, text: str) -> Misfit:
        self.given_up += 1
        return self.wait(gang, text)

    def wait(self, gang: Gang, reason: str, places: tuple[Placed, ...] | None = None) -> Misfit:
        """The answer to the members of a gang that waits for this reason, which is told once.

        `places`: for the members that fit, if it waits for room.
        """
        gang.places = places
        if gang.misfit is None or gang.reason != reason:
            gang.reason = reason
            gang.misfit = gang_misfit(f"gang {gang.name}: {reason}")
            self.tell(gang, reason)
        return gang.misfit

    def preemption(self, event: PreemptionEvent) -> None:
        self._observer.on_preemption(event)


def gang_misfit(text: str) -> Misfit:
    return node_misfit(Reason.GANG_WAITING, detail=text)
