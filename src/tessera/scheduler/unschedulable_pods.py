"""Refused pods, and which of them to wake when capacity is freed.

kube-scheduler leaves a refused pod asleep for up to five minutes. When the ledger gains room, the pods that fit now get
one annotation patched, and kube-scheduler asks again at once. Pods of one shape and with the same candidates fit or do
not fit together, so a backlog costs few decisions per shape. This module decides whom to wake; `engine` does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates, Selected, Selector

WAKE_AT_ONCE = 8
"""pods of one shape woken by one change; the next pod that is bound makes kube-scheduler ask for all the others"""
LISTS_AT_ONCE = 8
"""candidate lists tried for one shape at one change; pods of one shape differ in them by node selectors"""


@dataclass(slots=True)
class UnschedulablePod:
    """A refused pod."""

    request: PodRequest
    candidates: Candidates
    is_woken: bool = False


class UnschedulablePods:
    """Refused pods by shape, in the order in which they were first refused."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, dict[str, UnschedulablePod]] = {}
        self._pods: dict[str, Hashable] = {}
        self.room = asyncio.Event()
        """set when capacity was freed since the last wake-up"""

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def add(self, request: PodRequest, candidates: Candidates) -> bool:
        """Remember a refusal; True if it is the pod's first."""
        shape = (request.shape, request.namespace)
        if self._pods.get(request.uid, shape) != shape:
            self.remove(request.uid)
        pods = self._shapes.setdefault(shape, {})
        known = pods.get(request.uid)
        if known is None:
            pods[request.uid] = UnschedulablePod(request, candidates)
            self._pods[request.uid] = shape
            return True
        known.candidates, known.is_woken = candidates, False
        return False

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

    def wake(self, selector: Selector) -> list[PodRequest]:
        """Pods that fit now, oldest first within a shape. Each is woken once until it is refused again."""
        woken: list[PodRequest] = []
        for pods in self._shapes.values():
            for pod in _find_fitting(selector, (pod for pod in pods.values() if not pod.is_woken)):
                pod.is_woken = True
                woken.append(pod.request)
        return woken

    def on_wake_failed(self, uid: str) -> None:
        """The patch failed: the next change tries again."""
        shape = self._pods.get(uid)
        if shape is not None:
            self._shapes[shape][uid].is_woken = False


def _find_fitting(selector: Selector, asleep: Iterable[UnschedulablePod]) -> list[UnschedulablePod]:
    """The first pods of one shape that fit now."""
    fits: dict[Candidates, bool] = {}
    found: list[UnschedulablePod] = []
    for pod in asleep:
        if pod.candidates not in fits:
            if len(fits) == LISTS_AT_ONCE:
                continue
            fits[pod.candidates] = isinstance(selector.select(pod.request, pod.candidates), Selected)
        if fits[pod.candidates]:
            found.append(pod)
            if len(found) == WAKE_AT_ONCE:
                break
    return found
