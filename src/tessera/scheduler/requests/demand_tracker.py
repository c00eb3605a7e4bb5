"""What past pods asked for, as policies that look ahead want to know it.

While the first lists are read, the newest pods that hold devices are kept; once pods and nodes are known they are
counted in the order of their binding, as filter would have counted them. Then every pod that filter meets for the first
time is counted. `explain` counts the same pods in the same order.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tessera.core.model.arrays import CardArrays
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.requests import PodRequest
from tessera.core.policies.demand_history import DemandHistory
from tessera.vendors.base import Vendor
from tessera.vendors.pod_reader import ENDED
from tessera.wire import keys
from tessera.wire.objects import Pod

NEWEST = 4096
"""pods that are counted at the start; older ones say little about the pods to come, and reading them takes time"""
UNCOUNTED = 4096
"""pods that wait to be counted; older ones would hardly matter"""

DECIMAL = re.compile(r"[0-9]\.[0-9]{1,20}", re.ASCII)

Moment = tuple[int, str, str, str]
"""seconds since the epoch, then what orders the pods of one second"""


class DemandTracker:
    """Counts pods when a forecast is asked for, which most clusters never do."""

    def __init__(self, arrays: CardArrays, vendors: Mapping[str, Vendor]) -> None:
        self._arrays = arrays
        self._vendors = vendors
        self._history = DemandHistory()
        self._uncounted: deque[PodRequest] = deque(maxlen=UNCOUNTED)
        self._seed = DemandSeed(vendors)

    def note_listed(self, pod: Pod) -> None:
        """A pod of a first list."""
        self._seed.note(pod)

    def start(self, read: Callable[[Pod], PodRequest | None]) -> None:
        """The first lists are complete: count their pods instead of all that were counted before."""
        self._history = DemandHistory()
        self._uncounted.clear()
        listed = self._seed.take()
        for pod in listed:
            request = read(pod)
            if request is not None:
                self._history.observe(request, self._arrays, self._vendors)
                if pod.status.phase in ENDED:
                    self._history.note_ended(request)
        self._history.resume(last_turnover(listed), self._arrays)

    def note_request(self, request: PodRequest) -> None:
        """Filter met a pod for the first time."""
        self._uncounted.append(request)

    def forecast(self) -> DemandForecast:
        while self._uncounted:
            self._history.observe(self._uncounted.popleft(), self._arrays, self._vendors)
        return self._history.forecast(self._arrays)


class DemandSeed:
    """The newest pods of the first lists, until they are counted."""

    def __init__(self, vendors: Mapping[str, Vendor]) -> None:
        self._vendors = vendors
        self._moments: list[Moment] = []
        """a heap: the oldest is first"""
        self._pods: dict[Moment, Pod] = {}

    def note(self, pod: Pod) -> None:
        """A pod as the API shows it. Pods without devices are left out."""
        if not was_placed(pod, self._vendors):
            return
        moment = when_bound(pod)
        if moment not in self._pods:
            heapq.heappush(self._moments, moment)
        self._pods[moment] = pod
        if len(self._moments) > NEWEST:
            del self._pods[heapq.heappop(self._moments)]

    def take(self) -> list[Pod]:
        """All of them, in the order of their binding; they are forgotten here."""
        found = in_order(self._pods.values())
        self._moments, self._pods = [], {}
        return found


def was_placed(pod: Pod, vendors: Mapping[str, Vendor]) -> bool:
    """Whether the pod holds or held devices."""
    annotations = pod.annotations
    return any(vendor.keys.allocated in annotations for vendor in vendors.values())


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """The newest, oldest first."""
    return sorted(pods, key=when_bound)[-NEWEST:]


def last_turnover(pods: Sequence[Pod]) -> float:
    """That the newest of these pods was decided by; they are in the order of their binding."""
    for pod in reversed(pods):
        text = pod.annotations.get(keys.TURNOVER)
        if text is not None:
            return min(float(text), 1.0) if DECIMAL.fullmatch(text) else 0.0
    return 0.0


def when_bound(pod: Pod) -> Moment:
    text = pod.annotations.get(keys.ASSIGNED_TIME, "")
    metadata = pod.metadata
    return int(text) if text.isdecimal() and text.isascii() else 0, metadata.namespace, metadata.name, metadata.uid
