"""The decisions of one scheduler, put together on any cluster: ledger, keepers, filter, bind, turns and waking.

One event loop runs all of it. What feeds the three sinks (`pods`, `nodes`, `quotas`), who calls `tick`, and whether
this replica leads is not decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import tzinfo
from typing import Any

import structlog

from tessera.core.ledger import Ledger
from tessera.core.policies import uses_forecast
from tessera.core.selection import Refused, Selector
from tessera.kube.errors import ApiError, KubeError
from tessera.scheduler.allocation_queue import Handover
from tessera.scheduler.binder import NOT_LEADING, Binder, BindEvent
from tessera.scheduler.demand_seed import DemandSeed
from tessera.scheduler.filter import Filter, FilterEvent
from tessera.scheduler.host_resources import Hosts
from tessera.scheduler.kube_api import Cluster
from tessera.scheduler.node_informer import NodeInformer, Patch
from tessera.scheduler.node_lock import NodeLocks
from tessera.scheduler.pod_informer import PodInformer, QuotaInformer
from tessera.scheduler.settings import Settings
from tessera.scheduler.turns import Turns
from tessera.scheduler.unschedulable_pods import UnschedulablePods
from tessera.vendors.registry import build_vendors
from tessera.wire import keys
from tessera.wire.objects import Node, Pod

log = structlog.get_logger(__name__)

NOT_FOUND = 404
WAKE_AGAIN = 1.0
"""seconds after a pod could not be told that it fits"""


class Engine:
    """Make it on the event loop that runs it."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        now: Callable[[], float],
        zone: tzinfo,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        leads: Callable[[], bool] = lambda: True,
        on_decision: Callable[[FilterEvent], None] = lambda _event: None,
        on_refusal: Callable[[Refused], None] = lambda _refused: None,
        on_bind: Callable[[BindEvent], None] = lambda _event: None,
        on_pod: Callable[[str, Pod | None], None] = lambda _uid, _pod: None,
    ) -> None:
        time = asyncio.get_running_loop().time
        self._cluster = cluster
        self._now = now
        self._spawn = spawn
        self._leads = leads
        self._room = asyncio.Event()
        self.vendors = build_vendors(settings.device_sections, settings.switches)
        self.ledger = Ledger(self.vendors)
        self.selector = Selector(self.ledger)
        self.waiting = UnschedulablePods()
        self.handover = Handover(forget_after=settings.node_lock_seconds, time=time)
        locks = NodeLocks(cluster, expire_after=settings.node_lock_seconds, now=now)
        self.turns = Turns(self.handover, locks, self.vendors, mode=settings.node_lock, timeout=settings.turn_seconds)
        self.filter = Filter(
            self.ledger,
            self.selector,
            self.vendors,
            waiting=self.waiting,
            defaults=settings.policies,
            reservation_seconds=settings.reservation_seconds,
            time=time,
            on_room=self._room.set,
            on_decision=on_decision,
            on_refusal=on_refusal,
        )
        self.binder = Binder(
            self.ledger,
            self.vendors,
            decisions=self.filter,
            turns=self.turns,
            cluster=cluster,
            reservation_seconds=settings.reservation_seconds,
            now=now,
            time=time,
            leads=leads,
            on_bind=on_bind,
        )
        ahead = uses_forecast(settings.policies.node, settings.policies.device)
        hosts = Hosts(self.ledger.arrays) if ahead else None
        self._lessons = DemandSeed(self.vendors) if ahead else None

        def seen(node: Node) -> None:
            self.turns.seen(node)
            if hosts is not None:
                hosts.put_node(node)

        self.pods = PodInformer(
            self.ledger,
            self.vendors,
            turns=self.turns,
            waiting=self.waiting,
            on_room=self._room.set,
            on_settled=self.filter.settled,
            on_pod=on_pod,
            on_listed=self._lessons.note if self._lessons is not None else lambda _pod: None,
            on_synced=self._learn,
            hosts=hosts,
        )
        self.nodes = NodeInformer(
            self.ledger,
            self.vendors,
            selector=settings.node_selector,
            now=now,
            zone=zone,
            patch=self._stamp,
            on_room=self._room.set,
            on_node=seen,
            on_synced=self._learn,
        )
        self.quotas = QuotaInformer(self.ledger, self.vendors, on_room=self._room.set)

    def _learn(self) -> None:
        """Once pods and nodes are known: what a pod asks is seen against the cards that there are."""
        if self._lessons is not None and self.pods.has_synced and self.nodes.has_synced:
            self.filter.learn(self._lessons.take())

    def unsynced(self) -> str:
        """Which first list is not complete; empty = all are."""
        if self.pods.has_synced and self.nodes.has_synced and self.quotas.has_synced:
            return ""
        done = {"pods": self.pods.has_synced, "nodes": self.nodes.has_synced, "quotas": self.quotas.has_synced}
        open_ = [name for name, synced in done.items() if not synced]
        return f"the first list of {', '.join(open_)} is not complete" if open_ else ""

    def missing(self) -> str:
        """Why no decision can be made; empty = ready to decide."""
        return self.unsynced() or ("" if self._leads() else NOT_LEADING)

    def tick(self) -> None:
        """Look at what only time changes: handshakes, reservations, forgotten turns, pods never seen."""
        if self._leads():
            self.nodes.tick()
        expired = self.filter.expire()
        for uid in expired:
            self.turns.over(uid)
        if expired:
            log.info("reservations expired", pods=len(expired))
            self._room.set()
        self.turns.forget_old()
        self.waiting.forget_unseen(self.pods.is_pending)
        self._spawn(self.binder.look_after())

    async def wake(self) -> None:
        """For ever: whenever there is more room, make kube-scheduler ask again for pods that fit now."""
        # A value that no earlier process wrote: a patch that changes nothing would wake nobody.
        began, serial = int(self._now()), 0
        while True:
            await self._room.wait()
            self._room.clear()
            if self.missing():
                # The room stays; whether it helps is seen once decisions can be made again.
                asyncio.get_running_loop().call_later(WAKE_AGAIN, self._room.set)
                continue
            for pod in self.waiting.wake(self.selector):
                serial += 1
                try:
                    await self._cluster.annotate_pod(pod.namespace, pod.name, {keys.RETRY: f"{began}.{serial}"})
                except KubeError as error:
                    if isinstance(error, ApiError) and error.status == NOT_FOUND:
                        self.waiting.gone(pod.uid)
                        continue
                    self.waiting.not_woken(pod.uid)
                    # Nothing else may ever happen: the room that is there must be enough to try again.
                    asyncio.get_running_loop().call_later(WAKE_AGAIN, self._room.set)
                    log.warning("pod not woken", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    def _stamp(self, node: str, annotations: Patch) -> None:
        if self._leads():
            self._spawn(self._annotate_node(node, annotations))

    async def _annotate_node(self, node: str, annotations: Patch) -> None:
        try:
            await self._cluster.annotate_node(node, annotations)
        except KubeError as error:
            log.warning("handshake not written", node=node, error=str(error))
