"""Finds whom an Allocate is for, with the patience and the questions that it takes.

    match --found--> answer
      |--ambiguous, or everybody was answered--> ask kubelet once who holds what --> match again
      |--nobody--> wait for the watch, which may be behind kubelet --> match again
      +--still nobody--> refuse, or the pod that the lock names fails

No API call, and in the plain case no waiting at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from tessera.node.handover.claims import Claim
from tessera.node.handover.holdings import Holdings
from tessera.node.handover.matching import Ambiguous, Match, Meant, NobodyWaits, Welcome, match
from tessera.node.handover.pods import NodePods
from tessera.node.handover.progress import Given, Progress
from tessera.node.handover.reading import BoundPod
from tessera.node.handover.steering import Steering

WATCH_BEHIND_S = 2.0
"""seconds that the pod watch may be behind kubelet's own"""
SYNC_S = 10.0
"""seconds that the first list of pods may take while kubelet waits"""


class Search:
    """Over the pods of one node."""

    def __init__(self, pods: NodePods, progress: Progress, holdings: Holdings, *, travels: bool) -> None:
        """`travels`: whether slices reach containers through their own environment; may be changed."""
        self._pods = pods
        self._progress = progress
        self._holdings = holdings
        self.travels = travels
        self.steering = Steering()
        self._asked_before = False

    def now(self, count: int) -> Match:
        """By what is known at this moment."""
        return self._match(count, None, confirmed=False)

    async def synced(self) -> bool:
        """Whether all pods are known, after some waiting."""
        try:
            async with asyncio.timeout(SYNC_S):
                await self._pods.ready.wait()
        except TimeoutError:
            return False
        if not self._asked_before:
            self._asked_before = True
            if any(pod.in_handover for pod in self._pods.all()):
                # An earlier process may have answered without a trace in the API.
                await self._ask(())
        return True

    async def find(self, ids: Sequence[str], *, given: Collection[Given] = ()) -> Match:
        """`given` are answers to the same call, which kubelet has not got yet."""
        # A question is for one call, whatever becomes of it.
        taken_over = self.steering.taken_over(ids)
        steered = self._steered(ids)
        if steered is not None:
            return steered
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WATCH_BEHIND_S
        if taken_over is None:
            taken_over = self._progress.taken_over(ids)
        asked = self._progress.shaken or self.in_doubt()
        # What init containers have had is only worth something together with what the others hold.
        told = await self._ask(given) if asked else False
        taken_over = taken_over if told else None
        while True:
            version = self._pods.version
            found: Match = NobodyWaits() if self._is_behind() else self._match(len(ids), taken_over, confirmed=asked)
            unknown = isinstance(found, Ambiguous) or (isinstance(found, Meant) and found.certain and not found.known)
            if isinstance(found, Meant | Welcome) and (asked or not unknown):
                return found
            if not asked and (unknown or self._progress.is_open):
                asked = True
                await self._ask(given)
                continue
            if isinstance(found, Ambiguous):
                return found
            if not await self._changed(version, deadline - loop.time()):
                break
        # kubelet asks again for what it lost in a restart.
        await self._ask(given)
        found = self._match(len(ids), taken_over, confirmed=True)
        if isinstance(found, NobodyWaits):
            self._progress.reopen_lent(self._pods.all())
            found = self._match(len(ids), taken_over, confirmed=True)
        return found

    def is_shown(self, claim: Claim) -> bool:
        """Whether kubelet tells a later process that the container has its devices."""
        pod = self._pods.get(claim.pod.uid)
        return self._holdings.speaks and pod is not None and claim.position not in pod.unlisted

    def unreadable(self) -> list[BoundPod]:
        """Pods in handover that nothing can be handed out to."""
        return [pod for pod in self._pods.all() if pod.in_handover and pod.problem]

    def _steered(self, ids: Sequence[str]) -> Meant | None:
        waiting = self._progress.waiting(self._pods.all())
        now = asyncio.get_running_loop().time()
        steered = self.steering.take(ids, [claim for pod in waiting for claim in pod.claims], now=now)
        owner = self._pods.lock.owner
        return steered if steered is not None and owner in (None, steered.claim.pod[:2]) else None

    def in_doubt(self) -> bool:
        """Whether a container that depends on the answer may have had it, or had it from an earlier process."""
        waiting = self._progress.waiting(self._pods.all())
        return self._progress.has_restored or any(
            pod.doubtful and not all(self.travels and claim.carried for claim in pod.claims) for pod in waiting
        )

    def _match(self, count: int, taken_over: Collection[str] | None, *, confirmed: bool) -> Match:
        waiting = self._progress.waiting(self._pods.all(), taken_over=taken_over)
        return match(
            waiting,
            count=count,
            travels=self.travels,
            owner=self._pods.lock.owner,
            underway=self._progress.underway,
            confirmed=confirmed,
            open_answers=self._progress.open_answers(count, waiting),
        )

    async def _ask(self, given: Collection[Given]) -> bool:
        """Whether kubelet answered."""
        held = await self._holdings.ask()
        self._progress.shaken = False
        if held is not None:
            self._progress.learn(held, self._pods.all())
            self._progress.reopen_lost(held, self._pods.all(), but=given)
        return held is not None

    def _is_behind(self) -> bool:
        """Whether the lock names a pod that the watch has not shown: it is bound, or about to be."""
        owner = self._pods.lock.owner
        return owner is not None and self._pods.named(*owner) is None

    async def _changed(self, since: int, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._pods.changed(since=since)
        except TimeoutError:
            return False
        return True
