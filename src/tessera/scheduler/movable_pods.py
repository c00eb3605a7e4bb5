"""Which bound pods may move, and what their successors ask for.

Pods that a controller creates again may move; bare pods only if that is asked, and pods of a DaemonSet never: their
successors come back to the same node. What a pod asks for is read of the pod as its template has it, without what its
binding wrote. So pods of one workload are read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import structs

from tessera.core.ledger.ledger import Ledger
from tessera.core.search.relocation import MovablePod
from tessera.core.search.selection import Candidates
from tessera.scheduler.requests.host_resources import host_ask
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import BadPod
from tessera.wire import keys
from tessera.wire.objects import Pod

DAEMON_SET = "DaemonSet"
BOUND = (
    keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME, keys.MIG_ALLOCATIONS, keys.RETRY,
    keys.NOMINATED, keys.TURNOVER, keys.CLAIM_DEVICES,
)  # fmt: skip
"""annotations of a bound pod that are not of its template, beside those of vendors"""


class MovablePods:
    """What may move, of the pods that were added."""

    def __init__(
        self,
        ledger: Ledger,
        vendors: Mapping[str, Vendor],
        read: Callable[[Pod], PreparedRequest | BadPod],
        *,
        with_bare: bool,
    ) -> None:
        self._ledger = ledger
        self._own = {
            *BOUND,
            *(key for each in vendors.values() for key in (each.keys.allocated, each.keys.to_allocate)),
        }
        self._read = read
        self._with_bare = with_bare
        self.pods: dict[str, MovablePod] = {}
        """by uid"""
        self.stays: Counter[str] = Counter()
        """why other pods that hold devices stay"""

    def add(self, pod: Pod, candidates: Callable[[], Candidates]) -> None:
        """`candidates`: the nodes that its successor may go to."""
        if self._ledger.pod(pod.metadata.uid) is None:
            return
        prepared = self._read(self._template(pod))
        obstacle = self._obstacle(pod, prepared)
        if obstacle or not isinstance(prepared, PreparedRequest):
            self.stays[obstacle] += 1
            return
        is_bare = not pod.workload.kind
        self.pods[pod.metadata.uid] = MovablePod(prepared.request, candidates(), host_ask(pod), is_bare=is_bare)

    def _template(self, pod: Pod) -> Pod:
        own = self._own
        kept = {
            key: text for key, text in pod.annotations.items() if key not in own and keys.SLICE_KEY.match(key) is None
        }
        return structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=kept))

    def _obstacle(self, pod: Pod, prepared: object) -> str:
        if not isinstance(prepared, PreparedRequest):
            return "an invalid request"
        kind = pod.workload.kind
        if kind == DAEMON_SET:
            return "a DaemonSet, which puts it back on its node"
        if not kind and not self._with_bare:
            return "no controller that would create it again (--bare-pods moves it)"
        return ""
