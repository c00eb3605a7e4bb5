"""Keeps the ledger true to the API: the sink of the pod and quota informers.

The only place that turns what the API shows into changes of the ledger. It never waits and never writes to the API.
What frees or adds room is told through `on_room`; what ends a handover is told to `turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from tessera.core.holdings import PodFacts
from tessera.core.ledger import GrantState, Ledger
from tessera.core.requests import PodRequest
from tessera.scheduler.host_resources import Hosts
from tessera.scheduler.turns import Turns
from tessera.scheduler.unschedulable_pods import UnschedulablePods
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import read_references
from tessera.vendors.node_reader import quota_facts
from tessera.vendors.pod_reader import ENDED, PodReader
from tessera.wire import keys
from tessera.wire.objects import Pod, ResourceQuota

log = structlog.get_logger(__name__)

PHASES_OVER = frozenset({keys.PHASE_SUCCESS, keys.PHASE_FAILED})
RUNNING = "Running"
"""kubelet starts no container before every one of the pod has its devices"""


class PodInformer:
    """Sink of the pod informer."""

    def __init__(
        self,
        ledger: Ledger,
        vendors: Mapping[str, Vendor],
        *,
        turns: Turns,
        waiting: UnschedulablePods,
        on_room: Callable[[], None],
        on_settled: Callable[[str], None] = lambda _uid: None,
        on_pod: Callable[[str, Pod | None], None] = lambda _uid, _pod: None,
        on_listed: Callable[[Pod], None] = lambda _pod: None,
        on_synced: Callable[[], None] = lambda: None,
        hosts: Hosts | None = None,
    ) -> None:
        self._hosts = hosts
        self._on_listed = on_listed
        """shown every pod of a list that is not complete yet"""
        self._on_synced = on_synced
        self._ledger = ledger
        self._vendors = vendors
        self._reader = PodReader(vendors)
        self._turns = turns
        self._waiting = waiting
        self._on_room = on_room
        self._on_settled = on_settled
        """told the uids of pods that are bound or gone: nothing that was decided about them is open any more"""
        self._on_pod = on_pod
        """shown every pod that holds devices, and None when it does not any more"""
        self._uids: dict[str, str] = {}
        self._pending: set[str] = set()
        """uids of pods that may still be bound"""
        self.has_synced = False

    def put(self, key: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._uids.get(key, uid) != uid:
            self.drop(key)
        self._uids[key] = uid
        if not self.has_synced:
            self._on_listed(pod)
        if self._hosts is not None:
            self._hosts.put_pod(pod)
        facts = self._reader.facts(pod)
        if facts is not None:
            self._bound(pod, facts)
            self._on_pod(uid, pod)
        elif pod.status.phase in ENDED or pod.spec.node_name or pod.metadata.deletion_timestamp:
            # Ended, bound without devices, or deleted before it was bound: whatever was reserved is free.
            self._gone(uid)
        else:
            self._pending.add(uid)

    def drop(self, key: str) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            if self._hosts is not None:
                self._hosts.drop_pod(uid)
            self._gone(uid)

    def vendors_changed(self) -> None:
        self._reader.forget()

    def synced(self) -> None:
        self.has_synced = True
        self._on_synced()
        # What was gained while decisions had to wait woke nobody.
        self._on_room()

    def is_pending(self, uid: str) -> bool:
        """Whether the API shows this pod and it may still be bound."""
        return uid in self._pending

    def _bound(self, pod: Pod, facts: PodFacts) -> None:
        uid = facts.uid
        known = self._ledger.pod(uid)
        written_here = known is not None and known.state is GrantState.BOUND and not known.observed
        self._pending.discard(uid)
        is_new = self._ledger.observe_pod(facts)
        self._waiting.gone(uid)
        self._on_settled(uid)
        if known is not None and is_new:
            self._on_room()
        if facts.problem and (known is None or known.facts.problem != facts.problem):
            log.warning("node held", node=facts.node, pod=f"{facts.namespace}/{facts.name}", problem=facts.problem)
        phase = pod.annotations.get(keys.BIND_PHASE, "")
        if phase in PHASES_OVER or pod.status.phase == RUNNING:
            self._turns.over(uid)
        elif phase == keys.PHASE_ALLOCATING and not written_here:
            self._resume(pod, facts)

    def _resume(self, pod: Pod, facts: PodFacts) -> None:
        request, references = self._reader.request(pod), read_references(pod, self._vendors)
        covered = isinstance(request, PodRequest) and references.cover(request, self._vendors)
        self._turns.resume(facts, carries=covered, uncontrolled=references.disables_enforcement)

    def _gone(self, uid: str) -> None:
        self._pending.discard(uid)
        self._turns.over(uid)
        self._waiting.gone(uid)
        self._on_settled(uid)
        self._on_pod(uid, None)
        if self._ledger.release(uid):
            self._on_room()


class QuotaInformer:
    """Sink of the quota informer."""

    def __init__(self, ledger: Ledger, vendors: Mapping[str, Vendor], *, on_room: Callable[[], None]) -> None:
        self._ledger = ledger
        self._vendors = vendors
        self._on_room = on_room
        self.has_synced = False

    def put(self, key: str, quota: ResourceQuota) -> None:
        self._ledger.observe_quota(quota_facts(quota, self._vendors))
        self._on_room()

    def drop(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        self._ledger.forget_quota(namespace, name)
        self._on_room()

    def synced(self) -> None:
        self.has_synced = True
        # What was gained while decisions had to wait woke nobody.
        self._on_room()
