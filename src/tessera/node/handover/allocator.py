"""Answers kubelet's Allocate and GetPreferredAllocation.

Calls are served one after the other in the order of their arrival; a caller that goes away disturbs none of them. The
slice of a container that depends on Allocate is answered only if the API shows its pod in handover after kubelet asked:
until that handover ends, the scheduler binds no other pod that could be asking. Without a node lock nothing is
written to the API before the answer; with one, HAMi's protocol is kept to the letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import structlog

from tessera.core.model.grants import Span
from tessera.kube.errors import KubeError
from tessera.node.fleet import preferred
from tessera.node.handover.allocation_state import (
    Allocation,
    AllocationState,
    Ambiguous,
    DownwardApi,
    Found,
    Match,
    NotFound,
    WrongCount,
)
from tessera.node.handover.assignments import Assignment, BoundPod, Holding
from tessera.node.handover.checkpoint import Checkpoint, Record
from tessera.node.handover.pod_cache import Owner, PodCache
from tessera.node.handover.status_writer import StatusWriter
from tessera.node.handover.verifier import Verifier
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.node.watched_value import is_set_within
from tessera.services.exposition import Counter, Registry
from tessera.wire import keys

log = structlog.get_logger(__name__)

MAX_CALLS = 64
"""waiting; kubelet itself makes one at a time"""
SYNC_S = 10.0
"""seconds that the first list of pods may take while kubelet waits"""
WATCH_LAG_S = 2.0
"""seconds that the pod watch may be behind kubelet's own before the pods are read from the API"""
CHECKPOINT_S = 5.0
"""seconds that a disk which hangs may keep kubelet waiting"""
OVERDUE_S = 8.0
"""seconds after which the scheduler may let other pods pass one in handover: its 10 for pods that use the downward API,
less what the watch may be behind"""

Ids = Sequence[str]


class Admission(Protocol):
    """The account of the node, `Arbiter`."""

    async def admit(self, askers: Sequence[Holding], begin: Callable[[], None]) -> None:
        """Calls `begin` if what each of them asks for fits beside everything that was handed out, with no pause in
        between. Raises AllocationRefused."""
        ...


class Result(Enum):
    """How an Allocate ended, for one container; the value is the metric's label."""

    HANDED_OVER = "handed_over"
    UNCERTAIN = "uncertain"
    """several containers can have asked, and the slice is right for each of them"""
    DOWNWARD_API = "downward_api"
    """the container reads its slices from its own pod"""
    AMBIGUOUS = "ambiguous"
    NO_POD = "no_pod"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class _Call:
    containers: Sequence[Ids]
    answer: asyncio.Future[list[ContainerResponse]]
    after: int
    """the last call that was answered before this one came"""
    allocations: list[Allocation] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    pods: dict[str, BoundPod] = field(default_factory=dict)
    """by uid: those that were certainly meant"""


@dataclass(frozen=True, slots=True)
class _Question:
    """kubelet's last GetPreferredAllocation, which comes right before the Allocate for the same container."""

    available: frozenset[str]
    must_include: frozenset[str]
    count: int

    def is_about(self, ids: frozenset[str]) -> bool:
        return len(ids) == self.count and self.must_include <= ids <= self.available | self.must_include


