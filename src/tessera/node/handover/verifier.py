"""Compares what was answered with what kubelet's PodResources API shows, and ends handovers through it.

Allocate does not tell which pod that uses the downward API asked: its handover ends when kubelet shows its devices, or
when it runs. A container that got another slice than it was assigned is reported on its pod and counted; nothing is
taken away from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

from tessera.kube.event_broadcaster import ObjectRef
from tessera.node.handover.allocation_state import Allocation, AllocationState, Held
from tessera.node.handover.assignments import Assignment
from tessera.node.handover.pod_cache import PodCache
from tessera.node.handover.status_writer import StatusWriter
from tessera.node.watched_value import is_set_within
from tessera.services.exposition import Counter, Registry
from tessera.wire import keys

log = structlog.get_logger(__name__)

REASON = "SliceMismatch"
GATHER_S = 0.05
"""seconds to collect answers before kubelet is asked: it stores the devices of a container after it has our answer"""
LOOK_AGAIN_S = 2.0
"""seconds between questions while an answer's holder is unknown"""
POD_RESOURCES_S = 1.0
"""deadline: kubelet answers in milliseconds, and may be waiting for us meanwhile"""

Report = Callable[[ObjectRef, str, str, str], None]
"""object, type, reason and message of an event"""


class PodResources(Protocol):
    """kubelet's PodResources API, for the resource of this agent."""

    async def list(self) -> Held: ...


class Verifier:
    """`nudge` after every answer; the rest happens while `run` runs."""

    def __init__(
        self,
        pods: PodCache,
        state: AllocationState,
        writer: StatusWriter,
        *,
        resources: PodResources | None,
        report: Report,
        registry: Registry,
    ) -> None:
        """`resources` is None where kubelet is not to be asked; `report` records an event."""
        self._pods = pods
        self._state = state
        self._writer = writer
        self._resources = resources
        self._report = report
        self._mismatches = Counter(
            registry,
            "tessera_agent_slice_mismatches_total",
            "Containers that hold another slice than they were assigned",
        )
        self._swaps = Counter(
            registry, "tessera_agent_slice_swaps_total", "Containers that got an equal slice instead of their own"
        )
        self.has_asked = False
        """whether kubelet has been asked at all"""
        self._is_silent = False
        self._nudged = asyncio.Event()
        """also set by every change of a pod"""

    def nudge(self) -> None:
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        self.nudge()
        with self._pods.version.waking(self._nudged):
            while True:
                await is_set_within(self._nudged, LOOK_AGAIN_S if self._state.awaits_holder else None)
                await asyncio.sleep(GATHER_S)
                self._nudged.clear()
                await self.verify()

    async def confirm(self, undelivered: Collection[Allocation] | None = None) -> bool:
        """Ask kubelet which container holds which devices (see `AllocationState.confirm`); whether it said so."""
        held = await self.held()
        self.has_asked = True
        if held is not None:
            self._state.confirm(held, self._pods.all(), inherited=self._pods.inherited, undelivered=undelivered)
        return held is not None

    async def verify(self) -> None:
        """Once: ask, compare, and enqueue what has to be written."""
        if self._state.awaits_holder:
            await self.confirm()
        for allocation in self._state:
            if allocation.holder is not None and not allocation.verified:
                allocation.verified = True
                self._compare(allocation)
        self._state.forget_verified(self._pods.all())
        for pod in self._pods.all():
            if self._writer.changes(pod):
                self._writer.enqueue(pod.key.uid)

    async def end_late_handovers(self) -> int:
        """Once: end handovers that are over although nothing was written, as a crash leaves them; their number."""
        if any(pod.in_handover for pod in self._pods.all()):
            await self.confirm()
        ended = 0
        for pod in self._pods.all():
            changes = self._writer.changes(pod)
            if changes and self._writer.enqueue(pod.key.uid):
                log.info("handover ended late", pod=str(pod.key), phase=changes.get(keys.BIND_PHASE, ""))
                ended += 1
        return ended

    @property
    def can_ask(self) -> bool:
        """Whether kubelet is to be asked at all."""
        return self._resources is not None

    async def held(self) -> Held | None:
        """Which container holds which devices; None where kubelet does not say."""
        if self._resources is None:
            return None
        try:
            async with asyncio.timeout(POD_RESOURCES_S):
                held = await self._resources.list()
        except Exception as error:
            # Whatever goes wrong there, pods are still handed over; their own status tells the rest.
            if not self._is_silent:
                log.warning("kubelet does not say who holds which devices", error=str(error) or type(error).__name__)
            self._is_silent = True
            return None
        if self._is_silent:
            log.info("kubelet says again who holds which devices")
        self._is_silent = False
        return held

    def _compare(self, allocation: Allocation) -> None:
        pod = self._pods.get(allocation.holder[0]) if allocation.holder is not None else None
        if pod is None or allocation.holder is None or pod.assignments_problem:
            return
        position = allocation.holder[1]
        assignment = pod.assignment(position)
        problem = self._problem(allocation, assignment, depends=self._state.depends_on_allocate(pod))
        if problem:
            self._mismatches.add()
            log.error("container holds another slice than it was assigned", pod=str(pod.key), problem=problem)
            ref = ObjectRef("Pod", pod.key.namespace, pod.key.name, pod.key.uid)
            self._report(ref, "Warning", REASON, f"container {pod.containers[position]} {problem}")
        elif (
            assignment is not None and allocation.assignment is not None and allocation.assignment.key != assignment.key
        ):
            self._swaps.add()

    def _problem(self, allocation: Allocation, assignment: Assignment | None, *, depends: bool) -> str:
        if assignment is None:
            return "holds devices although none were given to it"
        if len(allocation.ids) != len(assignment.slices):
            return f"holds {len(allocation.ids)} devices but was to get {len(assignment.slices)}"
        if not depends:
            return ""
        if allocation.assignment is None:
            return "got no slice: kubelet asked for it before its pod was known here"
        if allocation.assignment.what != assignment.what:
            return f"got the slice of container {allocation.assignment.container} of {allocation.assignment.pod}"
        return ""
