"""Pods that were refused, and waking the ones that fit now.

kube-scheduler lets a refused pod sleep for up to five minutes. When the ledger gains room, the pods that fit now get
one annotation patched, which makes it ask again at once. Pods of one shape and with the same candidates fit or do not
fit together, so a backlog costs few decisions a shape. Nobody else is disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates, Selected, Selector

WAKE_AT_ONCE = 8
"""pods of one shape woken by one change; whoever is bound next makes kube-scheduler ask for all the others"""
LISTS_AT_ONCE = 8
"""lists of candidates tried for one shape at one change; pods of one shape differ in them by node selectors"""
LOOKS_UNSEEN = 22
"""looks, 15 s apart, at which a pod may be missing: longer than kube-scheduler lets a pod sleep that does exist"""


@dataclass(slots=True)
class UnschedulablePod:
    """A refused pod."""

    request: PodRequest
    candidates: Candidates
    woken: bool = False
    unseen: int = 0
    """looks in a row at which the API did not show it"""


class UnschedulablePods:
    """Refused pods by shape, in the order in which they were first refused."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, dict[str, UnschedulablePod]] = {}
        self._pods: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def refused(self, request: PodRequest, candidates: Candidates) -> bool:
        """Remember a refusal; True where it is the pod's first."""
        shape = (request.shape, request.namespace)
        if self._pods.get(request.uid, shape) != shape:
            self.gone(request.uid)
        pods = self._shapes.setdefault(shape, {})
        known = pods.get(request.uid)
        if known is None:
            pods[request.uid] = UnschedulablePod(request, candidates)
            self._pods[request.uid] = shape
            return True
        known.candidates, known.woken, known.unseen = candidates, False, 0
        return False

    def gone(self, uid: str) -> None:
        """The pod was placed, deleted, or changed."""
        shape = self._pods.pop(uid, None)
        if shape is not None:
            pods = self._shapes[shape]
            del pods[uid]
            if not pods:
                del self._shapes[shape]

    def wake(self, selector: Selector) -> list[PodRequest]:
        """Pods that fit now, oldest first within a shape; each is woken once until it is refused again."""
        woken: list[PodRequest] = []
        for pods in self._shapes.values():
            for pod in _fitting(selector, (pod for pod in pods.values() if not pod.woken)):
                pod.woken = True
                woken.append(pod.request)
        return woken

    def forget_unseen(self, is_pending: Callable[[str], bool]) -> None:
        """Look for pods that the API does not show as pending, and drop those that nobody has asked for since long.

        kube-scheduler may ask for a pod whose end was seen here before: nothing would ever tell of it again.
        """
        for pod in [pod for pods in self._shapes.values() for pod in pods.values()]:
            pod.unseen = 0 if is_pending(pod.request.uid) else pod.unseen + 1
            if pod.unseen > LOOKS_UNSEEN:
                self.gone(pod.request.uid)

    def not_woken(self, uid: str) -> None:
        """EventRecorder kube-scheduler failed: the next change tries again."""
        shape = self._pods.get(uid)
        if shape is not None:
            self._shapes[shape][uid].woken = False


def _fitting(selector: Selector, asleep: Iterable[UnschedulablePod]) -> list[UnschedulablePod]:
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