class SliceAllocator:
    """The allocator of one agent. `allocate` waits until `run` has served it."""

    def __init__(
        self,
        mode: SharingMode,
        pods: PodCache,
        state: AllocationState,
        *,
        writer: StatusWriter,
        verifier: Verifier,
        checkpoint: Checkpoint,
        registry: Registry,
    ) -> None:
        self.mode = mode
        """may be changed between calls"""
        self.admission: Admission | None = None
        """the same; None while the mode refuses everything"""
        self._pods = pods
        self._state = state
        self._writer = writer
        self._verifier = verifier
        self._checkpoint = checkpoint
        self._results = Counter(
            registry,
            "tessera_agent_allocations_total",
            "Containers that kubelet asked devices for",
            label="result",
            values=[result.value for result in Result],
        )
        self._calls: asyncio.Queue[_Call] = asyncio.Queue(MAX_CALLS)
        self._question: _Question | None = None
        self._answered = 0
        """calls"""

    async def allocate(self, containers: Sequence[Ids]) -> list[ContainerResponse]:
        """One answer for each container's device ids. Raises AllocationRefused."""
        call = _Call(containers, asyncio.get_running_loop().create_future(), after=self._answered)
        try:
            self._calls.put_nowait(call)
        except asyncio.QueueFull:
            raise AllocationRefused(f"more than {MAX_CALLS} allocations at once") from None
        return await call.answer

    def prefer(self, available: Ids, must_include: Ids, count: int) -> Ids:
        """Devices of the cards that the next container's slices are on; none where that is not known. Never raises."""
        self._question = _Question(frozenset(available), frozenset(must_include), count)
        found = self._match(
            self._pods.all(),
            count,
            reused=frozenset(must_include),
            after=self._answered,
            lock_owner=self._pods.node_view.lock_owner,
        )
        # Where only pods that use the downward API can ask, the first one to be bound is the best guess.
        if not isinstance(found, Found | DownwardApi):
            return ()
        cards = [each.uuid for each in found.assignment.slices]
        return preferred(cards, available=available, must_include=must_include, count=count)

    async def run(self) -> None:
        """Serve calls until cancelled; calls that wait then are refused."""
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
            answers = [await self._answer(call, ids) for ids in call.containers]
            if call.answer.done():
                # kubelet went away and will ask again.
                self._take_back(call)
                return
            self._answered += 1
            for each in call.allocations:
                each.in_progress, each.number = False, self._answered
            await self._write(call)
        except Exception as error:
            # A fault in one call must not end the calls of other pods.
            if not isinstance(error, AllocationRefused):
                log.exception("allocation failed")
                error = AllocationRefused(f"a fault in the node agent: {type(error).__name__}: {error}")
            self._take_back(call)
            if not call.answer.done():
                call.answer.set_exception(error)
        else:
            if not call.answer.done():
                call.answer.set_result(answers)
        finally:
            self._verifier.nudge()

    async def _answer(self, call: _Call, ids: Ids) -> ContainerResponse:
        found, pods = await self._find(call, ids)
        spans = {pod.key.uid: pod.spans for pod in pods}
        if isinstance(found, DownwardApi):
            allocation = Allocation(frozenset(ids), frozenset({found.assignment.key}))
            await self._admit(call, allocation, found.askers, spans)
            self._count(Result.DOWNWARD_API)
            self._checkpoint.note(found.askers, spans)
            return await self._made_ready(self.mode.hand_over_downward_api(ids), None)
        if not isinstance(found, Found):
            raise await self._refusal(found, len(ids))
        pod = next(each for each in pods if each.key == found.assignment.pod) if found.is_certain else None
        allocation = Allocation(frozenset(ids), frozenset(each.key for each in found.askers), found.assignment)
        try:
            await self._admit(call, allocation, found.askers, spans)
        except AllocationRefused:
            await self._fail(pod)
            raise
        self._count(Result.HANDED_OVER if found.is_certain else Result.UNCERTAIN)
        if pod is not None:
            call.pods[pod.key.uid] = pod
        # A later process must know the answer as soon as kubelet does: it would give this slice to the next container.
        own = spans[found.assignment.pod.uid]
        record = Record(tuple(sorted(ids)), found.assignment, tuple(sorted(allocation.askers)), own)
        call.records.append(record)
        kept = asyncio.ensure_future(self._checkpoint.add(record))
        try:
            return await self._made_ready(self.mode.hand_over(found.assignment, ids, certain=found.is_certain), pod)
        finally:
            await asyncio.wait([kept], timeout=CHECKPOINT_S)

    async def _admit(
        self, call: _Call, allocation: Allocation, askers: Sequence[Assignment], spans: Mapping[str, tuple[Span, ...]]
    ) -> None:
        """Counts the answer as given. Raises AllocationRefused if it does not fit for one that can have asked."""
        if self.admission is None:
            self._add(call, allocation)
            return
        wanted = [Holding(assignment.pod, (assignment,), spans[assignment.pod.uid]) for assignment in askers]
        try:
            await self.admission.admit(wanted, lambda: self._add(call, allocation))
        except AllocationRefused:
            self._count(Result.REFUSED)
            raise

    def _add(self, call: _Call, allocation: Allocation) -> None:
        allocation.in_progress = True
        self._state.add(allocation)
        call.allocations.append(allocation)

    async def _made_ready(self, making: Awaitable[ContainerResponse], pod: BoundPod | None) -> ContainerResponse:
        """`pod` is the one that was certainly meant."""
        try:
            return await making
        except AllocationRefused:
            await self._fail(pod)
            raise
        except Exception as error:
            log.exception("slice not made ready", pod=str(pod.key) if pod is not None else "")
            await self._fail(pod)
            raise AllocationRefused(f"the slice could not be made ready: {type(error).__name__}: {error}") from error

    async def _refusal(self, found: Match, count: int) -> AllocationRefused:
        node = self._pods.node
        if isinstance(found, Ambiguous):
            self._count(Result.AMBIGUOUS)
            names = ", ".join(str(pod) for pod in found.pods)
            text = f"{count} devices could be meant for different slices on node {node}: {names}"
            if len(found.pods) == 1 and self._state.has_no_record(found.pods[0].uid, self._pods.inherited):
                text += "; no record shows which of its containers were answered before the agent restarted"
            return AllocationRefused(text)
        if isinstance(found, WrongCount):
            self._count(Result.REFUSED)
            await self._fail(self._pods.get(found.assignment.pod.uid))
            wanted = len(found.assignment.slices)
            text = f"device number not matched: {found.assignment.pod} is to get {wanted}, asked for {count}"
            return AllocationRefused(text)
        self._count(Result.NO_POD)
        unreadable = [pod for pod in self._pods.all() if pod.in_handover and pod.problem]
        named = [pod for pod in unreadable if pod.key[:2] == self._pods.node_view.lock_owner]
        for pod in named:
            await self._fail(pod)
        reasons = "".join(f"; {pod.key}: {pod.problem}" for pod in named or unreadable)
        return AllocationRefused(f"no binding pod found on node {node} for {count} devices{reasons}")

    def _count(self, result: Result) -> None:
        self._results.add(value=result.value)

    # -- which container asks

    async def _find(self, call: _Call, ids: Ids) -> tuple[Match, Sequence[BoundPod]]:
        """The match, and the pods that it was found among."""
        question, self._question = self._question, None
        # kubelet asks for no preference where all devices are those of init containers of the same pod.
        wanted = frozenset(ids)
        reused = question.must_include if question is not None and question.is_about(wanted) else wanted
        await self._synced()
        # kubelet cannot have stored what was answered after it asked.
        undelivered = [*call.allocations, *self._state.answered_after(call.after)]
        if self._state.is_unsettled or not self._verifier.has_asked:
            await self._verifier.confirm(undelivered)

        def match(pods: Sequence[BoundPod], lock_owner: Owner | None) -> Match:
            return self._match(pods, len(ids), ids=wanted, reused=reused, after=call.after, lock_owner=lock_owner)

        loop = asyncio.get_running_loop()
        deadline = loop.time() + WATCH_LAG_S
        while True:
            version, pods = self._pods.version.value, self._pods.all()
            found = match(pods, self._pods.node_view.lock_owner)
            if await self._is_proven(found):
                return found, pods
            is_behind = isinstance(found, NotFound | WrongCount | Ambiguous) or self._lock_is_ahead()
            if not is_behind or await self._pods.version.other_than(version, within=deadline - loop.time()) == version:
                break
        current = await self._pods.read_all()
        if current is None:
            # The API may be away for a moment only, and the watch gets its time.
            await asyncio.sleep(deadline - loop.time())
            current = await self._pods.read_all()
        pods = self._pods.all() if current is None else current
        found = match(pods, await self._lock_owner())
        if current is None and isinstance(found, Found):
            # The pod may be gone, and another one that is not known here may be asking.
            self._count(Result.REFUSED)
            raise AllocationRefused(
                f"the API cannot be asked whether {found.assignment.pod} still waits for its devices"
            )
        return found, pods

    async def _is_proven(self, found: Match) -> bool:
        """Whether no pod that the watch has not shown yet can be asking instead."""
        if self._lock_is_ahead() or self._lock_is_overdue():
            return False
        if not isinstance(found, Found | DownwardApi):
            return False
        pod = found.assignment.pod
        # After this time the scheduler may have let a pod pass this one.
        return self._pods.age(pod.uid) < OVERDUE_S and await self._pods.is_in_handover(pod)

    def _lock_is_ahead(self) -> bool:
        """Whether the lock names a pod that the watch has not shown: it is bound, or about to be."""
        owner = self._pods.node_view.lock_owner
        return owner is not None and self._pods.named(*owner) is None

    def _lock_is_overdue(self) -> bool:
        """Whether the lock names a pod that has held it for so long that it may have passed to another one unseen."""
        owner = self._pods.node_view.lock_owner
        pod = self._pods.named(*owner) if owner is not None else None
        return pod is not None and self._pods.age(pod.key.uid) >= OVERDUE_S

    async def _lock_owner(self) -> Owner | None:
        """The pod that the node lock names now. Raises AllocationRefused."""
        if self._pods.node_view.lock_owner is None:
            return None
        try:
            return await self._pods.read_lock()
        except (KubeError, TimeoutError) as error:
            self._count(Result.REFUSED)
            raise AllocationRefused(f"the lock of node {self._pods.node} cannot be read: {error}") from error

    async def _synced(self) -> None:
        if not await is_set_within(self._pods.ready, SYNC_S):
            self._count(Result.REFUSED)
            raise AllocationRefused(f"the pods of node {self._pods.node} are not known yet")

    def _match(
        self,
        pods: Sequence[BoundPod],
        count: int,
        *,
        ids: frozenset[str] = frozenset(),
        reused: frozenset[str],
        after: int,
        lock_owner: Owner | None,
    ) -> Match:
        return self._state.find(
            pods,
            count,
            ids=ids,
            reused=reused,
            after=after,
            inherited=self._pods.inherited,
            lock_owner=lock_owner,
        )

    # -- afterwards

    async def _write(self, call: _Call) -> None:
        """Write how far the pods are: at once where they hold the node lock, otherwise behind the answer."""
        for uid, pod in call.pods.items():
            if not self._pods.node_view.lock_concerns(pod.key[:2]):
                self._writer.enqueue(uid)
                continue
            try:
                # The cached object, if there is one: the writer recognises by it what it has written.
                after = await self._writer.write(self._pods.get(uid) or pod)
            except KubeError as error:
                await self._fail(pod)
                raise AllocationRefused(f"patch of the annotations of {pod.key} failed: {error}") from error
            if after.phase != keys.PHASE_ALLOCATING:
                await self._writer.release_lock(pod.key[:2])

    async def _fail(self, pod: BoundPod | None) -> None:
        """The pod that was certainly meant cannot get its slice."""
        if pod is None:
            return
        self._state.failed.add(pod.key.uid)
        if not self._pods.node_view.lock_concerns(pod.key[:2]):
            return  # The verifier has it written.
        try:
            await self._writer.write(pod)
        except KubeError as error:
            log.warning("failure not written yet", pod=str(pod.key), error=str(error))
        await self._writer.release_lock(pod.key[:2])

    def _take_back(self, call: _Call) -> None:
        for allocation in call.allocations:
            self._state.take_back(allocation)
        for record in call.records:
            self._checkpoint.discard(record)
