"""ResourceClaims: a pod is placed with what its claims ask for, and they are written before its Binding.

Book, pools, reader, writer and their informers. A scheduler without `--dra` feeds them nothing and joins no pod with
its claims: there, claims are another scheduler's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Reason, node_misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Refused
from tessera.scheduler.features.claims.book import ClaimBook, ClaimRecord, owner_uid
from tessera.scheduler.features.claims.informers import ClaimInformer, ClaimPools, ClassInformer
from tessera.scheduler.features.claims.reader import PodClaimReader
from tessera.scheduler.features.claims.writer import ClaimWriter
from tessera.scheduler.framework import Attempt, Feature, Pipeline, Place, Work
from tessera.scheduler.informers.handler import InformerHandler
from tessera.scheduler.pod_cycle import PodCycle
from tessera.scheduler.queue.waker import WAKE_PAUSES
from tessera.scheduler.requests.pod_claims import ClaimNotReady
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.claims.allocations import claim_devices_text
from tessera.vendors.drafts import BadPod
from tessera.wire import keys
from tessera.wire.objects import Pod, Workload
from tessera.wire.resource_api import ResourceClaim

RESOURCE_CLAIM = "ResourceClaim"
"""kind of the owner of what a claim holds that pods of several workloads use"""


class Claims(Feature):
    """All ResourceClaims."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        settings, self._cycles = pipeline.settings, pipeline.cycles
        self._scheduler_name = settings.scheduler_name
        self._is_on = settings.dra
        self.pools = ClaimPools(self._on_pool, pipeline.on_synced)
        self.book = ClaimBook(self._cycles, self.pools.by_name, self._on_claim)
        self.reader = PodClaimReader(self.book, self._on_ready)
        self.writer = ClaimWriter(
            self.book, self.pools.by_name, pipeline.api, tenure=pipeline.tenure, spawn=pipeline.spawn
        )
        self.claims = ClaimInformer(self.book, pipeline.on_synced)
        self.classes = ClassInformer(self.book, pipeline.on_synced)
        self._ready: dict[str, PodRequest] = {}
        """pods to be woken, by uid; of what they ask, nothing"""
        self._has_ready = asyncio.Event()
        self._workloads: dict[str, Workload] = {}
        """of all pods with claims, by uid"""

    def informers(self) -> Mapping[str, InformerHandler[Any]]:
        if not self._is_on:
            return {}
        return {"resourceslices": self.pools, "deviceclasses": self.classes, "resourceclaims": self.claims}

    def is_ours_claim(self, claim: ResourceClaim) -> bool:
        return self.book.may_be_ours(claim)

    # -- filter

    def join_node(self, facts: NodeFacts) -> NodeFacts:
        return self.pools.join(facts)

    def join_pod(self, pod: Pod, prepared: PreparedRequest) -> PreparedRequest | BadPod:
        """The pod's request with its claims. Those of other profiles of kube-scheduler are allocated there."""
        is_ours = self._is_on and pod.spec.scheduler_name == self._scheduler_name
        return self.reader.join(pod, prepared) if is_ours else prepared

    def concerns(self, attempt: Attempt) -> bool:
        return attempt.prepared.claims is not None

    def pre_filter(self, attempt: Attempt) -> BadPod | None:
        """A pod whose claims are allocated fits their node only."""
        claims = attempt.prepared.claims
        if claims is None or not claims.node:
            return None
        if claims.node not in attempt.given:
            return claims.elsewhere
        elsewhere = node_misfit(Reason.CLAIM_ELSEWHERE, detail=claims.elsewhere.text)
        attempt.narrow(self._pipeline.selector.candidates([claims.node]), elsewhere)
        return None

    def place(self, attempt: Attempt) -> Place | None:
        """A pod that asks for nothing beside its allocated claims."""
        claims = attempt.prepared.claims
        if claims is None or attempt.request.asks_for_devices:
            return None
        return Place(attempt.request, Placement(claims.node, {}))

    def reserve(self, prepared: PreparedRequest) -> None:
        """No other pod gets a reservation for the same claims before they are written or it is over."""
        for use in prepared.claims.uses if prepared.claims is not None else ():
            record = self.book.get(use.key, use.uid)
            if record is not None:
                self.book.take(record, prepared.request.uid)

    def on_refused(self, attempt: Attempt, refused: Refused, *, by_feature: bool) -> Refused:
        claims = attempt.prepared.claims
        if claims is not None and claims.node:
            self._wait(attempt.pod, claims.elsewhere)
        elif claims is not None and by_feature:
            self._wait(attempt.pod, ClaimNotReady("", ""))
        return refused

    def on_bad_pod(self, pod: Pod, bad: BadPod) -> None:
        if isinstance(bad, ClaimNotReady):
            self._wait(pod, bad)

    def _wait(self, pod: Pod, problem: ClaimNotReady) -> None:
        """The pod is refused because of its claims, or they may change what becomes of it."""
        self.reader.wait(pod)
        # A Binding that is on its way counts on what its claims hold.
        if problem.is_stuck and not self._cycles.may_be_bound(pod.metadata.uid):
            for key in self.reader.keys(pod):
                self.writer.release(key, pod=pod.metadata.uid)

    # -- bind

    async def pre_bind(self, cycle: PodCycle, annotations: dict[str, str]) -> str:
        prepared, placement = cycle.prepared, cycle.placement
        if prepared is None or placement is None or prepared.claims is None:
            return ""
        problem = await self.writer.write(cycle, prepared, placement)
        if not problem:
            parts = self.writer.parts(prepared)
            annotations[keys.CLAIM_DEVICES] = claim_devices_text(parts)
            self._cycles.use_claims(cycle, parts)
        return problem

    # -- what the parts tell

    def on_pod(self, pod: Pod) -> None:
        if not pod.spec.resource_claims:
            return
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

    def _on_claim(self, record: ClaimRecord) -> None:
        self.reader.on_claim(record)
        self._tell_holder(record)
        if record.facts is not None:
            # Other pods may use its devices than before.
            self._pipeline.observer.on_cards(record.facts.node)

    def _on_pool(self, node: str) -> None:
        changed = self.book.recount(node)
        self._pipeline.refresh_node(node)
        for record in changed:
            self.reader.on_claim(record)
            self._tell_holder(record)

    def _tell_holder(self, record: ClaimRecord) -> None:
        self._pipeline.observer.on_claim(record.uid, None if record.facts is None else self._workload(record))

    def _workload(self, record: ClaimRecord) -> Workload:
        """Of the pods that use the claim, if it is one; else the claim itself, or unknown if it was made for a pod."""
        found = {self._workloads[uid] for uid in record.consumers if uid in self._workloads}
        namespace, name = record.claim.metadata.namespace, record.claim.metadata.name
        if len(found) == 1:
            return found.pop()
        return Workload(namespace) if owner_uid(record.claim) else Workload(namespace, RESOURCE_CLAIM, name)

    def _on_ready(self, pod: Pod) -> None:
        self._pipeline.read_again(pod)
        metadata = pod.metadata
        self._ready[metadata.uid] = PodRequest(metadata.uid, metadata.namespace, metadata.name, ())
        self._has_ready.set()

    # -- over time

    def work(self) -> Sequence[Work]:
        return (self._wake_claimants,)

    async def _wake_claimants(self) -> None:
        """For ever: make kube-scheduler ask again for pods whose claims exist now. That must not wait for others."""
        failures = 0
        while True:
            await self._has_ready.wait()
            waking = self.take_ready()
            asleep: list[str] = []
            await self._pipeline.wake(list(waking.values()), asleep.append)
            failures = failures + 1 if asleep else 0
            for uid in asleep:
                cycle = self._cycles.get(uid)
                if cycle is not None and cycle.is_shown:  # Otherwise it is gone meanwhile.
                    self._ready.setdefault(uid, waking[uid])
            if asleep:
                pause = WAKE_PAUSES.ceiling(failures)
                asyncio.get_running_loop().call_later(pause, self._has_ready.set)

    def take_ready(self) -> dict[str, PodRequest]:
        """The pods that are to be woken now, by uid."""
        self._has_ready.clear()
        ready, self._ready = self._ready, {}
        return ready

    def tick(self) -> None:
        if self._is_on:
            self.reader.tick(self._workloads)
            self._pipeline.spawn(self.writer.look_up_uncertain())
            self._pipeline.spawn(self.writer.protect_allocated())

    def end_term(self) -> None:
        """Another replica decides, and touches every pod that is not bound: no other wake-up is needed."""
        self._ready.clear()
        self.reader.forget_waiting()
