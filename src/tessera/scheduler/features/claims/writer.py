"""Writes ResourceClaims: allocated and reserved for a pod before its Binding, or released.

    written                              IDLE, with what the API server answered
    another version (409)                read; sent again for that version if nothing else has been decided about it
    no answer                            read; sent again if it has not landed. At the end touched: then nothing that
                                         was sent before can land, and the answer shows what has
    not even touched                     UNCERTAIN; touched again at every tick
    gone, allocated by others, forbidden nothing was written

A write is valid for one version of the claim, as a Binding is for one version of its pod. Every claim that is allocated
is protected by the finalizer that kube-controller-manager knows, so that it stays while pods use it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import structlog

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.grants import Grants, Placement
from tessera.kube.errors import ApiError, KubeError, Unreachable, is_gone, is_not_found
from tessera.scheduler.features.claims.book import ClaimBook, ClaimRecord, WriteState
from tessera.scheduler.features.claims.reader import MAX_CONSUMERS
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.pod_cycle import CycleState, PodCycle
from tessera.scheduler.requests.pod_claims import ClaimUse
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.scheduler.tenure import NOT_LEADING, TAKEN_OVER, Tenure
from tessera.scheduler.versioned_write import NotSent, write_version
from tessera.services.failpoints import Failpoint, failpoint
from tessera.vendors.claims.allocations import allocation
from tessera.vendors.claims.asks import BadClaim, claim_grants
from tessera.vendors.claims.pools import PoolDevices
from tessera.wire import keys
from tessera.wire.resource_api import DRIVER, Allocation, ClaimStatus, Consumer, ResourceClaim

log = structlog.get_logger(__name__)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""kube-controller-manager removes it, and the allocation, when no pod uses the claim any more"""
PROTECTED_AT_ONCE = 64
"""claims, at one tick: an upgrade may find thousands"""


@dataclass(slots=True)
class ClaimWrite:
    """A write of one claim, for the version that it is sent for next."""

    writer: ClaimWriter
    record: ClaimRecord
    before: ClaimStatus
    """which it was planned for"""
    status: Mapping[str, Any]
    """the parts that change"""
    facts: PodFacts | None = None
    """what the claim holds from now on, if it is allocated"""
    known_fence: str = ""
    claim: ResourceClaim = field(init=False)
    number: int | None = field(init=False)
    """of the tenure that it was planned in"""

    def __post_init__(self) -> None:
        self.claim, self.number = self.record.claim, self.writer._tenure.number

    @property
    def version(self) -> str:
        return self.claim.metadata.resource_version

    async def send(self) -> ResourceClaim | str:
        writer, book, is_allocated = self.writer, self.writer._book, self.facts is not None
        if is_allocated:
            self.claim = await writer._protect(self.claim)
        book.learn(self.record, self.claim)
        if is_allocated and not book.is_charged(self.record):
            # An earlier attempt had landed, and what it gave was taken back and is free.
            return f"ResourceClaim {self.record.key} was released meanwhile"
        if not writer._tenure.is_held() or writer._tenure.number != self.number:
            raise NotSent(NOT_LEADING)
        writer._before_claim()
        answer = await writer._api.write_claim_status(self.claim, self.status)
        writer._after_claim()
        return answer

    def on_written(self, answer: ResourceClaim | str) -> ResourceClaim | str:
        return answer

    def on_unanswered(self) -> None:
        """The record is WRITING until the end is known."""

    async def read(self, error: str) -> ResourceClaim | str | None:
        writer, metadata = self.writer, self.claim.metadata
        try:
            found = await writer._api.get_claim(metadata.namespace, metadata.name)
        except ApiError as fault:
            if is_not_found(fault):
                return error
            raise
        writer._book.learn(self.record, found)
        if self.has_landed(found):
            return found
        if not self.may_follow(found) or writer._is_taken_over(found, self.known_fence):
            return error
        self.claim = found
        return None

    async def give_up(self, error: str, *, may_land: bool) -> ResourceClaim | str:
        writer = self.writer
        if not may_land:
            return error
        if not writer._tenure.is_held():
            raise Unreachable(error, maybe_done=True)  # Only the decider may touch it.
        found = await writer._touch(self.record)
        if self.has_landed(found):
            return found
        writer._book.learn(self.record, found)
        return error

    def may_follow(self, claim: ResourceClaim) -> bool:
        """Whether a later version of the claim is as far as the one that the write was made for."""
        metadata = claim.metadata
        return metadata.uid == self.record.uid and not metadata.deletion_timestamp and claim.status == self.before

    def has_landed(self, claim: ResourceClaim) -> bool:
        """Whether the claim shows what was written."""
        if claim.metadata.uid != self.record.uid:
            return False
        wanted, found = self.status.get("allocation"), claim.status.allocation
        if "allocation" in self.status and _shares(wanted) != _shares(found):
            return False
        reserved = {each.uid for each in claim.status.reserved_for or ()}
        return {each.uid for each in self.status["reservedFor"] or ()} <= reserved


