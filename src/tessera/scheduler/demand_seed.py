"""The pods that were bound before this process began, for the demand history of a policy that uses forecasts.

While the first lists are read, the newest pods with devices are kept. Once the lists are complete, they are counted in
the order of their binding, as filter would have counted them. `explain` counts the same pods in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from tessera.vendors.base import Vendor
from tessera.wire import keys
from tessera.wire.objects import Pod

NEWEST = 4096
"""pods that are kept; older ones say little about the pods to come, and reading them delays the start"""

Moment = tuple[int, str, str, str]
"""seconds since the epoch, then what makes pods of one second sortable"""


class DemandSeed:
    """The newest bound pods, until they are taken."""

    def __init__(self, vendors: Mapping[str, Vendor]) -> None:
        self._vendors = vendors
        self._moments: list[Moment] = []
        """a heap: the oldest is first"""
        self._pods: dict[Moment, Pod] = {}

    def note(self, pod: Pod) -> None:
        """Keep a pod as the API shows it, if it was given devices."""
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


def when_bound(pod: Pod) -> Moment:
    text = pod.annotations.get(keys.ASSIGNED_TIME, "")
    metadata = pod.metadata
    return int(text) if text.isdecimal() and text.isascii() else 0, metadata.namespace, metadata.name, metadata.uid
