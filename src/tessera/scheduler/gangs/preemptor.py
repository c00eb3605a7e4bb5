"""Evicts pods of lower priority for a gang that does not fit: victims for all of its members, or none.

    a complete gang does not fit --> search (in slices) --> all are nominated --> all victims evicted --> they leave,
              ^                                                   |                  and the gang is planned
              '--------- a victim stays: all is renounced --------'

A gang preempts if all required members exist and kube-scheduler has asked for them, none is gated, and all may preempt;
the lowest of their priorities counts. Nothing changes until the whole set is found, and nothing is evicted before all
members are nominated (`nominations`). If one eviction fails, nothing further is evicted. `scheduler/preemptor` is for
single pods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tessera.core import gang_preemption
from tessera.core.gang_demand import GangDemand
from tessera.core.gang_preemption import GangVictims
from tessera.core.preemption import Preemption
from tessera.core.victims import PodTraits
from tessera.scheduler.evictor import Evictor
from tessera.scheduler.gangs.coordinator import GangCoordinator
from tessera.scheduler.gangs.gang import Gang, GangState, Hold, MemberState
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.preemptor import AGAIN_SECONDS, ATTEMPTS, PreemptionSettings
from tessera.services.failpoints import Failpoint, failpoint

SLICE_SECONDS = 0.005
"""of a search between two pauses"""


class GangPreemptor:
    """Works for the gangs of one scheduler."""

    def __init__(
        self,
        gangs: GangCoordinator,
        preemption: Preemption,
        evictor: Evictor,
        api: KubeApi,
        *,
        settings: PreemptionSettings,
        is_ready: Callable[[], bool],
    ) -> None:
        """`is_ready`: whether this replica decides now, on complete lists."""
        self._gangs = gangs
        self._cycles: PodCycles = gangs.cycles
        self._preemption = preemption
        self._book = gangs.nominations.book
        self._evictor = evictor
        self._api = api
        self._settings = settings
        self._is_ready = is_ready
        self._timer: asyncio.TimerHandle | None = None
        """until the first gang is due that had to wait"""
        self._before_evict = failpoint(Failpoint.BEFORE_EVICT)

    # -- over time

    async def run(self) -> None:
        """For ever: look for victims for gangs that were refused."""
        if not self._settings.is_enabled:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gangs.nominations.nominated_nodes.run(self._api))
            while True:
                await self._serve(tasks)

    async def _serve(self, evictions: asyncio.TaskGroup) -> None:
        """One round over the gangs that were refused."""
        short, clock = self._gangs.registry.short, self._cycles.clock
        await short.wait()
        short.clear()
        if not self._is_ready():
            self._set_timer(AGAIN_SECONDS)
            return
        waits = []
        for gang in self.preemptors():
            wait = self._wait_of(gang)
            if wait > 0:
                waits.append(wait)
                continue
            began = clock.monotonic()
            found = await self._nominate(gang)
            if found is not None:
                evictions.create_task(self._evict(gang, found))
            # Other requests get at least as much time as the search took.
            await asyncio.sleep(clock.monotonic() - began)
        if waits:
            self._set_timer(min(waits))

    def preemptors(self) -> list[Gang]:
        """Gangs that may preempt and were refused since they were looked at last: the highest priority first, then
        those that have waited longest."""
        found = [
            (-priority, gang.since, gang.name, gang)
            for gang in self._gangs.registry
            if gang.may_preempt and (priority := gang_priority(gang)) is not None
        ]
        return [gang for *_, gang in sorted(found, key=lambda item: item[:3])]

    def _wait_of(self, gang: Gang) -> float:
        """Seconds until victims are looked for."""
        now = self._cycles.clock.monotonic()
        if gang.refused_at is None:
            gang.refused_at = now
        return max(gang.refused_at + self._settings.delay_seconds, gang.search_at, gang.not_before) - now

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._gangs.registry.short.set)

    # -- one gang

    async def preempt(self, gang: Gang) -> None:
        """Nominate a gang and evict its victims, if there are any, until they leave or there are no others."""
        for _ in range(ATTEMPTS):
            found = await self._nominate(gang)
            if found is None or await self._evict(gang, found):
                return

    async def _nominate(self, gang: Gang) -> GangVictims | None:
        """The victims over which the gang has its nominations now; None if it has none."""
        gang.may_preempt = False
        ledger, clock = self._cycles.ledger, self._cycles.clock
        for _ in range(ATTEMPTS):
            priority = gang_priority(gang)
            if priority is None or not self._is_ready():
                return None
            demand = self._gangs.demand(gang, priority=priority)
            self._book.forget_overdue()
            state = ledger.version, self._book.revision, demand
            if state == gang.searched:
                return None
            began, position = clock.monotonic(), ledger.arrays.now
            found = await self._search(demand)
            seconds = clock.monotonic() - began
            if gang_priority(gang) != priority or not self._is_ready():
                return None
            if found is None:
                gang.searched = state
                gang.search_at = clock.monotonic() + AGAIN_SECONDS + 20 * seconds
                self._gangs.nominations.report_none(gang, seconds)
                return None
            if not found.victims and not found.leaving:
                self._cycles.unschedulable.on_room()  # It fits as it is.
                return None
            # The search may have paused, and nodes may have changed since.
            is_settled = not self._has_changed(found, position)
            if is_settled and await self._gangs.nominations.nominate(
                gang, found, priority=priority, seconds=self._settings.nomination_seconds, searched=seconds
            ):
                self._before_evict()
                return found
        gang.search_at = clock.monotonic() + AGAIN_SECONDS
        gang.may_preempt = True
        self._set_timer(AGAIN_SECONDS)
        return None

    async def _search(self, demand: GangDemand) -> GangVictims | None:
        search = gang_preemption.search(self._preemption, demand)
        began = time.perf_counter()
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: GangVictims | None = end.value
                return found
            if time.perf_counter() - began > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()

    def _has_changed(self, found: GangVictims, position: int) -> bool:
        """Whether a node of the victims is not as it was: then perhaps not all of them have to leave."""
        ledger = self._cycles.ledger
        rows = ledger.arrays.changed_since(position)
        if rows is None:
            return True
        changed = {ledger.arrays.names[row] for row in rows}
        entries = (ledger.pod(uid) for uid in found.victims)
        return any(entry is None or entry.facts.node in changed for entry in entries)

    async def _evict(self, gang: Gang, found: GangVictims) -> bool:
        """Whether all victims leave; otherwise all nominations are renounced, and the gang is looked at again."""
        nominations = gang.nominations
        members = [member.request for member in gang.pending()]
        if not members:
            return False  # They are gone, and so are the nominations.
        preemptor = min(members, key=lambda request: request.preempts_below or 0)
        victims = [traits for uid in found.victims if (traits := self._book.traits(uid)) is not None]
        problem = await self._evictor.evict(
            victims,
            preemptor=preemptor,
            gang=gang.name,
            obstacle=lambda victim: self._obstacle(victim, gang, nominations),
        )
        if problem and gang.nominations is nominations:
            self._gangs.nominations.renounce(gang, problem)
        if problem:
            # Pods that stay are spared for a while, so this ends.
            self._gangs.registry.note_short(gang)
            return False
        if gang.nominations is nominations:
            self._gangs.nominations.show(gang)
        self._cycles.unschedulable.on_room()  # The victims may be gone already.
        return True

    def _obstacle(self, victim: PodTraits, gang: Gang, nominations: list[Hold]) -> str:
        """Why a victim must not be evicted any more; empty if it may."""
        if not self._is_ready():
            return "this replica does not decide any more"
        if gang.nominations is not nominations or gang.state is not GangState.NOMINATED:
            return f"gang {gang.name} is not nominated any more"
        return ""


def gang_priority(gang: Gang) -> int | None:
    """Pods of lower priority may be evicted for the gang; None: none may now."""
    pending = gang.pending()
    if gang.state is not GangState.WAITING or gang.fitting is None or gang.count(MemberState.GATED):
        return None
    if not pending or sum(member.is_refused for member in pending) < gang.required:
        return None
    priorities = [member.request.preempts_below for member in pending]
    return None if None in priorities else min(priority for priority in priorities if priority is not None)
