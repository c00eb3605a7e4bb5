"""Rounds over the gangs that wait: each is planned again when room was freed, and its members are woken if it fits.

A round looks at every gang, the longest wait first, in slices; in a large one single pods are woken in between. At its
end one gang is judged that may never fit, and one that starves may get the turn (`turns`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tessera.core.model.requests import PodRequest
from tessera.scheduler.features.gangs.gang import Gang, GangState
from tessera.scheduler.features.gangs.holds import GangHolds
from tessera.scheduler.features.gangs.lifecycle import GangLifecycle
from tessera.scheduler.features.gangs.preemption import GangNominations
from tessera.scheduler.features.gangs.registry import GangRegistry
from tessera.scheduler.features.gangs.turns import GangTurns
from tessera.scheduler.pod_cycle import PodCycles
from tessera.wire.objects import Workload

WAITING, NOMINATED = GangState.WAITING, GangState.NOMINATED
PLANNED_AT_ONCE = 64
"""gangs that are planned before single pods are woken again"""
SEEN_AT_ONCE = 256
"""gangs, or pods, that are looked at between two pauses"""


@dataclass(slots=True)
class _Round:
    """One look at each gang."""

    gangs: deque[Gang]
    """that are still to be looked at"""
    began: Hashable
    """the version of the ledger then"""
    unjudged: list[Gang] = field(default_factory=list)
    starving: list[Gang] = field(default_factory=list)


class GangRounds:
    """Makes rounds, one after the other."""

    def __init__(
        self,
        registry: GangRegistry,
        holds: GangHolds,
        lifecycle: GangLifecycle,
        nominations: GangNominations,
        turns: GangTurns,
        cycles: PodCycles,
    ) -> None:
        self._registry = registry
        self._holds = holds
        self._lifecycle = lifecycle
        self._nominations = nominations
        self._turns = turns
        self._cycles = cycles
        self._round = _Round(deque(), None)

    async def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        """Plan the gangs that wait, the longest first; the members to be woken, gang by gang. If there are many, the
        others follow in the next round: single pods are woken in between."""
        rest, is_new = self._round, not self._round.gangs
        if is_new:
            rest = self._round = _Round(deque(self._registry), self._cycles.ledger.version)
        planned = seen = 0
        while rest.gangs and planned < PLANNED_AT_ONCE:
            gang, seen = rest.gangs.popleft(), seen + 1
            if seen % SEEN_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not self._is_known(gang):
                continue
            if gang.preemption.nomination is not None:
                self._nominations.pay(gang)
            if gang.state is NOMINATED or gang.members.asleep:
                planned += 1
                if woken := await self._retry(gang):
                    yield woken
            if self._turns.outlook.is_wanted(gang):
                rest.unjudged.append(gang)
            if self._turns.is_starving(gang):
                rest.starving.append(gang)
        if not rest.gangs:
            self._round = _Round(deque(), None)
            await self._turns.outlook.judge(list(filter(self._is_known, rest.unjudged)))
            favoured = self._turns.give(list(filter(self._is_known, rest.starving)))
            if favoured is not None and (woken := await self._retry(favoured)):
                yield woken
        if woken := self._above_the_turn():
            yield woken
        if rest.gangs or (not is_new and rest.began != self._cycles.ledger.version):
            self._cycles.unschedulable.on_room()

    def _is_known(self, gang: Gang) -> bool:
        return bool(gang.members) and self._registry.get(gang.namespace, gang.group.name) is gang

    async def _retry(self, gang: Gang) -> list[PodRequest]:
        """Plan a gang that waits; the members to be woken."""
        if gang.state is NOMINATED and self._nominations.has_left(gang) and await self._nominations.redeem(gang):
            self._lifecycle.begin_plan(gang)
        asleep = gang.members.asleep
        if not asleep or gang.state is NOMINATED:
            return []
        if gang.state is WAITING:
            if gang.wait.is_unfinished:
                await self._holds.prepare(gang)
            self._lifecycle.end_if_overdue(gang)
            is_planned = gang.state is not WAITING or self._lifecycle.follow_moves(gang, Workload(gang.namespace))
            problem = None if is_planned else await self._lifecycle.plan_in_slices(gang, None)
            if problem is not None and gang.is_short:
                self._registry.note_short(gang)
            await asyncio.sleep(0)
            if problem is not None:
                return []
        for member in asleep:
            member.is_refused = False
        return [member.request for member in asleep]

    def _above_the_turn(self) -> list[PodRequest]:
        """Pods of higher priority that fit if what is held in a turn makes way."""
        found: list[PodRequest] = []
        if self._turns.favoured is None:
            return found
        for pod in islice(self._cycles.unschedulable, SEEN_AT_ONCE):
            if not pod.is_woken and self._turns.would_place(pod.request, pod.candidates):
                pod.is_woken = True
                found.append(pod.request)
        return found
