"""Composition of what the pipeline knows of ResourceClaims: book, pools, reader, writer and their informers.

The one interface that filter, binder and take-over have to claims. A scheduler without `--dra` makes it too, but feeds
it nothing and joins no pod with it: there, claims are another scheduler's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tessera.core.requests import PodRequest
from tessera.scheduler.features.claims.book import ClaimBook, ClaimRecord, owner_uid
from tessera.scheduler.features.claims.informers import ClaimInformer, ClassInformer
from tessera.scheduler.features.claims.pod_claims import ClaimNotReady
from tessera.scheduler.features.claims.pools import ClaimPools
from tessera.scheduler.features.claims.reader import PodClaimReader
from tessera.scheduler.features.claims.writer import ClaimWriter
from tessera.scheduler.informer_handler import InformerHandler
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.scheduler.tenure import Tenure
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Pod, Workload

RESOURCE_CLAIM = "ResourceClaim"
"""kind of the owner of what a claim holds that pods of several workloads use"""


class ClaimCoordinatorListener(Protocol):
    """What is told to the pipeline."""

    def on_pool(self, node: str) -> None:
        """A node offers other devices to claims than before."""
        ...

    def on_claims_ready(self, pod: Pod) -> None:
        """A pod that was refused because of its claims can be asked for again."""
        ...

    def on_synced(self) -> None:
        """A list is complete that decisions have waited for."""
        ...


class ClaimCoordinator:
    """Used from the event loop only."""

    def __init__(
        self,
        cycles: PodCycles,
        api: KubeApi,
        *,
        scheduler_name: str,
        tenure: Tenure,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        listener: ClaimCoordinatorListener,
        observer: SchedulerObserver,
    ) -> None:
        self._scheduler_name = scheduler_name
        self._cycles = cycles
        self._listener = listener
        self._observer = observer
        self.pools = ClaimPools(self, listener.on_synced)
        self.book = ClaimBook(cycles, self.pools.by_name, self)
        self.reader = PodClaimReader(self.book, self)
        self.writer = ClaimWriter(self.book, self.pools.by_name, api, tenure=tenure, spawn=spawn)
        self.claims = ClaimInformer(self.book, listener.on_synced)
        self.classes = ClassInformer(self.book, listener.on_synced)
        self._ready: dict[str, PodRequest] = {}
        """pods to be woken, by uid; of what they ask, nothing"""
        self._waking: dict[str, PodRequest] = {}
        """those that are being woken"""
        self.has_ready = asyncio.Event()
        self._workloads: dict[str, Workload] = {}
        """of all pods with claims, by uid"""

    @property
    def informers(self) -> dict[str, InformerHandler[Any]]:
        """By the name of their resource."""
        return {"resourceslices": self.pools, "deviceclasses": self.classes, "resourceclaims": self.claims}

    # -- filter

    def join(self, pod: Pod, prepared: PreparedRequest) -> PreparedRequest | BadPod:
        """The pod's request with its claims. Those of other profiles of kube-scheduler are allocated there."""
        return self.reader.join(pod, prepared) if pod.spec.scheduler_name == self._scheduler_name else prepared

    def reserve(self, prepared: PreparedRequest) -> None:
        """The pod has a reservation: no other pod gets one for the same claims before it is written or over."""
        for use in prepared.claims.uses if prepared.claims is not None else ():
            record = self.book.get(use.key, use.uid)
            if record is not None:
                self.book.take(record, prepared.request.uid)

    def wait(self, pod: Pod, problem: ClaimNotReady) -> None:
        """The pod is refused because of its claims."""
        self.reader.wait(pod)
        # A Binding that is on its way counts on what its claims hold.
        if problem.is_stuck and not self._cycles.may_be_bound(pod.metadata.uid):
            for key in self.reader.keys(pod):
                self.writer.release(key, pod=pod.metadata.uid)

    # -- what the parts tell

    def on_pod(self, pod: Pod) -> None:
        """The API shows a pod with claims."""
        uid = pod.metadata.uid
        self.reader.on_pod(pod)
        if uid not in self._workloads:
            self._workloads[uid] = pod.workload
            for record in map(self.book.get, self.reader.keys(pod)):
                if record is not None and uid in record.consumers:
                    self._tell_holder(record)

    def on_pod_gone(self, uid: str) -> None:
        self.reader.on_pod_gone(uid)
        self._workloads.pop(uid, None)
        self._ready.pop(uid, None)

    def on_claim(self, record: ClaimRecord) -> None:
        self.reader.on_claim(record)
        self._tell_holder(record)
        if record.facts is not None:
            # Other pods may use its devices than before.
            self._observer.on_cards(record.facts.node)

    def on_pool(self, node: str) -> None:
        changed = self.book.recount(node)
        self._listener.on_pool(node)
        for record in changed:
            self.reader.on_claim(record)
            self._tell_holder(record)

    def _tell_holder(self, record: ClaimRecord) -> None:
        self._observer.on_claim(record.uid, None if record.facts is None else self._workload(record))

    def _workload(self, record: ClaimRecord) -> Workload:
        """Of the pods that use the claim, if it is one; else the claim itself, or unknown if it was made for a pod."""
        found = {self._workloads[uid] for uid in record.consumers if uid in self._workloads}
        namespace, name = record.claim.metadata.namespace, record.claim.metadata.name
        if len(found) == 1:
            return found.pop()
        return Workload(namespace) if owner_uid(record.claim) else Workload(namespace, RESOURCE_CLAIM, name)

    def on_claims_ready(self, pod: Pod) -> None:
        self._listener.on_claims_ready(pod)
        metadata = pod.metadata
        self._ready[metadata.uid] = PodRequest(metadata.uid, metadata.namespace, metadata.name, ())
        self.has_ready.set()

    # -- wake-ups

    def take_ready(self) -> list[PodRequest]:
        """The pods that are to be woken now."""
        self.has_ready.clear()
        self._waking, self._ready = self._ready, {}
        return list(self._waking.values())

    def on_wake_failed(self, uid: str) -> None:
        """The patch failed: it is tried again with the next change."""
        self._ready.setdefault(uid, self._waking[uid])

    def retry_wakes(self) -> None:
        if self._ready:
            self.has_ready.set()

    def tick(self) -> None:
        self.reader.tick(self._workloads)

    def end_term(self) -> None:
        """Another replica decides, and touches every pod that is not bound: no other wake-up is needed."""
        self._ready.clear()
        self.reader.forget_waiting()
