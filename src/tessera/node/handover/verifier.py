"""Compares what was answered with what kubelet says that containers hold, and ends handovers through it.

Containers that carry their slices leave no trace in Allocate: that they hold devices, or that their pod runs, is how
their handover ends. For the others it shows who took whose answer: an equal one is a swap and is recorded, a different
one is reported on the pod and counted. Nothing is taken away from anybody here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tessera.kube.event_broadcaster import ObjectRef
from tessera.node.handover.answers import Given, spot
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim
from tessera.node.handover.ending import owed
from tessera.node.handover.holdings import Holdings
from tessera.node.handover.metrics import HandoverMetrics
from tessera.node.handover.pods import NodePods
from tessera.node.handover.progress import Progress
from tessera.node.handover.records import Records
from tessera.node.handover.status_writer import HandoverWriter

log = structlog.get_logger(__name__)

REASON = "SliceMismatch"
GATHER_S = 0.05
"""seconds to collect before kubelet is asked: it enters the devices of a container after it has our answer"""
LOOK_AGAIN_S = 2.0
"""seconds between questions while an answer's holder is unknown"""

Report = Callable[[ObjectRef, str, str, str], None]
"""object, type, reason and message of an event"""


class Verifier:
    """`nudge` after every answer; the rest happens while `run` runs."""

    def __init__(
        self,
        pods: NodePods,
        progress: Progress,
        holdings: Holdings,
        writer: HandoverWriter,
        records: Records,
        *,
        report: Report,
        metrics: HandoverMetrics,
    ) -> None:
        self._pods = pods
        self._progress = progress
        self._holdings = holdings
        self._writer = writer
        self._records = records
        self._report = report
        self._metrics = metrics
        self._asked = asyncio.Event()
        self._seen = -1
        """version of the pods that were looked at"""

    def nudge(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._news()
            await asyncio.sleep(GATHER_S)
            self._asked.clear()
            self._seen = self._pods.version
            await self.verify()

    async def verify(self) -> None:
        """Once: learn, compare, and see what has to be written."""
        for pod in self._pods.all():
            if pod.started or pod.terminal:
                self._progress.finish(pod)
        if self._progress.answers.awaits_holder:
            held = await self._holdings.ask()
            if held is not None:
                self._progress.learn(held, self._pods.all())
        for given in self._progress.answers.unverified:
            given.verified = True
            self._compare(given)
        for pod in self._pods.all():
            uid = pod.key.uid
            if owed(pod, done=self._progress.done(uid), failed=self._progress.has_failed(uid)):
                self._writer.owe(uid)

    async def _news(self) -> None:
        """An answer, a change of a pod, or the time to look again."""
        look_again = LOOK_AGAIN_S if self._progress.answers.awaits_holder else None
        waits = [asyncio.ensure_future(self._asked.wait()), asyncio.ensure_future(self._pods.changed(since=self._seen))]
        try:
            await asyncio.wait(waits, timeout=look_again, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _compare(self, given: Given) -> None:
        pod = self._pods.get(given.holder[0]) if given.holder is not None else None
        if pod is None or given.holder is None or pod.claims_problem:
            return
        claim = pod.claim(given.holder[1])
        if claim is not None and self._progress.carries(claim) and len(claim.slices) == len(given.ids):
            return
        problem = self._problem(given, claim)
        if problem:
            self._metrics.mismatched()
            log.error("container holds something else than was meant", pod=str(pod.key), problem=problem)
            ref = ObjectRef("Pod", pod.key.namespace, pod.key.name, pod.key.uid)
            self._report(ref, "Warning", REASON, f"container {_name(pod, given.holder[1])} {problem}")
        elif given.claim is not None and spot(given.claim) != given.holder:
            self._metrics.swapped()
            log.info("containers of equal slices swapped", got=str(given.claim.pod), pod=str(pod.key))
        if given.claim is not None and not self._progress.carries(given.claim):
            self._records.add(given)

    def _problem(self, given: Given, claim: Claim | None) -> str:
        if claim is None:
            return "holds devices although none were given to it"
        if len(given.ids) != len(claim.slices):
            return f"holds {len(given.ids)} devices but was to get {len(claim.slices)}"
        if given.claim is None or self._progress.carries(given.claim):
            return "got no slice: kubelet asked for it before its pod was known here"
        if given.claim.what != claim.what:
            return f"got the slice of container {given.claim.container} of {given.claim.pod}"
        return ""


def _name(pod: BoundPod, position: int) -> str:
    return pod.containers[position] if position < len(pod.containers) else str(position)
