"""Keeps records and ledger true to the API: the handlers of the pod and the quota informer.

They never wait and never write to the API. `PodCycles` decides what an observation means for the pod's record;
capacity that was freed or added is reported to `UnschedulablePods`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.scheduler.eviction.victim_book import VictimBook
from tessera.scheduler.informers.handler import InformerHandler
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePods
from tessera.scheduler.requests.host_resources import HostResources
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import read_references
from tessera.vendors.node_reader import quota_facts
from tessera.vendors.pod_reader import ENDED, PodReader, claim_parts
from tessera.wire import keys
from tessera.wire.journal import ReleaseReason
from tessera.wire.objects import Pod, ResourceQuota

log = structlog.get_logger(__name__)

RUNNING = "Running"
"""kubelet starts no container before each one of the pod has its devices"""


class PodListener(Protocol):
    """What the pod informer tells about pods."""

    def on_pod_listed(self, pod: Pod) -> None:
        """A pod of a list that is not complete yet."""
        ...

    def on_pod(self, pod: Pod) -> None:
        """The API shows the pod; its record and the ledger have seen it."""
        ...

    def on_pod_gone(self, uid: str) -> None:
        """The pod was deleted."""
        ...

    def on_synced(self) -> None:
        """A list is complete that decisions have waited for."""
        ...


class PodInformer(InformerHandler[Pod]):
    """Handler of the pod informer."""

    def __init__(
        self,
        cycles: PodCycles,
        vendors: Mapping[str, Vendor],
        *,
        hosts: HostResources | None,
        victims: VictimBook,
        observer: SchedulerObserver,
        listener: PodListener,
    ) -> None:
        super().__init__(listener.on_synced)
        self._cycles = cycles
        self._vendors = vendors
        self._reader = PodReader(vendors)
        self._hosts = hosts
        self._observer = observer
        self._victims = victims
        self._listener = listener
        self._uids: dict[str, str] = {}

    def put(self, key: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._uids.get(key, uid) != uid:
            self.drop(key)
        self._uids[key] = uid
        if not self.has_synced:
            self._listener.on_pod_listed(pod)
        if self._hosts is not None:
            self._hosts.put_pod(pod)
        facts = self._reader.facts(pod)
        if facts is not None:
            self._observe_bound(pod, facts)
        elif pod.status.phase in ENDED or pod.spec.node_name or pod.metadata.deletion_timestamp:
            # Ended, bound without devices, or deleted before it was bound: whatever was reserved is free.
            self._observe_gone(uid, why="deleted" if pod.metadata.deletion_timestamp else "ended")
        else:
            self._cycles.observe_pending(uid)
        self._listener.on_pod(pod)

    def drop(self, key: str) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            if self._hosts is not None:
                self._hosts.drop_pod(uid)
            self._observe_gone(uid)
            self._listener.on_pod_gone(uid)

    def forget(self) -> None:
        """The vendors have changed."""
        self._reader.forget()

    def _observe_bound(self, pod: Pod, facts: PodFacts) -> None:
        known = self._cycles.ledger.pod(facts.uid)
        is_allocating = pod.annotations.get(keys.BIND_PHASE) == keys.PHASE_ALLOCATING and pod.status.phase != RUNNING
        parts = claim_parts(pod)
        cycle = self._cycles.observe_bound(facts, is_allocating=is_allocating, parts=parts)
        if cycle is not None:
            request, references = self._reader.request(pod), read_references(pod, self._vendors)
            covered = isinstance(request, PodRequest) and references.cover(request, self._vendors)
            self._cycles.resume(cycle, facts, uses_downward_api=covered)
        if facts.problem and (known is None or known.facts.problem != facts.problem):
            log.warning("node held", node=facts.node, pod=f"{facts.namespace}/{facts.name}", problem=facts.problem)
        if facts.grants:
            self._victims.put_pod(pod, facts)
        else:
            self._victims.drop_pod(facts.uid)  # All that it uses is its claims', which are never evicted.
        self._observer.on_pod(facts.uid, pod)

    def _observe_gone(self, uid: str, *, why: ReleaseReason = "deleted") -> None:
        self._cycles.observe_gone(uid, why=why)
        self._victims.drop_pod(uid)
        self._observer.on_pod(uid, None)


class QuotaInformer(InformerHandler[ResourceQuota]):
    """Handler of the quota informer."""

    def __init__(
        self,
        ledger: Ledger,
        vendors: Mapping[str, Vendor],
        unschedulable: UnschedulablePods,
        *,
        on_synced: Callable[[], None],
    ) -> None:
        super().__init__(on_synced)
        self._ledger = ledger
        self._vendors = vendors
        self._unschedulable = unschedulable

    def put(self, key: str, quota: ResourceQuota) -> None:
        self._ledger.observe_quota(quota_facts(quota, self._vendors))
        self._unschedulable.on_room()

    def drop(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        self._ledger.forget_quota(namespace, name)
        self._unschedulable.on_room()
