"""Answers kubelet's Allocate and GetPreferredAllocation.

Calls go one after the other in the order of their arrival: one worker, which a caller that goes away does not disturb.
What is answered is remembered before anything is written, so that no second call sees it again. Without a lock on the
node nothing is written before the answer; with one, HAMi's protocol is kept to the letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from tessera.kube.errors import KubeError
from tessera.node.handover.answers import Given, spot
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim
from tessera.node.handover.locks import NodeLockRelease
from tessera.node.handover.matching import Ambiguous, Match, Meant, Mismatched, Welcome
from tessera.node.handover.metrics import HandoverMetrics, Result
from tessera.node.handover.pods import NodePods
from tessera.node.handover.progress import Progress
from tessera.node.handover.records import Records
from tessera.node.handover.searching import Search
from tessera.node.handover.status_writer import HandoverWriter
from tessera.node.handover.verifier import Verifier
from tessera.node.kubelet.device_ids import preferred
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.wire import keys

log = structlog.get_logger(__name__)

MOST_CALLS = 64
"""waiting; kubelet itself makes one at a time"""

Ids = Sequence[str]


@dataclass(slots=True, eq=False)
class _Call:
    containers: Sequence[Ids]
    answer: asyncio.Future[list[ContainerResponse]]
    given: list[Given] = field(default_factory=list)


class SliceAllocator:
    """The Allocator of one agent. `allocate` waits until `run` has served it."""

    def __init__(
        self,
        mode: SharingMode,
        search: Search,
        *,
        pods: NodePods,
        progress: Progress,
        writer: HandoverWriter,
        locks: NodeLockRelease,
        records: Records,
        verifier: Verifier,
        metrics: HandoverMetrics,
    ) -> None:
        self.mode = mode
        """may be changed between calls"""
        self._search = search
        self._pods = pods
        self._progress = progress
        self._writer = writer
        self._locks = locks
        self._records = records
        self._verifier = verifier
        self._metrics = metrics
        self._calls: asyncio.Queue[_Call] = asyncio.Queue(MOST_CALLS)

    async def allocate(self, containers: Sequence[Ids]) -> list[ContainerResponse]:
        """One answer for each container's device ids. Raises Refused."""
        call = _Call(containers, asyncio.get_running_loop().create_future())
        try:
            self._calls.put_nowait(call)
        except asyncio.QueueFull:
            raise AllocationRefused(f"more than {MOST_CALLS} allocations at once") from None
        return await call.answer

    def prefer(self, available: Ids, must_include: Ids, count: int) -> Ids:
        """Devices of the cards that the next container's slices are on; none where nobody can say. Never raises."""
        self._search.steering.asked(available, must_include, count)
        found = self._search.now(count)
        # Where all that may ask carry their slices, the first to be bound is the best guess, and no more than a hint.
        claim = found.claim if isinstance(found, Meant) else found.among[0] if isinstance(found, Welcome) else None
        if claim is None:
            return ()
        cards = [each.uuid for each in claim.slices]
        chosen = preferred(cards, available=available, must_include=must_include, count=count)
        if chosen and isinstance(found, Meant) and found.known and self._search.is_sure(found):
            self._search.steering.propose(chosen, found, now=asyncio.get_running_loop().time())
        return chosen

    async def run(self) -> None:
        """Serve calls, until cancelled; whoever waits then is refused."""
        call: _Call | None = None
        try:
            while True:
                call = await self._calls.get()
                if not call.answer.done():
                    await self._serve(call)
        finally:
            waiting = [] if call is None else [call]
            while not self._calls.empty():
                waiting.append(self._calls.get_nowait())
            for each in waiting:
                if not each.answer.done():
                    each.answer.set_exception(AllocationRefused("the node agent is stopping"))

    # -- one call

    async def _serve(self, call: _Call) -> None:
        try:
            answers = [await self._container(call, ids) for ids in call.containers]
            if call.answer.done():
                # kubelet went away and will ask again.
                self._take_back(call)
                return
            await self._write(call)
        except AllocationRefused as refusal:
            self._progress.shaken = True
            self._take_back(call)
            if not call.answer.done():
                call.answer.set_exception(refusal)
        else:
            if not call.answer.done():
                call.answer.set_result(answers)
        finally:
            self._verifier.nudge()

    async def _container(self, call: _Call, ids: Ids) -> ContainerResponse:
        if not await self._search.synced():
            self._metrics.allocated(Result.REFUSED)
            raise AllocationRefused(f"the pods of node {self._pods.node} are not known yet")
        found = await self._search.find(ids, given=call.given)
        if isinstance(found, Meant):
            given = self._gave(ids, found.claim, found.among, certain=found.known, slices=self._slices(found.claim))
            self._metrics.allocated(Result.HANDED_OVER if found.certain else Result.UNCERTAIN)
        elif isinstance(found, Welcome):
            claim = found.among[0] if len(found.among) == 1 else None
            given = self._gave(ids, claim, found.among, certain=claim is not None)
            self._metrics.allocated(Result.WELCOMED)
        else:
            raise await self._refusal(found, len(ids))
        call.given.append(given)
        if not (isinstance(found, Meant) and found.known):
            return await self._answered(found, given, ids)
        self._records.add(given)
        if self._search.is_shown(found.claim):
            return await self._answered(found, given, ids)
        # A later process must know of it as soon as kubelet does: it would answer the next container with this slice.
        kept = asyncio.ensure_future(self._records.keep(given))
        try:
            return await self._answered(found, given, ids)
        finally:
            await asyncio.wait([kept])

    def _gave(
        self, ids: Ids, claim: Claim | None, among: Sequence[Claim], *, certain: bool, slices: Claim | None = None
    ) -> Given:
        pod = self._pods.get(claim.pod.uid) if claim is not None else None
        return self._progress.gave(ids, claim, among, certain=certain, pod=pod, slices=slices)

    def _slices(self, claim: Claim) -> Claim:
        """What the container gets: its own, or those of the container of equal slices that took its own."""
        uid, position = self._progress.swaps.of(spot(claim))
        pod = self._pods.get(uid)
        found = pod.claim(position) if pod is not None else None
        return found if found is not None and found.what == claim.what else claim

    async def _answered(self, found: Meant | Welcome, given: Given, ids: Ids) -> ContainerResponse:
        meant = found.claim if isinstance(found, Meant) and found.known else None
        try:
            if isinstance(found, Meant):
                return await self.mode.hand_over(given.claim or found.claim, ids, certain=found.certain)
            return await self.mode.hand_over_downward_api(ids)
        except AllocationRefused:
            await self._fail(meant)
            raise
        except Exception as error:
            log.exception("slice not made ready", pod=str(meant.pod) if meant is not None else "")
            await self._fail(meant)
            raise AllocationRefused(f"the slice could not be made ready: {type(error).__name__}: {error}") from error

    async def _refusal(self, found: Match, count: int) -> AllocationRefused:
        node = self._pods.node
        if isinstance(found, Ambiguous):
            self._metrics.allocated(Result.AMBIGUOUS)
            names = ", ".join(str(pod) for pod in found.pods)
            return AllocationRefused(f"{count} devices could be meant for different slices on node {node}: {names}")
        if isinstance(found, Mismatched):
            self._metrics.allocated(Result.REFUSED)
            await self._fail(found.claim)
            wanted = len(found.claim.slices)
            return AllocationRefused(
                f"device number not matched: {found.claim.pod} is to get {wanted}, asked for {count}"
            )
        self._metrics.allocated(Result.NOBODY)
        unreadable = self._search.unreadable()
        named = [pod for pod in unreadable if pod.key[:2] == self._pods.lock.owner]
        for pod in named:
            await self._fail_pod(pod)
        reasons = "".join(f"; {pod.key}: {pod.problem}" for pod in named or unreadable)
        return AllocationRefused(f"no binding pod found on node {node} for {count} devices{reasons}")

    # -- afterwards

    async def _write(self, call: _Call) -> None:
        """Tell the API, at once where a lock says that others wait for it."""
        for key in dict.fromkeys(each.asker.pod for each in call.given if each.asker is not None and each.certain):
            pod = self._pods.get(key.uid)
            if pod is not None and self._pods.lock.concerns(key[:2]):
                await self._write_now(pod)
            else:
                self._writer.owe(key.uid)

    async def _write_now(self, pod: BoundPod) -> None:
        try:
            after = await self._writer.write(pod)
        except KubeError as error:
            await self._fail_pod(pod)
            raise AllocationRefused(f"patch of the annotations of {pod.key} failed: {error}") from error
        if after.phase != keys.PHASE_ALLOCATING:
            await self._locks.release(pod.key[:2])

    async def _fail(self, claim: Claim | None) -> None:
        """The pod that was certainly meant cannot get its slice."""
        pod = self._pods.get(claim.pod.uid) if claim is not None else None
        if pod is not None:
            await self._fail_pod(pod)

    async def _fail_pod(self, pod: BoundPod) -> None:
        self._progress.fail(pod.key.uid)
        if not self._pods.lock.concerns(pod.key[:2]):
            self._writer.owe(pod.key.uid)
            return
        try:
            await self._writer.write(pod)
        except KubeError as error:
            log.warning("failure not written yet", pod=str(pod.key), error=str(error))
            self._writer.owe(pod.key.uid)
        await self._locks.release(pod.key[:2])

    def _take_back(self, call: _Call) -> None:
        for given in call.given:
            self._progress.take_back(given)
            self._records.drop(given.ids)