class ClaimWriter:
    """Writes the claims of pods that are bound."""

    def __init__(
        self,
        book: ClaimBook,
        pools: Mapping[str, PoolDevices],
        api: KubeApi,
        *,
        tenure: Tenure,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._book = book
        self._pools = pools
        self._api = api
        self._tenure = tenure
        self._spawn = spawn
        self._under_way: dict[str, asyncio.Future[None]] = {}
        """writes that have not ended, by uid of the claim"""
        self.allocated = self.released = 0
        """claims, since the start"""
        self._before_claim = failpoint(Failpoint.BEFORE_CLAIM)
        self._after_claim = failpoint(Failpoint.AFTER_CLAIM)

    async def write(self, cycle: PodCycle, prepared: PreparedRequest, placement: Placement) -> str:
        """Allocate and reserve all claims of a pod; empty, or why one of them is not the pod's.

        Then those that are written stay so: the next filter call goes on with them, or releases them.
        """
        claims = prepared.claims
        writes: list[ClaimWrite] = []
        if not await self._wait_for_others(cycle, prepared):
            return f"pod {prepared.request.namespace}/{prepared.request.name} was deleted or bound meanwhile"
        for use in claims.uses if claims is not None else ():
            planned = self._plan(prepared, use, placement, is_handed=use.uid in cycle.handed)
            if isinstance(planned, str):
                return planned
            if planned is not None:
                writes.append(planned)
        for each in writes:
            self._start(each, pod=prepared.request.uid)
        if len(writes) == 1:
            return await self._send(writes[0]) or self._lost(prepared)
        try:
            problems = await asyncio.gather(*map(self._send, writes))
        except BaseException:
            for each in writes:  # A bind that is cut off may end them before they have begun.
                self._book.lose_track(each.record)
                self._end(each.record)
            raise
        return next(filter(None, problems), "") or self._lost(prepared)

    async def _wait_for_others(self, cycle: PodCycle, prepared: PreparedRequest) -> bool:
        """Wait until no other pod's bind writes one of these claims; whether the pod is still being bound then.

        A member of a gang that shares a claim must not lose its place to the others.
        """
        for _ in range(MAX_CONSUMERS):
            others = {self._under_way[uid] for uid in prepared.claim_uids if uid in self._under_way}
            if not others:
                break
            await asyncio.wait(others)
        return cycle.state is CycleState.BINDING

    def _lost(self, prepared: PreparedRequest) -> str:
        """Why a claim is not the pod's any more, as far as is known: the writes of the others took their time."""
        for use in prepared.claims.uses if prepared.claims is not None else ():
            record = self._book.get(use.key, use.uid)
            if record is None or not record.is_allocated or prepared.request.uid not in record.consumers:
                return f"ResourceClaim {use.key} was released meanwhile"
            if record.facts is not None and record.facts.problem:
                return record.facts.problem  # The pod could not record what it uses.
        return ""

    def parts(self, prepared: PreparedRequest) -> dict[str, Grants]:
        """What the pod's claims hold for it now, by uid."""
        records = (self._book.get(use.key, use.uid) for use in prepared.claims.uses) if prepared.claims else ()
        return {record.uid: _all_grants(record.facts) for record in records if record is not None}

    def release(self, key: str, *, pod: str) -> None:
        """Take an allocation back that at most this pod uses, and that it cannot use where it is."""
        record = self._book.get(key)
        if record is None or not record.is_allocated or record.state is not WriteState.IDLE:
            return
        results = record.claim.status.allocation.devices.results if record.claim.status.allocation is not None else None
        if not record.consumers <= {pod} or any(each.driver != DRIVER for each in results or ()):
            return
        status = {"allocation": None, "reservedFor": None}
        write = ClaimWrite(self, record, record.claim.status, status, known_fence=record.fence)
        self._start(write, pod="")
        self._spawn(self._release(write))

    async def _release(self, write: ClaimWrite) -> None:
        problem = await self._send(write)
        if problem:
            log.warning("claim not released", claim=write.record.key, error=problem)
        else:
            self.released += 1

    async def look_up_uncertain(self) -> None:
        """Find out what became of writes that were not answered; called at every tick."""
        for record in self._book:
            if record.state is not WriteState.UNCERTAIN:
                continue
            try:
                self._book.learn(record, await self._touch(record))
            except KubeError as error:
                if is_gone(error):
                    continue  # Gone: the informer is about to show it.
                log.warning("claim uncertain", claim=record.key, error=str(error))

    async def protect_allocated(self) -> None:
        """Set the finalizer on claims that lack it: an earlier version or another scheduler allocated them, or a person
        took it away. Called at every tick; a few at a time."""
        bare = (record for record in self._book if _lacks_protection(record))
        for record in islice(bare, PROTECTED_AT_ONCE) if self._tenure.is_held() else ():
            try:
                self._book.learn(record, await self._protect(record.claim))
            except KubeError as error:
                log.warning("claim not protected", claim=record.key, error=str(error))

    # -- one write

    def _plan(
        self, prepared: PreparedRequest, use: ClaimUse, placement: Placement, *, is_handed: bool
    ) -> ClaimWrite | str | None:
        """What is to be written; a text if the claim cannot be the pod's, None if it is already."""
        record, request = self._book.get(use.key, use.uid), prepared.request
        title = f"ResourceClaim {use.key}"
        if record is None or record.claim.metadata.deletion_timestamp:
            return f"{title} was deleted"
        if record.state is not WriteState.IDLE:
            return f"{title} is being written"
        if self._is_taken_over(record.claim, use.fence):
            return f"{title}: {TAKEN_OVER}"
        consumers = record.claim.status.reserved_for or ()
        if not any(each.uid == request.uid for each in consumers):
            consumers = (*consumers, Consumer(resource="pods", name=request.name, uid=request.uid))
        if len(consumers) > MAX_CONSUMERS:
            return f"{title} is used by {MAX_CONSUMERS} pods already"
        if record.is_allocated:
            if record.facts is None or record.facts.node != placement.node:
                where = "by another driver" if record.facts is None else f"on node {record.facts.node}"
                return f"{title} was allocated {where} meanwhile"
            if consumers == record.claim.status.reserved_for:
                return None
            return ClaimWrite(self, record, record.claim.status, {"reservedFor": consumers}, known_fence=use.fence)
        if use.ask is None or is_handed:
            return f"{title} was released meanwhile"  # Nothing is reserved for it any more.
        pool = self._pools.get(placement.node)
        if pool is None or pool.problem:
            return f"the devices of node {placement.node} are not known: {pool.problem if pool else 'no ResourceSlice'}"
        grants = claim_grants(request, placement.grants)[record.claim.metadata.name]
        allocated = allocation(use.ask, grants, pool, new_share=_new_share)
        if isinstance(allocated, BadClaim):
            return allocated.message
        shown = ResourceClaim(record.claim.metadata, record.claim.spec, ClaimStatus(allocated, consumers))
        status = {"allocation": allocated, "reservedFor": consumers}
        return ClaimWrite(self, record, record.claim.status, status, self._book.facts(shown), use.fence)

    def _start(self, write: ClaimWrite, *, pod: str) -> None:
        self._book.start(write.record, pod=pod, facts=write.facts)
        self._under_way[write.record.uid] = asyncio.get_running_loop().create_future()

    def _end(self, record: ClaimRecord) -> None:
        ended = self._under_way.pop(record.uid, None)
        if ended is not None:
            ended.set_result(None)

    async def _send(self, write: ClaimWrite) -> str:
        """From WRITING to the end; empty if it is written, or why it is not."""
        record, book = write.record, self._book
        try:
            answer = await write_version(write)
        except KubeError as error:
            book.lose_track(record)
            return str(error)
        except BaseException:
            book.lose_track(record)
            raise
        finally:
            self._end(record)
        if isinstance(answer, str):
            book.finish(record)
            return answer
        book.finish(record, answer)
        if write.facts is not None:
            self.allocated += 1
        return ""

    async def _protect(self, claim: ResourceClaim) -> ResourceClaim:
        """No claim goes while pods use it, as with kube-scheduler; that a pod owns it changes nothing."""
        finalizers = claim.metadata.finalizers or []
        if FINALIZER in finalizers:
            return claim
        return await self._api.mark_claim(claim, {}, finalizers=[*finalizers, FINALIZER])

    def _is_taken_over(self, claim: ResourceClaim, known: str) -> bool:
        return self._tenure.is_taken_over((claim.metadata.annotations or {}).get(keys.FENCE, ""), known=known)

    async def _touch(self, record: ClaimRecord) -> ResourceClaim:
        """The claim in a version for which no write was sent yet."""
        if not self._tenure.is_held():
            return await self._api.get_claim(record.claim.metadata.namespace, record.claim.metadata.name)
        return await self._api.mark_claim(record.claim, {keys.FENCE: self._tenure.next_touch()})


def _lacks_protection(record: ClaimRecord) -> bool:
    metadata = record.claim.metadata
    is_ours = record.facts is not None and record.state is WriteState.IDLE
    return is_ours and not metadata.deletion_timestamp and FINALIZER not in (metadata.finalizers or ())


def _all_grants(facts: PodFacts | None) -> Grants:
    containers = facts.grants.values() if facts is not None else ()
    return tuple(grant for every in containers for grants in every for grant in grants)


def _new_share() -> str:
    return str(uuid.uuid4())


def _shares(found: Allocation | None) -> frozenset[tuple[str, str, str | None]]:
    """What tells one allocation from another."""
    results = () if found is None else found.devices.results or ()
    return frozenset((each.pool, each.device, each.share_id) for each in results)
