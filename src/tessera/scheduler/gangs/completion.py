"""Gangs that are bound in part, or as a whole, as the API shows it.

The API is the memory: a process that finds a gang bound in part makes holds for the rest before it decides about
anything else.
"""

from __future__ import annotations

from collections.abc import Generator

from tessera.core.gangs import GangMisfit
from tessera.scheduler.gangs.barrier import HELD_SECONDS, GangBarrier
from tessera.scheduler.gangs.gang import Gang, GangState, MemberState
from tessera.scheduler.gangs.holds import PLAN_AGAIN, GangHolds
from tessera.scheduler.gangs.nominations import GangNominations
from tessera.scheduler.gangs.reports import GangReports
from tessera.scheduler.gangs.turns import GangTurns
from tessera.scheduler.pod_cycle import CycleState, PodCycles

WAITING, NOMINATED, PLANNED = GangState.WAITING, GangState.NOMINATED, GangState.PLANNED
COMPLETING, WHOLE = GangState.COMPLETING, GangState.WHOLE
IN_WRITING = (CycleState.BINDING, CycleState.UNCERTAIN, CycleState.BOUND, CycleState.HANDING_OVER)


class GangCompletion:
    """Of all gangs."""

    def __init__(
        self,
        holds: GangHolds,
        cycles: PodCycles,
        nominations: GangNominations,
        *,
        barrier: GangBarrier,
        turns: GangTurns,
        reports: GangReports,
    ) -> None:
        self._holds = holds
        self._cycles = cycles
        self._nominations = nominations
        self._barrier = barrier
        self._turns = turns
        self._reports = reports

    def is_begun(self, gang: Gang) -> bool:
        """Whether a member is bound, or may be."""
        if gang.released or gang.count(MemberState.BOUND):
            return True
        cycles = (self._cycles.get(uid) for uid in gang.members)
        return any(cycle is not None and cycle.state in IN_WRITING for cycle in cycles)

    def needs_holds(self, gang: Gang) -> bool:
        """Whether a gang that is bound in part has members without a place."""
        return gang.state in (WAITING, COMPLETING) and self.is_begun(gang) and bool(self._holds.unplaced(gang))

    def begin(self, gang: Gang) -> Generator[None, None, None]:
        """WAITING -> COMPLETING: hold what is missing, as much of it as there is room for, in slices.

        The state changes last: a member that is asked for in a pause waits for its hold.
        """
        before = gang.state, self._cycles.term
        self._turns.end(gang)
        self._holds.release(gang)
        answer = None
        for _ in range(PLAN_AGAIN):
            if answer is None and self._holds.unplaced(gang):
                answer = yield from self._holds.plan(gang, None, missing=0)
            if (gang.state, self._cycles.term) != before:
                return  # Something else has happened to it in a pause.
        if isinstance(answer, GangMisfit):
            self._holds.hold(gang, answer.places)
        gang.state, gang.deadline = COMPLETING, self._cycles.clock.monotonic() + HELD_SECONDS
        bound = gang.count(MemberState.BOUND)
        self._reports.tell(gang, f"{bound} of {gang.required} members are bound; the rest goes first")

    def look_again(self, gang: Gang) -> None:
        """Bring the state to what the API shows."""
        bound = gang.count(MemberState.BOUND)
        if gang.state is NOMINATED and (bound or gang.present() < gang.required):
            self._nominations.renounce(gang, "its members are others now")
        if bound and bound + gang.count(MemberState.DONE) >= gang.group.minimum and gang.group.is_sized:
            if gang.state is not WHOLE:
                gang.state = WHOLE
                gang.end_waits("")
                self._reports.tell_whole(gang, f"{bound} members are bound")
        elif gang.state in (COMPLETING, WHOLE) and not self.is_begun(gang):
            self._holds.give_up(gang)
            gang.state, gang.since, gang.tried = WAITING, self._cycles.clock.monotonic(), None
        elif gang.state is PLANNED:
            if bound:
                # Another scheduler, or a write of an earlier process: what is left must follow.
                self._barrier.open(gang)
            else:
                self._barrier.open_if_complete(gang)
