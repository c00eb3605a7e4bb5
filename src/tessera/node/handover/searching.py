"""Finds whom an Allocate is for, with the patience and the questions that it takes.

    match --found--> answer
      |--ambiguous, or everybody was answered--> ask kubelet once who holds what --> match again
      |--nobody, or one who was answered before or is overdue--> wait for the watch, which may be behind --> match again
      +--still nobody--> one who may not have asked after all, or refuse; or the pod that the lock names fails

No API call, and in the plain case no waiting at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from tessera.node.handover.answers import Given
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim
from tessera.node.handover.holdings import Holdings
from tessera.node.handover.matching import Ambiguous, Match, Meant, NobodyWaits, Welcome, match
from tessera.node.handover.pods import NodePods
from tessera.node.handover.progress import Progress
from tessera.node.handover.steering import Steering

WATCH_BEHIND_S = 2.0
"""seconds that the pod watch may be behind kubelet's own"""
OVERDUE_S = 8.0
"""seconds after which the scheduler may let pods that carry their slices pass one that depends on the answer: its 10
less what the watch may be behind"""
SYNC_S = 10.0
"""seconds that the first list of pods may take while kubelet waits"""


class Search:
    """Over the pods of one node."""

    def __init__(self, pods: NodePods, progress: Progress, holdings: Holdings) -> None:
        self._pods = pods
        self._progress = progress
        self._holdings = holdings
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
        evidence = self._progress.answers.taken_over(ids) if taken_over is None else taken_over
        asked, in_doubt, taken_over = False, self._in_doubt(), None
        while True:
            if self._progress.shaken or (in_doubt and not asked):
                asked = True
                # What init containers have had is only worth something together with what the others hold.
                taken_over = evidence if await self._ask(given) else None
            version = self._pods.version
            found: Match = NobodyWaits() if self._is_behind() else self._match(len(ids), taken_over, confirmed=asked)
            unknown = isinstance(found, Ambiguous) or (isinstance(found, Meant) and found.certain and not found.known)
            if isinstance(found, Meant | Welcome) and (asked or not unknown) and not self._is_late(found):
                return found
            if not asked and (unknown or self._progress.answers.open):
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
        return self._late_comer(len(ids)) if isinstance(found, NobodyWaits) else found

    def _late_comer(self, count: int) -> Match:
        """kubelet asks and nobody seems to wait: somebody was taken to have asked who has not."""
        found = self._match(count, None, confirmed=True, unproven=True)
        waiting = self._progress.waiting(self._pods.all(), unproven=True)
        claims = [claim for pod in waiting for claim in pod.claims if len(claim.slices) == count]
        dependent = dict.fromkeys(claim.pod for claim in claims if not self._progress.carries(claim))
        return Ambiguous(tuple(dependent)) if isinstance(found, Welcome) and dependent else found

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

    def _in_doubt(self) -> bool:
        """Whether a container that depends on the answer may have had it, or had it from an earlier process."""
        waiting = self._progress.waiting(self._pods.all())
        return self._progress.has_restored or any(
            pod.doubtful and not all(self._progress.carries(claim) for claim in pod.claims) for pod in waiting
        )

    def _match(
        self, count: int, taken_over: Collection[str] | None, *, confirmed: bool, unproven: bool = False
    ) -> Match:
        waiting = self._progress.waiting(self._pods.all(), taken_over=taken_over, unproven=unproven)
        return match(
            waiting,
            count=count,
            travels=self._progress.travels,
            owner=self._pods.lock.owner,
            underway=self._progress.underway,
            confirmed=confirmed,
            open_answers=0 if unproven else self._progress.open_answers(count, waiting),
        )

    async def _ask(self, given: Collection[Given]) -> bool:
        """Whether kubelet answered."""
        # Before: whatever shakes it meanwhile asks for another look.
        self._progress.shaken = False
        held = await self._holdings.ask()
        if held is not None:
            self._progress.learn(held, self._pods.all())
            self._progress.reopen_lost(held, self._pods.all(), but=given)
        return held is not None

    def is_sure(self, found: Match) -> bool:
        """Whether nobody else can be asking, as far as pods and answers are known."""
        return not self._in_doubt() and not self._is_late(found)

    def _is_late(self, found: Match) -> bool:
        """Whether a pod that the watch has not shown yet may well ask instead of the one that was found."""
        if isinstance(found, Meant) and found.known and self._is_overdue(found.claim):
            return True
        # Beside a pod that has not been answered yet, the scheduler binds none that could be mixed up with it.
        among = found.among if isinstance(found, Meant | Welcome) else ()
        return bool(among) and all(map(self._progress.is_late, among))

    def _is_overdue(self, claim: Claim) -> bool:
        """Whether the scheduler may have let others pass its pod; where a lock says who is meant, it does not."""
        if not self._progress.travels or self._pods.lock.owner is not None or claim.pod == self._progress.underway:
            return False
        return self._pods.age(claim.pod.uid) >= OVERDUE_S

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
