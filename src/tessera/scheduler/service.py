"""One scheduler replica without its listeners: the engine, its informers, events, webhook and leadership.

Everything that changes the ledger runs on one event loop; `run` is a group of tasks that live and end together.
Listeners, signals and certificates are in `process`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from tessera.core.ledger.audit import audit_nodes
from tessera.core.ledger.ledger import Ledger
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster
from tessera.kube.leases import Lease, LeaseWatch, boottime
from tessera.kube.reflector import Reflector
from tessera.kube.resources import (
    DEVICE_CLASSES,
    LEASES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
)
from tessera.scheduler.admission.claim_owners import ClaimLookup
from tessera.scheduler.admission.claim_templates import ClaimTemplates
from tessera.scheduler.admission.webhook import Webhook
from tessera.scheduler.clock import Clock
from tessera.scheduler.decision_log import DecisionLog
from tessera.scheduler.engine import Engine
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.event_recorder import EventRecorder
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.informers.handler import InformerHandler
from tessera.scheduler.journal import Journal
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.scheduler.settings import Settings
from tessera.scheduler.tenure import Tenure
from tessera.vendors.base import Vendor
from tessera.wire.objects import Node, Pod, PodDisruptionBudget, ResourceQuota
from tessera.wire.resource_api import DRIVER, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice

log = structlog.get_logger(__name__)

TICK = 15.0
"""seconds between looks at what only time changes: handshakes, reservations, overdue turns"""
AUDIT_PERIOD = 1.0
"""seconds"""
AUDIT_NODES, AUDIT_NODES_WHEN_BUSY = 25, 5
"""nodes checked per period: all of 5000 in under four minutes, or in less than seventeen"""
BUSY = 25
"""changes of nodes per period: with more, decisions need the time"""
LEASE_PERIOD = 1.0
"""seconds between looks at the lease"""
SWEEP_PERIOD = 3600.0
"""seconds between looks for templates that no pod uses any more"""


class Service:
    """One scheduler replica. Make it on the event loop that runs it."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        observer: SchedulerObserver,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.client = client
        self._group = asyncio.TaskGroup()
        loop = asyncio.get_running_loop()
        lead = settings.leadership
        self._lease = LeaseWatch(lead.identity, clock=boottime, now=now) if lead is not None else None
        self.events = EventBroadcaster(client, component=settings.scheduler_name, host="", now=now)
        self.recorder = EventRecorder(self.events, now=now, hami_texts=settings.hami_events)
        self.journal = Journal(settings, now=now)
        self._observer = ObserverGroup(self.journal, DecisionLog(), self.recorder, observer)
        engine = self.engine = Engine(
            settings,
            KubeApi(client, self._observer),
            clock=Clock(now, loop.time, datetime.now().astimezone().tzinfo or UTC),
            spawn=self._group.create_task,
            observer=self._observer,
            tenure=Tenure(self._lease.tenure if self._lease is not None else lambda: 0),
        )
        self.view = EngineView(engine)
        self.journal.attach(engine.ledger)
        self._templates = ClaimTemplates(client, now=now, time=loop.time)
        held = engine.feature(Claims)
        claims = ClaimLookup(client, held.book, self._templates) if settings.dra else None
        self.webhook = Webhook(engine.vendors, settings, engine.ledger, claims=claims, observer=self._observer)
        self._informers: dict[InformerHandler[Any], Reflector[Any]] = {
            engine.pods: Reflector(client, PODS.path(), Pod, engine.pods),
            engine.nodes: Reflector(client, NODES.path(), Node, engine.nodes),
            engine.quotas: Reflector(client, RESOURCE_QUOTAS.path(), ResourceQuota, engine.quotas),
        }
        if settings.preemption or settings.defrag.enabled:
            path = POD_DISRUPTION_BUDGETS.path()
            self._informers[engine.budgets] = Reflector(client, path, PodDisruptionBudget, engine.budgets)
        if settings.dra:
            pools, classes, found = held.pools, held.classes, held.claims
            self._informers[pools] = Reflector(
                client, RESOURCE_SLICES.path(), ResourceSlice, pools, field_selector=f"spec.driver={DRIVER}"
            )
            self._informers[classes] = Reflector(client, DEVICE_CLASSES.path(), DeviceClass, classes)
            self._informers[found] = Reflector(client, RESOURCE_CLAIMS.path(), ResourceClaim, found)
            self._informers[self._templates] = Reflector(
                client, RESOURCE_CLAIM_TEMPLATES.path(), ResourceClaimTemplate, self._templates
            )
        self._leases: Reflector[Lease] | None = None
        if self._lease is not None and lead is not None:
            path, selector = LEASES.path(lead.namespace), f"metadata.name={lead.name}"
            self._leases = Reflector(client, path, Lease, self._lease, field_selector=selector)
        self._watches: dict[InformerHandler[Any], asyncio.Task[None]] = {}

    @property
    def ledger(self) -> Ledger:
        return self.engine.ledger

    @property
    def is_leader(self) -> bool:
        return self.engine.is_leader

    def watch_ages(self) -> dict[str, float]:
        """By resource, seconds since its watch last said something."""
        ages = {reflector.resource: reflector.age for reflector in self._informers.values()}
        return ages if self._leases is None else ages | {"leases": self._leases.age}

    def unsynced(self) -> str:
        """Which first list is not complete; empty if all are."""
        return self.engine.unsynced()

    # -- life

    async def run(self) -> None:
        """Until cancelled; a task that fails ends all."""
        async with self._group as group:
            for handler in self._informers:
                self._watch(handler)
            for work in (self.events.run, self.recorder.run, self._tick, self._audit, *self.engine.work()):
                group.create_task(work())
            if self._leases is not None:
                group.create_task(self._leases.run())
            group.create_task(self._follow_lease())
            if self.settings.dra_convert:
                group.create_task(self._sweep_templates())

    def replace_vendors(self, vendors: Mapping[str, Vendor], settings: Settings) -> None:
        """Use the device configuration of these settings from now on: everything is read again."""
        self.engine.vendors.clear()
        self.engine.vendors.update(vendors)
        self.journal.restart(settings)
        self.engine.forget_vendors()
        for handler in self._informers:
            self._read_again(handler)

    def _watch(self, handler: InformerHandler[Any]) -> None:
        self._watches[handler] = self._group.create_task(self._informers[handler].run())

    def _read_again(self, handler: InformerHandler[Any]) -> None:
        """List all objects of one informer afresh; decisions wait until that is done."""
        self._watches[handler].cancel()
        self._informers[handler].start_over()
        handler.has_synced = False
        self._watch(handler)

    def _catch_up(self) -> None:
        """Read again what an earlier decider may have known better than the watches here; all of it, if there was one
        while this process watched."""
        for name, handler in self.engine.awaited.items():
            if self._lease is not None or name in (PODS.plural, RESOURCE_CLAIMS.plural):
                self._read_again(handler)

    async def _follow_lease(self) -> None:
        """Decide while the kube-scheduler beside this process leads, or always; in each tenure after a take-over."""
        tenure = self.engine.tenure
        while True:
            current = tenure.current
            if tenure.number is not None and current != tenure.number:
                log.info("no longer leading")
                self.engine.step_down()
            if current is not None and tenure.number is None:
                log.info("taking over")
                await self.engine.take_over(current, self._catch_up)
                if tenure.number is not None:
                    log.info("leading", fence=tenure.fence)
            await asyncio.sleep(LEASE_PERIOD)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.engine.tick()

    async def _sweep_templates(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD)
            if self.is_leader:
                await self._templates.sweep()

    async def _audit(self) -> None:
        """Check some nodes' accounting every period, round and round."""
        position, changes = 0, 0
        while True:
            await asyncio.sleep(AUDIT_PERIOD)
            names = self.ledger.node_names()
            before, changes = changes, self.ledger.arrays.now
            if not names:
                continue
            count = min(audited_at_once(changes - before), len(names))
            chosen = [names[(position + i) % len(names)] for i in range(count)]
            position = (position + count) % len(names)
            for name in chosen:
                self._observer.on_audit(name, audit_nodes(self.ledger, [name]))


def audited_at_once(changes: int) -> int:
    """How many nodes are checked after so many changes in a period."""
    return AUDIT_NODES_WHEN_BUSY if changes > BUSY else AUDIT_NODES
