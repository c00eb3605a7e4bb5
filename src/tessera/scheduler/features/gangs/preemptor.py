"""Gangs that were refused and may preempt: victims for all members, or none.

    a complete gang does not fit --> search --> all members are nominated --> all victims evicted --> they leave,
              ^                                           |                            and the gang is planned
              '------ a victim stays: all is renounced ---'

A gang preempts if all required members exist and kube-scheduler has asked for them, none is gated, and all may preempt;
the lowest of their priorities counts. Nothing changes until the whole set is found, and nothing is evicted before all
members are nominated (`nominations`).
"""

from __future__ import annotations

from tessera.core.model.requests import PodRequest
from tessera.core.search.preemption import Demand, VictimSet
from tessera.scheduler.eviction.preemption_loop import AGAIN_S, Nominated, Preemptor
from tessera.scheduler.features.gangs.gang import Gang, GangState, MemberState
from tessera.scheduler.features.gangs.holds import GangHolds
from tessera.scheduler.features.gangs.nominations import GangNominations
from tessera.scheduler.framework import Pipeline


class GangPreemptor(Preemptor):
    """One gang, as it is looked at once."""

    def __init__(
        self, gang: Gang, priority: int, holds: GangHolds, nominations: GangNominations, pipeline: Pipeline
    ) -> None:
        mine = gang.preemption
        if mine.refused_at is None:
            mine.refused_at = pipeline.clock.monotonic()
        super().__init__(f"gang {gang.name}", priority, mine.refused_at)
        self._gang = gang
        self._holds = holds
        self._nominations = nominations
        self._pipeline = pipeline
        self._ledger = pipeline.cycles.ledger
        self._state: object = None
        """what the search depends on"""
        self._position = 0
        """of the arrays, when the search began"""

    @property
    def is_due(self) -> bool:
        return self._gang.preemption.is_due

    @is_due.setter
    def is_due(self, value: bool) -> None:
        self._gang.preemption.is_due = value

    def due_at(self) -> float:
        mine = self._gang.preemption
        due = self.refused_at + self._pipeline.settings.preemption_delay_s
        return max(due, mine.search_at, self._gang.wait.not_before)

    def postpone(self, until: float) -> None:
        self._gang.preemption.search_at = until

    def demand(self) -> Demand | None:
        gang, accounts, priority = self._gang, self._holds.accounts, gang_priority(self._gang)
        if priority is None:
            return None
        self.priority = priority
        if not accounts.pays_for(gang.namespace):
            again = self._pipeline.clock.monotonic() + AGAIN_S
            self.postpone(max(again, accounts.pays_again_at(gang.namespace, 0.0)))
            self.is_due = True
            return None
        demand = self._holds.demand(gang, priority=self.priority)
        self._state = self._ledger.version, self._pipeline.evictor.book.revision, demand
        self._position = self._ledger.arrays.now
        return None if self._state == gang.preemption.searched else demand

    def is_waiting(self, demand: Demand) -> bool:
        return gang_priority(self._gang) == demand.priority

    def on_no_victims(self, seconds: float) -> None:
        self._gang.preemption.searched = self._state
        self._nominations.report_none(self._gang, seconds)

    async def nominate(self, found: VictimSet, seconds: float) -> Nominated | None:
        gang, changed = self._gang, self._changed_nodes()
        entries = [self._ledger.pod(uid) for uid in found.victims]
        if changed is None or any(entry is None or entry.facts.node in changed for entry in entries):
            return None  # Perhaps not all of them have to leave any more.
        is_done = await self._nominations.nominate(
            gang,
            found,
            changed=changed,
            priority=self.priority,
            seconds=self._pipeline.settings.nomination_s,
            searched=seconds,
        )
        return Nominated(gang.preemption.nomination, found.victims) if is_done else None

    def _changed_nodes(self) -> frozenset[str] | None:
        """Nodes that are not as they were when the search began; None if that is not known."""
        arrays = self._ledger.arrays
        rows = arrays.changed_since(self._position)
        return None if rows is None else frozenset(arrays.names[row] for row in rows)

    def is_nominated(self, nomination: object) -> bool:
        return self._gang.state is GangState.NOMINATED and self._gang.preemption.nomination is nomination

    def evicts_as(self) -> tuple[PodRequest, str] | None:
        members = [member.request for member in self._gang.members.pending()]
        if not members:
            return None  # They are gone, and so are the nominations.
        return min(members, key=lambda request: request.preempts_below or 0), self._gang.name

    def on_evicted(self) -> None:
        self._nominations.show(self._gang)

    def renounce(self, problem: str) -> None:
        self._nominations.renounce(self._gang, problem)


def gang_priority(gang: Gang) -> int | None:
    """Pods of lower priority may be evicted for the gang; None: none may now."""
    pending = gang.members.pending()
    if gang.state is not GangState.WAITING or gang.fitting is None or gang.members.count(MemberState.GATED):
        return None
    if not pending or sum(member.is_refused for member in pending) < gang.required:
        return None
    priorities = [member.request.preempts_below for member in pending]
    return None if None in priorities else min(priority for priority in priorities if priority is not None)
