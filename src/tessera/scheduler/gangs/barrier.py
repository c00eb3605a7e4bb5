"""The bind barrier: binds of members wait until every required member has come, then all are written together."""

from __future__ import annotations

import asyncio

from tessera.scheduler.gangs.gang import Gang, GangState, MemberState
from tessera.scheduler.gangs.holds import GangHolds
from tessera.scheduler.gangs.plans import GangPlans
from tessera.scheduler.gangs.registry import GangRegistry
from tessera.scheduler.gangs.reports import GangReports
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.settings import Settings

HELD_SECONDS = 300.0
"""for which the rest of a gang that is bound in part has its holds, as long as a pod's reservation lasts"""


class GangBarrier:
    """Of all gangs."""

    def __init__(
        self,
        registry: GangRegistry,
        holds: GangHolds,
        cycles: PodCycles,
        plans: GangPlans,
        *,
        settings: Settings,
        reports: GangReports,
    ) -> None:
        self._registry = registry
        self._holds = holds
        self._cycles = cycles
        self._plans = plans
        self._settings = settings
        self._reports = reports

    async def enter(self, uid: str) -> str:
        """Wait until all required members have come to bind; empty, or why they have not.

        Then nothing of the pod is reserved any more, unless the plan goes on and only this bind has waited too long.
        """
        gang = self._registry.of(uid)
        if gang is None or gang.state in (GangState.COMPLETING, GangState.WHOLE):
            return ""
        if gang.state is not GangState.PLANNED:
            self._drop_reservation(uid)
            return f"gang {gang.name} is not planned"
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        gang.waiting_binds[uid] = turn
        self._plans.extend(gang)
        self.open_if_complete(gang)
        ends = self._now() + self._settings.turn_seconds
        try:
            while not turn.done():
                now = self._now()
                if now >= min(gang.deadline, gang.ends):
                    self._plans.end_if_overdue(gang)
                elif now >= ends:
                    self._holds.take_back(gang, uid)
                    return f"gang {gang.name}: {gang.progress}"
                else:
                    await asyncio.wait([turn], timeout=min(gang.deadline, gang.ends, ends) - now)
            return turn.result()
        finally:
            if gang.waiting_binds.get(uid) is turn:
                del gang.waiting_binds[uid]

    def leave(self, uid: str) -> None:
        """The bind has ended."""
        gang = self._registry.of(uid)
        if gang is not None:
            gang.released.discard(uid)

    def open_if_complete(self, gang: Gang) -> None:
        """PLANNED -> COMPLETING: every required member has come, and nothing known can make one fail."""
        if gang.state is not GangState.PLANNED or self._come(gang) < gang.required:
            return
        for uid in list(gang.waiting_binds):
            cycle = self._cycles.get(uid)
            can_be_bound = (
                cycle is not None and cycle.state is CycleState.RESERVED and self._cycles.may_be_written(cycle)
            )
            placement = cycle.placement if cycle is not None else None
            if not can_be_bound or placement is None or not self._cycles.has_cards(placement):
                self._drop_reservation(uid)
                gang.end_wait(uid, "its node lost its devices")
        if self._come(gang) < gang.required:
            return
        gang.failures, gang.must_ask = 0, False
        gang.released.update(gang.waiting_binds)
        came = len(gang.waiting_binds)
        self.open(gang)
        self._reports.tell(gang, f"all of {came} members have come: they are bound")

    def open(self, gang: Gang) -> None:
        """PLANNED -> COMPLETING: no bind waits any more."""
        gang.state, gang.deadline = GangState.COMPLETING, self._now() + HELD_SECONDS
        gang.end_waits("")

    def _come(self, gang: Gang) -> int:
        return len(gang.waiting_binds) + gang.count(MemberState.BOUND)

    def _now(self) -> float:
        return self._cycles.clock.monotonic()

    def _drop_reservation(self, uid: str) -> None:
        cycle = self._cycles.get(uid)
        if cycle is not None and cycle.state is CycleState.RESERVED:
            self._cycles.give_up(cycle)
