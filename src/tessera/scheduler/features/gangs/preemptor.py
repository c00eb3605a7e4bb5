"""Evicts pods of lower priority for a gang that does not fit: victims for all of its members, or none.

    a complete gang does not fit --> search (in slices) --> all are nominated --> all victims evicted --> they leave,
              ^                                                   |                  and the gang is planned
              '--------- a victim stays: all is renounced --------'

A gang preempts if all required members exist and kube-scheduler has asked for them, none is gated, and all may preempt;
the lowest of their priorities counts. Nothing changes until the whole set is found, and nothing is evicted before all
members are nominated (`nominations`). If one eviction fails, nothing further is evicted.
`features/preemption/preemptor` is for single pods.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.core.preemption import Preemption, VictimSet
from tessera.scheduler.evictor import Evictor
from tessera.scheduler.features.gangs.gang import Gang, GangNomination, GangState, MemberState
from tessera.scheduler.features.gangs.holds import GangHolds
from tessera.scheduler.features.gangs.nominations import GangNominations
from tessera.scheduler.features.gangs.registry import GangRegistry
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.preemption_loop import (
    AGAIN_S,
    ATTEMPTS,
    NOT_DECIDING,
    SEARCH_PAUSE,
    PreemptionLoop,
    finish_in_slices,
)
from tessera.scheduler.settings import Settings

SLICE_S = 0.005
"""of a search between two pauses"""


class GangPreemptor(PreemptionLoop[Gang, VictimSet]):
    """Works for the gangs of one scheduler."""

    def __init__(
        self,
        registry: GangRegistry,
        holds: GangHolds,
        nominations: GangNominations,
        cycles: PodCycles,
        *,
        preemption: Preemption,
        evictor: Evictor,
        settings: Settings,
        is_ready: Callable[[], bool],
    ) -> None:
        super().__init__(registry.short, cycles.clock, settings=settings, is_ready=is_ready)
        self._registry = registry
        self._holds = holds
        self._nominations = nominations
        self._cycles = cycles
        self._preemption = preemption
        self._book = evictor.book
        self._evictor = evictor

    # -- over time

    def preemptors(self) -> list[Gang]:
        found = [
            (-priority, gang.wait.since, gang.name, gang)
            for gang in self._registry
            if gang.preemption.is_due and (priority := gang_priority(gang)) is not None
        ]
        return [gang for *_, gang in sorted(found, key=lambda item: item[:3])]

    def _wait_of(self, gang: Gang) -> float:
        now, mine = self._clock.monotonic(), gang.preemption
        if mine.refused_at is None:
            mine.refused_at = now
        due = mine.refused_at + self._settings.preemption_delay_s
        return max(due, mine.search_at, gang.wait.not_before) - now

    def _look_again(self, gang: Gang) -> None:
        gang.preemption.is_due = True

    # -- one gang

    async def _nominate(self, gang: Gang) -> VictimSet | None:
        gang.preemption.is_due = False
        ledger, clock = self._cycles.ledger, self._clock
        for _ in range(ATTEMPTS):
            priority = gang_priority(gang)
            if priority is None or not self._is_ready():
                return None
            accounts = self._holds.accounts
            if not accounts.pays_for(gang.namespace):
                gang.preemption.search_at = accounts.pays_again_at(gang.namespace, 0.0)
                break
            demand = self._holds.demand(gang, priority=priority)
            self._book.forget_overdue()
            state = ledger.version, self._book.revision, demand
            if state == gang.preemption.searched:
                return None
            began, position = clock.monotonic(), ledger.arrays.now
            found = await finish_in_slices(self._preemption.search(demand), seconds=SLICE_S)
            seconds = clock.monotonic() - began
            if gang_priority(gang) != priority or not self._is_ready():
                return None
            if found is None:
                gang.preemption.searched = state
                gang.preemption.search_at = clock.monotonic() + AGAIN_S + SEARCH_PAUSE * seconds
                self._nominations.report_none(gang, seconds)
                return None
            if not found.victims and not found.leaving:
                # It fits as it is. If its plan says otherwise, neither is made again at once.
                gang.preemption.search_at = clock.monotonic() + AGAIN_S + SEARCH_PAUSE * seconds
                self._cycles.unschedulable.on_room()
                return None
            # The search may have paused, and nodes may have changed since.
            is_settled = not self._has_changed(found, position)
            if is_settled and await self._nominations.nominate(
                gang, found, priority=priority, seconds=self._settings.nomination_s, searched=seconds
            ):
                self._before_evict()
                return found
        gang.preemption.search_at = max(gang.preemption.search_at, clock.monotonic() + AGAIN_S)
        gang.preemption.is_due = True
        self._set_timer(AGAIN_S)
        return None

    def _has_changed(self, found: VictimSet, position: int) -> bool:
        """Whether a node of the victims is not as it was: then perhaps not all of them have to leave."""
        ledger = self._cycles.ledger
        rows = ledger.arrays.changed_since(position)
        if rows is None:
            return True
        changed = {ledger.arrays.names[row] for row in rows}
        entries = (ledger.pod(uid) for uid in found.victims)
        return any(entry is None or entry.facts.node in changed for entry in entries)

    async def _evict(self, gang: Gang, found: VictimSet) -> bool:
        nomination = gang.preemption.nomination
        members = [member.request for member in gang.members.pending()]
        if not members:
            return True  # They are gone, and so are the nominations.
        least = min(members, key=lambda request: request.preempts_below or 0)
        problem = await self._evictor.evict(
            self._book.traits_of(found.victims),
            preemptor=least,
            gang=gang.name,
            obstacle=lambda _: self._obstacle(gang, nomination),
        )
        if problem and gang.preemption.nomination is nomination:
            self._nominations.renounce(gang, problem)
        if problem:
            return False
        if gang.preemption.nomination is nomination:
            self._nominations.show(gang)
        self._cycles.unschedulable.on_room()  # The victims may be gone already.
        return True

    def _obstacle(self, gang: Gang, nomination: GangNomination | None) -> str:
        """Why a victim must not be evicted any more; empty if it may."""
        if not self._is_ready():
            return NOT_DECIDING
        if gang.preemption.nomination is not nomination or gang.state is not GangState.NOMINATED:
            return f"gang {gang.name} is not nominated any more"
        return ""


def gang_priority(gang: Gang) -> int | None:
    """Pods of lower priority may be evicted for the gang; None: none may now."""
    pending = gang.members.pending()
    if gang.state is not GangState.WAITING or gang.fitting is None or gang.members.count(MemberState.GATED):
        return None
    if not pending or sum(member.is_refused for member in pending) < gang.required:
        return None
    priorities = [member.request.preempts_below for member in pending]
    return None if None in priorities else min(priority for priority in priorities if priority is not None)
