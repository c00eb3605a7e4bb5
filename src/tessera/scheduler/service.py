"""The decision half of `tessera scheduler`: ledger, informers, filter, bind, webhook, waking, put together.

Everything that changes the ledger runs on one event loop; `run` is a group of tasks that live and end together.
Listeners, signals and certificates are not here but in `process`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import structlog

from tessera.core.audit import AuditFinding, audit_nodes
from tessera.core.selection import Refused
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster
from tessera.kube.leases import Lease, LeaseWatch
from tessera.kube.reflector import Reflector, Sink
from tessera.kube.resources import LEASES, NODES, PODS, RESOURCE_QUOTAS
from tessera.scheduler.admission.env_injection import Injection
from tessera.scheduler.admission.pod_admission import AdmissionSettings
from tessera.scheduler.admission.webhook import review
from tessera.scheduler.engine import Engine
from tessera.scheduler.event_recorder import EventRecorder
from tessera.scheduler.kube_api import KubeCluster
from tessera.scheduler.settings import Settings
from tessera.vendors.base import Vendor
from tessera.wire.extender import encode_binding_result, encode_filter_result
from tessera.wire.objects import Node, Pod, ResourceQuota

log = structlog.get_logger(__name__)

TICK = 15.0
"""seconds between looks at what only time changes: handshakes, reservations, forgotten turns"""
AUDIT_PERIOD = 1.0
"""seconds"""
AUDIT_NODES, AUDIT_NODES_IN_A_RUSH = 25, 5
"""nodes checked in a period: all of 5000 in under four minutes, or in less than seventeen"""
RUSH = 25
"""changes of nodes in a period: with more, decisions need the time"""
LEASE_PERIOD = 1.0
"""seconds between looks at the lease"""


class Named(Protocol):
    """The part of an object's metadata that an informer needs."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def resource_version(self) -> str: ...


class Watched(Protocol):
    """An object that an informer can follow."""

    @property
    def metadata(self) -> Named: ...


T = TypeVar("T", bound=Watched)


class Service:
    """One scheduler replica. Make it on the event loop that runs it."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        now: Callable[[], float] = time.time,
        on_refusal: Callable[[Refused], None] = lambda _refused: None,
        on_audit: Callable[[str, list[AuditFinding]], None] = lambda _node, _findings: None,
        on_pod: Callable[[str, Pod | None], None] = lambda _uid, _pod: None,
        on_write: Callable[[str], None] = lambda _verb: None,
    ) -> None:
        self.settings = settings
        self.client = client
        self._on_audit = on_audit
        self._group = asyncio.TaskGroup()
        lead = settings.leadership
        self._lease = LeaseWatch(lead.identity, clock=asyncio.get_running_loop().time) if lead is not None else None
        self.leads = lead is None
        self.events = EventBroadcaster(client, component=settings.scheduler_name, host="", now=now)
        self.telling = EventRecorder(self.events, now=now)
        engine = self.engine = Engine(
            settings,
            KubeCluster(client, on_write=on_write),
            now=now,
            zone=datetime.now().astimezone().tzinfo or UTC,
            spawn=self._group.create_task,
            leads=lambda: self.leads,
            on_decision=self.telling.decided,
            on_refusal=on_refusal,
            on_bind=self.telling.bound,
            on_pod=on_pod,
        )
        self.vendors, self.ledger, self.selector = engine.vendors, engine.ledger, engine.selector
        self.filter, self.binder = engine.filter, engine.binder
        self.waiting, self.handover = engine.waiting, engine.handover
        self._admission = AdmissionSettings(
            scheduler_name=settings.scheduler_name,
            force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
            privileged=settings.privileged,
            trusted_users=settings.trusted_users,
            injection=Injection(settings.hook_path, settings.allow_disable_control)
            if settings.injects_downward_api
            else None,
        )
        self._informers: tuple[Reflector[Any], ...] = (
            self._reflector(PODS.path(), Pod, engine.pods),
            self._reflector(NODES.path(), Node, engine.nodes),
            self._reflector(RESOURCE_QUOTAS.path(), ResourceQuota, engine.quotas),
        )
        self._watches: list[asyncio.Task[None]] = []

    # -- answers

    def answer_filter(self, body: bytes) -> bytes:
        missing = self.engine.missing()
        return encode_filter_result(error=missing) if missing else self.filter.answer(body)

    async def answer_bind(self, body: bytes) -> bytes:
        missing = self.engine.missing()
        return encode_binding_result(missing) if missing else await self.binder.answer(body)

    def answer_review(self, body: bytes, content_type: str) -> bytes:
        return review(body, content_type, vendors=self.vendors, settings=self._admission, quotas=self.ledger.quotas)

    def unsynced(self) -> str:
        """Which first list is not complete; empty = all are."""
        return self.engine.unsynced()

    def missing(self) -> str:
        """Why no decision can be made; empty = ready to decide."""
        return self.engine.missing()

    # -- life

    async def run(self) -> None:
        """Until cancelled; a task that fails ends all."""
        async with self._group as group:
            self._watch_all()
            for work in (self.events.run, self.telling.run, self._tick, self.engine.wake, self._audit):
                group.create_task(work())
            lead = self.settings.leadership
            if self._lease is not None and lead is not None:
                path = LEASES.path(lead.namespace)
                lease = self._reflector(path, Lease, self._lease, field_selector=f"metadata.name={lead.name}")
                group.create_task(lease.run())
                group.create_task(self._follow_lease(self._lease))

    def replace_vendors(self, vendors: Mapping[str, Vendor]) -> None:
        """Work with another device configuration from now on: everything is read again."""
        self.vendors.clear()
        self.vendors.update(vendors)
        self.filter.vendors_changed()
        self.engine.pods.vendors_changed()
        for name in self.ledger.node_names():
            # Equal facts would not be charged again, but what they are charged may have changed.
            self.ledger.forget_node(name)
        self._read_again()

    def _watch_all(self) -> None:
        self._watches = [self._group.create_task(informer.run()) for informer in self._informers]

    def _read_again(self) -> None:
        """List everything afresh; decisions wait until that is done."""
        for watch in self._watches:
            watch.cancel()
        for informer in self._informers:
            informer.start_over()
        for sink in (self.engine.pods, self.engine.nodes, self.engine.quotas):
            sink.has_synced = False
        self._watch_all()

    async def _follow_lease(self, lease: LeaseWatch) -> None:
        """Lead while the kube-scheduler beside us does.

        A new leader reads everything again first: its watch may not have seen the last bindings of the old one.
        """
        while True:
            leads = lease.leads()
            if leads and not self.leads:
                log.info("leading")
                self._read_again()
            elif self.leads and not leads:
                log.info("no longer leading")
            self.leads = leads
            await asyncio.sleep(LEASE_PERIOD)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.engine.tick()

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
                self._on_audit(name, audit_nodes(self.ledger, [name]))

    def _reflector(self, path: str, kind: type[T], sink: Sink[T], *, field_selector: str = "") -> Reflector[T]:
        return Reflector(
            self.client,
            path,
            kind,
            sink,
            key=_key,
            uid=lambda obj: obj.metadata.uid,
            version=lambda obj: obj.metadata.resource_version,
            field_selector=field_selector,
        )


def audited_at_once(changes: int) -> int:
    """How many nodes, after so many changes in a period."""
    return AUDIT_NODES_IN_A_RUSH if changes > RUSH else AUDIT_NODES


def _key(obj: Watched) -> str:
    metadata = obj.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
