"""What containers of this node's pods hold: what they were answered, whatever the API says of it by now.

An answer counts until its pod has ended. A pod that the API does not show any more counts until kubelet does not list
it either; where kubelet cannot be asked, it is gone. A pod without a record counts with what its annotations say, as
soon as one of its containers may have been answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tessera.node.handover.allocation_state import AllocationState
from tessera.node.handover.assignments import Assignment, BoundPod, Holding
from tessera.node.handover.checkpoint import MAX_RECORDS, Checkpoint, Record
from tessera.node.handover.pod_cache import PodCache
from tessera.node.handover.verifier import Verifier
from tessera.node.watched_value import WatchedValue


class Holdings:
    """Of the pods of one node. Used from the event loop only."""

    def __init__(self, pods: PodCache, state: AllocationState, *, checkpoint: Checkpoint, verifier: Verifier) -> None:
        self._pods = pods
        self._state = state
        self._checkpoint = checkpoint
        self._verifier = verifier
        self._departed: dict[str, Holding] = {}
        """by uid: pods that went from the API before they had ended, as far as is known here"""
        self._empty: frozenset[str] = frozenset()
        """uids of unreadable pods that hold nothing, as kubelet says"""
        self._started: dict[str, tuple[BoundPod, Mapping[int, Assignment], Holding]] = {}
        """by uid: what was found for pods that have started, and from what"""

    @property
    def version(self) -> WatchedValue[int]:
        """What changes when a pod does."""
        return self._pods.version

    # -- what is held

    def all(self, pods: Sequence[BoundPod] | None = None) -> list[Holding]:
        """Of every pod. `pods` as the API shows them, if they were just read from it."""
        shown = self._pods.all() if pods is None else pods
        before, self._started = self._started, {}
        live = [self._known(pod, before) or self._holding(pod) for pod in shown if not pod.terminal]
        known = {pod.key.uid for pod in shown} if self._departed else ()
        return [*live, *(each for uid, each in self._departed.items() if uid not in known)]

    async def read(self) -> list[Holding] | None:
        """The same, with the pods as the API shows them now; None where it cannot be asked."""
        pods = await self._pods.read_all()
        return None if pods is None else self.all(pods)

    def _known(
        self, pod: BoundPod, before: Mapping[str, tuple[BoundPod, Mapping[int, Assignment], Holding]]
    ) -> Holding | None:
        """Of a pod that has started: only a change of the pod, or of its records, changes it. None: of any other."""
        if not pod.started or pod.assignments_problem:
            return None
        uid, recorded = pod.key.uid, self._checkpoint.assignments_of(pod.key.uid)
        known = before.get(uid)
        if known is None or known[0] is not pod or known[1] != recorded:
            known = pod, dict(recorded), self._holding(pod)
        self._started[uid] = known
        return known[2]

    def _holding(self, pod: BoundPod) -> Holding:
        uid, inherited = pod.key.uid, self._pods.inherited
        found = {assignment.position: assignment for assignment in self._state.may_hold(pod, inherited=inherited)}
        recorded = self._checkpoint.assignments_of(uid)
        found |= recorded
        assignments = tuple(found[position] for position in sorted(found))
        # A pod that cannot be read is answered nothing.
        is_unknown = bool(pod.assignments_problem) and not found and (pod.started or uid in inherited)
        problem = pod.assignments_problem if is_unknown and uid not in self._empty else ""
        return Holding(pod.key, assignments, pod.spans, frozenset(found.keys() - recorded.keys()), problem)

    # -- pods that are gone

    def restore(self, records: Iterable[Record]) -> None:
        """The answers of an earlier process: their pods may have gone while no agent was there."""
        if self._verifier.can_ask:
            for each in records:
                assignments = tuple(self._checkpoint.assignments_of(each.assignment.pod.uid).values())
                if assignments:
                    self._departed[each.assignment.pod.uid] = Holding(each.assignment.pod, assignments, each.spans)

    def on_gone(self, uid: str) -> None:
        """Call it before the pod is forgotten."""
        pod = self._pods.get(uid)
        self._departed.pop(uid, None)
        if not self._verifier.can_ask or pod is None or pod.terminal:
            return
        holding = self._holding(pod)
        if holding.assignments:
            self._departed[uid] = holding
            for oldest in list(self._departed)[:-MAX_RECORDS]:
                del self._departed[oldest]

    def has_departed(self, uid: str) -> bool:
        return uid in self._departed

    async def refresh(self, *, patient: bool = False) -> bool:
        """Asks kubelet about pods that only it can know of; whether that may have changed something. A kubelet that
        does not answer may be asked again later by a `patient` caller; otherwise these pods are gone."""
        unknown = {each.key.uid for each in self.all() if each.problem}
        if not self._departed and not unknown:
            return False
        before = self._departed.keys() | unknown
        held = await self._verifier.held()
        if held is None and patient:
            return False
        names = {holder[:2] for holder in held or ()}
        self._departed = {
            uid: each
            for uid, each in self._departed.items()
            if each.key[:2] in names and self._pods.named(*each.key[:2]) is None
        }
        if held is not None:
            self._empty = frozenset(
                pod.key.uid
                for pod in self._pods.all()
                # Init containers are not shown.
                if pod.assignments_problem and pod.key[:2] not in names and (pod.started or not pod.unlisted)
            )
        return self._departed.keys() | (unknown - self._empty) != before
