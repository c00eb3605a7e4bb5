"""Keeps the ledger true to the API: the sink of the pod and quota informers.

The only place that turns what the API shows into changes of the ledger. It never waits and never writes to the API.
What frees or adds room is told through `on_room`; what ends a handover is told to `handover`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from tessera.core.holdings import PodFacts
from tessera.core.ledger import Ledger, State
from tessera.scheduler.handover import Handover
from tessera.scheduler.waking import Waiting
from tessera.vendors.base import Vendor
from tessera.vendors.reading_nodes import quota_facts
from tessera.vendors.reading_pods import ENDED, pod_facts
from tessera.wire import keys
from tessera.wire.objects import Pod, ResourceQuota

log = structlog.get_logger(__name__)

PHASES_OVER = frozenset({keys.PHASE_SUCCESS, keys.PHASE_FAILED})


class PodKeeper:
    """Sink of the pod informer."""

    def __init__(
        self,
        ledger: Ledger,
        vendors: Mapping[str, Vendor],
        *,
        handover: Handover,
        waiting: Waiting,
        on_room: Callable[[], None],
        on_handover: Callable[[Pod, PodFacts], None] = lambda _pod, _facts: None,
    ) -> None:
        self._ledger = ledger
        self._vendors = vendors
        self._handover = handover
        self._waiting = waiting
        self._on_room = on_room
        self._on_handover = on_handover
        self._uids: dict[str, str] = {}
        self.has_synced = False

    def put(self, key: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._uids[key] = uid
        facts = pod_facts(pod, self._vendors)
        if facts is not None:
            self._bound(pod, facts)
        elif pod.status.phase in ENDED or pod.spec.node_name or pod.metadata.deletion_timestamp:
            # Ended, bound without devices, or deleted before it was bound: whatever was reserved is free.
            self._gone(uid)

    def drop(self, key: str) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            self._gone(uid)

    def synced(self) -> None:
        self.has_synced = True

    def _bound(self, pod: Pod, facts: PodFacts) -> None:
        uid = facts.uid
        known = self._ledger.pod(uid)
        self._ledger.observe_pod(facts)
        self._waiting.gone(uid)
        if known is not None and known.facts != facts:
            self._on_room()
        if facts.problem and (known is None or known.facts.problem != facts.problem):
            log.warning("node held", node=facts.node, pod=f"{facts.namespace}/{facts.name}", problem=facts.problem)
        phase = pod.annotations.get(keys.BIND_PHASE, "")
        if phase in PHASES_OVER:
            self._handover.over(uid)
        elif phase == keys.PHASE_ALLOCATING:
            self._on_handover(pod, facts)

    def _gone(self, uid: str) -> None:
        self._handover.over(uid)
        self._waiting.gone(uid)
        if self._ledger.release(uid):
            self._on_room()


class QuotaKeeper:
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


def is_reserved(ledger: Ledger, uid: str) -> bool:
    entry = ledger.pod(uid)
    return entry is not None and entry.state is State.RESERVED
