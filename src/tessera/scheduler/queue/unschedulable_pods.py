"""Refused pods, and which of them to wake when capacity is freed.

kube-scheduler leaves a refused pod asleep for up to five minutes. When the ledger gains room, the pods that fit now get
one annotation patched, and kube-scheduler asks again at once. Pods of one shape and with the same candidates fit or do
not fit together, so a backlog costs few decisions per shape. Other work gets its turn between two decisions. A pod
whose decision took more work than one filter call may do is among them, and the decision is finished here. This module
decides whom to wake; `engine` does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterator
from dataclasses import dataclass

from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates, Selected, Selector

WAKE_AT_ONCE = 8
"""pods of one shape woken by one change; the next pod that is bound makes kube-scheduler ask for all the others"""
LISTS_AT_ONCE = 8
"""candidate lists tried for one shape at one change; pods of one shape differ in them by node selectors"""
MAX_WORK = 1_500
"""checks of one request on one card that the plain rule makes at once: some 20 ms in which nothing else is served"""
PAUSE_S = 0.05
"""between two slices of such work, so that it never takes more than a third of the event loop"""
MAX_SLICES = 1_000
"""of so much work for one decision: 16 requests on 10,000 nodes with 8 cards take 850"""


@dataclass(slots=True)
class UnschedulablePod:
    """A refused pod."""

    request: PodRequest
    candidates: Candidates
    is_judged: bool
    """False if there was no decision yet"""
    is_woken: bool = False
    may_preempt: bool = False
    """it was refused since the preemptor looked at it last"""
    refusals: int = 0
    """decisions that refused it"""
    others: tuple[PodRequest, ...] = ()
    """what would do instead of the request"""

    @property
    def alternatives(self) -> tuple[PodRequest, ...]:
        return (self.request, *self.others)


class UnschedulablePods:
    """Refused pods by shape, in the order in which they were first refused."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, dict[str, UnschedulablePod]] = {}
        self._pods: dict[str, Hashable] = {}
        self.room = asyncio.Event()
        """set when capacity was freed since the last wake-up"""
        self.refused = asyncio.Event()
        """set when a pod was refused that may preempt others"""

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def __iter__(self) -> Iterator[UnschedulablePod]:
        for pods in list(self._shapes.values()):
            yield from list(pods.values())

    def refusals(self, uid: str) -> int:
        """How often a pod was refused since it was last placed."""
        shape = self._pods.get(uid)
        return 0 if shape is None else self._shapes[shape][uid].refusals

    def add(
        self,
        request: PodRequest,
        candidates: Candidates,
        *,
        is_judged: bool = True,
        others: tuple[PodRequest, ...] = (),
    ) -> bool:
        """Remember a refusal, or a decision that is not finished; True if it is the pod's first refusal."""
        shape = (request.shape, request.namespace, *(other.shape for other in others))
        if self._pods.get(request.uid, shape) != shape:
            self.remove(request.uid)
        pods = self._shapes.setdefault(shape, {})
        known = pods.get(request.uid)
        if known is None:
            known = pods[request.uid] = UnschedulablePod(request, candidates, is_judged, others=others)
            self._pods[request.uid] = shape
            is_first = is_judged
        else:
            is_first = is_judged and not known.is_judged
            known.candidates, known.is_judged, known.is_woken = candidates, known.is_judged or is_judged, False
        known.refusals += is_judged
        if is_judged and request.preempts_below is not None:
            known.may_preempt = True
            self.refused.set()
        return is_first

    def get(self, uid: str) -> UnschedulablePod | None:
        shape = self._pods.get(uid)
        return None if shape is None else self._shapes[shape][uid]

    def preemptors(self) -> list[UnschedulablePod]:
        """Pods that may preempt others and were refused since they were looked at last: the highest priority first,
        then in the order in which they were first refused."""
        found = [pod for uid in self._pods if (pod := self.get(uid)) is not None and pod.may_preempt]
        return sorted(found, key=lambda pod: -(pod.request.preempts_below or 0))

    def reconsider(self) -> None:
        """Other pods may have become victims since: let the preemptor look at all refused pods again."""
        for uid in self._pods:
            pod = self.get(uid)
            if pod is not None and pod.is_judged and pod.request.preempts_below is not None:
                pod.may_preempt = True
                self.refused.set()

    def remove(self, uid: str) -> None:
        """The pod was placed, deleted, or changed."""
        shape = self._pods.pop(uid, None)
        if shape is not None:
            pods = self._shapes[shape]
            del pods[uid]
            if not pods:
                del self._shapes[shape]

    def on_room(self) -> None:
        """Capacity was freed or added somewhere."""
        self.room.set()

    async def wake(self, selector: Selector) -> AsyncIterator[PodRequest]:
        """Pods that fit now, oldest first within a shape. Each is woken once until it is refused again."""
        for shape in list(self._shapes):
            known: dict[Candidates, bool] = {}
            woken = 0
            for pod in [pod for pod in self._shapes.get(shape, {}).values() if not pod.is_woken]:
                if pod.candidates not in known:
                    if len(known) == LISTS_AT_ONCE:
                        continue
                    known[pod.candidates] = await fits_any(selector, pod.alternatives, pod.candidates)
                if known[pod.candidates] and pod.request.uid in self._pods:
                    pod.is_woken = True
                    yield pod.request
                    woken += 1
                    if woken == WAKE_AT_ONCE:
                        break

    def on_wake_failed(self, uid: str) -> None:
        """The patch failed: the next change tries again."""
        shape = self._pods.get(uid)
        if shape is not None:
            self._shapes[shape][uid].is_woken = False


async def fits_any(selector: Selector, requests: tuple[PodRequest, ...], candidates: Candidates) -> bool:
    """Whether one of these alternatives fits, decided in slices between other work."""
    steps = selector.select_in_steps(requests, candidates, MAX_WORK)
    for _ in range(MAX_SLICES):
        try:
            next(steps)
        except StopIteration as end:
            await asyncio.sleep(0)
            return isinstance(end.value[1], Selected)
        await asyncio.sleep(PAUSE_S)
    return False


async def fits(selector: Selector, request: PodRequest, candidates: Candidates) -> bool:
    return await fits_any(selector, (request,), candidates)
