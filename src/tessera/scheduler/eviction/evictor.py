"""Evicts the victims of one nomination or move, so that none leaves for nothing if another one may stay.

    more than one: dry run of all --> those with a disruption budget, one after the other --> the rest, side by side
                        |                               |                                         |
                        '------- a refusal -------------'-----------------------------------------'--> nothing further

A dry run asks the apiserver's budgets without using them up. So two victims of one budget both pass it where only one
may leave; the book has counted them before, and what is left is a budget that changes within milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tessera.core.model.requests import PodRequest
from tessera.core.search.victims import PodTraits
from tessera.kube.eviction import CONCURRENT, EvictionResult, evict_pod
from tessera.scheduler.eviction.victim_book import VictimBook
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import EvictedEvent, SchedulerObserver
from tessera.services.failpoints import Failpoint, failpoint

log = structlog.get_logger(__name__)

SPARED_S = 30.0
"""for which a pod is left alone whose disruption budget refused its eviction"""
UNKNOWN_S = 1.0
"""for which a pod is left alone whose eviction was not answered: by then a watch shows what became of it"""

Obstacle = Callable[[PodTraits], str]
"""why a victim must not be evicted any more; empty if it may. Asked right before each eviction is sent"""


class Evictor:
    """Evicts for all features of one scheduler, a few pods at a time."""

    def __init__(self, api: KubeApi, book: VictimBook, *, observer: SchedulerObserver) -> None:
        self._api = api
        self.book = book
        self._observer = observer
        self._turns = asyncio.Semaphore(CONCURRENT)
        self._after_evict = failpoint(Failpoint.AFTER_EVICT)

    async def evict(
        self, victims: Sequence[PodTraits], *, preemptor: PodRequest | None, obstacle: Obstacle, gang: str = ""
    ) -> str:
        """Empty if all leave, or are gone; otherwise why one stays. What was not sent by then is not sent.

        `preemptor`: None if the victims are moved. `gang`: whose member it is, if all of it preempts.
        """
        if len(victims) > 1:
            problems = await asyncio.gather(*(self._try_out(victim, obstacle) for victim in victims))
            problem = next(filter(None, problems), "")
            if problem:
                return problem
        guarded = [victim for victim in victims if self.book.budgets(victim.uid)]
        for victim in guarded:
            problem = await self._evict(victim, obstacle, preemptor, gang)
            if problem:
                return problem
        first = ""

        async def evict(victim: PodTraits) -> None:
            nonlocal first
            problem = await self._evict(victim, lambda one: first or obstacle(one), preemptor, gang)
            first = first or problem

        await asyncio.gather(*(evict(victim) for victim in victims if victim not in guarded))
        return first

    async def _try_out(self, victim: PodTraits, obstacle: Obstacle) -> str:
        """A dry run: empty, or why the pod would stay."""
        async with self._turns:
            return obstacle(victim) or (await self._send(victim, dry_run=True))[1]

    async def _evict(self, victim: PodTraits, obstacle: Obstacle, preemptor: PodRequest | None, gang: str) -> str:
        """Empty, or why the pod stays."""
        node = self.book.node_of(victim.uid)
        async with self._turns:
            problem = obstacle(victim)
            if problem:
                return problem
            known = self.book.traits(victim.uid)
            if known is not None and known.is_leaving:
                return ""  # For another preemptor: a gang is on several nodes, and each of them may need it gone.
            is_evicted, problem = await self._send(victim)
            if not is_evicted:
                return problem
            self._after_evict()
        self.book.note_evicted(victim.uid)
        by = "" if preemptor is None else f"{preemptor.namespace}/{preemptor.name}"
        log.info("pod evicted", pod=victim.key, node=node, preemptor=by, gang=gang)
        if preemptor is not None:
            self._observer.on_evicted(EvictedEvent(victim, preemptor, node, preemptor.preempts_below or 0, gang))
        return ""

    async def _send(self, victim: PodTraits, *, dry_run: bool = False) -> tuple[bool, str]:
        """Whether the eviction is accepted, and why the pod stays: neither if it is gone. One that stays is spared by
        the book for a while."""
        answer = await evict_pod(self._api, victim.namespace, victim.name, uid=victim.uid, dry_run=dry_run)
        if not answer.reason:
            return answer.result is EvictionResult.EVICTED, ""
        is_unknown = answer.result is EvictionResult.UNANSWERED
        self.book.spare(victim.uid, answer.reason, seconds=UNKNOWN_S if is_unknown else answer.retry_after or SPARED_S)
        return False, f"{victim.key} is not evicted: {answer.reason}"
