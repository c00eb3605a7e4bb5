"""One run of the scheduler in the model: an engine, its informers and ticks, and a checker at its shoulder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC
from typing import Any

from tessera.scheduler.clock import Clock
from tessera.scheduler.engine import Engine
from tessera.scheduler.journal import Journal
from tessera.scheduler.observer import EvictedEvent
from tessera.scheduler.settings import DefragSettings, JournalSettings, Settings
from tessera.scheduler.tenure import Tenure
from tests.model.apiserver import Client, SimulatedApiserver
from tests.model.bindings import Bindings
from tests.model.checker import Checker
from tests.model.lease import ModelLease
from tests.model.tables import Informer
from tests.support.journals import assert_same_ledger, records_of, replayed
from tests.support.stepwise_scheduler import claims_of

TICK = 15.0
"""seconds, as in the service"""
JOURNAL_BYTES = 500_000
"""so little that records leave the journal all the time"""


class CheckedJournal(Journal):
    """Also sees that no pod is evicted for another one of its own priority, or of a lower one."""

    def on_evicted(self, event: EvictedEvent) -> None:
        assert event.victim.priority < event.priority, event.text
        super().on_evicted(event)


class Process:
    """Begins with lists that are taken but not delivered. Decides nothing before it has taken over."""

    def __init__(
        self,
        name: str,
        api: SimulatedApiserver,
        bindings: Bindings,
        lease: ModelLease,
        *,
        now: Callable[[], float],
        reads_claims: bool = False,
        moves_pods: bool = False,
    ) -> None:
        self.name = name
        self.client = Client(api)
        self._tasks: dict[asyncio.Task[None], None] = {}
        """in a fixed order, so that a life can be lived again"""
        self._is_taking_over = False
        clock = Clock(now, asyncio.get_running_loop().time, UTC)
        # At rest nothing is left behind: what is held for a starving gang would be.
        settings = Settings(
            journal=JournalSettings(memory_bytes=JOURNAL_BYTES),
            gang_starving_s=0.0,
            dra=reads_claims,
            defrag=DefragSettings(enabled=moves_pods, interval_s=60.0, patience_s=10.0, step_timeout_s=60.0),
        )
        self.journal = CheckedJournal(settings, now=now, identity=name)
        self._replayed = 0
        """number of the last record whose decision was made again"""
        engine = self.engine = Engine(
            settings,
            self.client,
            clock=clock,
            spawn=self._spawn,
            observer=self.journal,
            tenure=Tenure(lambda: lease.tenure(name)),
        )
        self.journal.attach(engine.ledger)
        self.checker = Checker(
            api,
            bindings,
            engine,
            now=now,
            lag=lambda: self.pods.behind + self.quotas.behind + sum(each.behind for each in self.of_claims),
            has_lease=lambda: lease.holder == name,
        )
        self.pods = Informer(api.pods, engine.pods, after=self.checker.shown.pod)
        self.nodes = Informer(api.nodes, engine.nodes, after=self.checker.saw_node)
        self.quotas = Informer(api.quotas, engine.quotas, after=self.checker.shown.quota)
        self.of_claims: tuple[Informer[Any], ...] = ()
        if reads_claims:
            claims, shown = claims_of(engine), self.checker.shown
            self.of_claims = (
                Informer(api.claims, claims.claims, after=shown.claim),
                Informer(api.slices, claims.pools, after=shown.slice),
                Informer(api.classes, claims.classes),
            )
            self.client.on_claim = shown.answered
        engine.budgets.synced()  # The model has no disruption budgets.
        for work in engine.work():
            self._spawn(work())
        self._spawn(self._tick())
        self.look_at_lease()

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self.pods, self.nodes, self.quotas, *self.of_claims)

    @property
    def is_paused(self) -> bool:
        return self.client.is_paused

    def look_at_lease(self) -> None:
        """What the service does every second."""
        tenure = self.engine.tenure
        current = tenure.current
        if tenure.number is not None and current != tenure.number:
            self.engine.step_down()
        if current is not None and tenure.number is None and not self._is_taking_over:
            self._is_taking_over = True
            self._spawn(self._take_over(current))

    def replay(self, *, least: int = 0) -> None:
        """Makes the decisions again that were recorded since the last time, once there are so many new records."""
        if self.journal.sequence - self._replayed < least:
            return
        assert self._replayed >= self.journal.oldest - 1, "decisions have left the journal before they were replayed"
        again = replayed(records_of(self.journal, self._replayed))
        assert again.counts.without_candidates == 0
        assert_same_ledger(again, self.engine.ledger)
        self._replayed = self.journal.sequence

    def stop(self) -> None:
        """All memory is gone; calls that were sent are the apiserver's."""
        self.replay()
        self.client.crash()
        for task in list(self._tasks):
            task.cancel()
        for informer in self.informers:
            informer.close()

    async def _take_over(self, number: int) -> None:
        try:
            await self.engine.take_over(number, self._catch_up)
            if self.engine.is_leader:
                self.checker.shown.tick()  # The engine has looked at the handshakes too.
        finally:
            self._is_taking_over = False

    def _catch_up(self) -> None:
        """Decisions wait until the new lists are delivered."""
        for handler in self.engine.awaited.values():
            handler.has_synced = False
        for informer in self.informers:
            informer.list()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.result()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self.engine.is_leader:
                self.checker.shown.tick()
            self.engine.tick()
