"""kube-scheduler's state and decisions, one pod after the other and without I/O, so that tests can step through them.

Watches report what they see; `next` returns the pod to try and the nodes it may use; the caller reports the result.
A pod that was given a node counts there from that moment on (it is assumed), before any watch shows it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import has_ended, is_being_deleted, name_of, node_of, uid_of
from tessera_lab.sandbox.scheduling.fit import (
    NodeCapacity,
    PodNeeds,
    asks_for,
    node_capacity,
    node_signature,
    pod_needs,
)
from tessera_lab.sandbox.scheduling.queue import SchedulingQueue

_BESIDE = ("resourceVersion", "generation", "managedFields")
"""metadata whose change does not count as a change of the pod"""

Reasons = Mapping[str, Collection[str]]
"""reasons by node"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pod to find a node for."""

    pod: Json
    needs: PodNeeds
    candidates: tuple[str, ...]
    """nodes that pass kube-scheduler's own filters, sorted"""
    misfits: Reasons
    """of the other nodes"""
    nodes: int
    """how many nodes there are"""
    extended: bool
    """whether the extender is asked about it"""

    @property
    def uid(self) -> str:
        return uid_of(self.pod)


@dataclass(slots=True)
class _Held:
    """A pod on a node."""

    node: str
    needs: PodNeeds
    assumed: bool


@dataclass(slots=True)
class _NodeSeen:
    capacity: NodeCapacity
    signature: object = field(default=None)


class Attempts:
    """`profiles`: the scheduler names served here, and whether their pods go to the extender; `asks_about_all`: also
    those that request nothing of what it manages."""

    def __init__(
        self,
        *,
        profiles: Mapping[str, bool],
        managed: frozenset[str],
        asks_about_all: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self.queue = SchedulingQueue()
        self._profiles = profiles
        self._managed = managed
        self._asks_about_all = asks_about_all
        self._rng = rng or random.Random(0)
        self._nodes: dict[str, _NodeSeen] = {}
        self._waiting: dict[str, Json] = {}
        """pods without a node, by uid"""
        self._held: dict[str, _Held] = {}
        self._lost: dict[str, Counter[str]] = {}
        """what pods use on nodes that are not known (yet)"""

    # -- the watches

    def pod_seen(self, pod: Json, now: float) -> None:
        uid = uid_of(pod)
        if has_ended(pod):
            self.pod_gone(uid, now)
        elif node_of(pod):
            self._waiting.pop(uid, None)
            self.queue.forget(uid)
            held = self._held.get(uid)
            known = held is not None and not held.assumed
            self._hold(uid, _Held(node_of(pod), self._needs(pod), assumed=False))
            if not known:
                self.queue.happened(now)
        elif pod["spec"].get("schedulerName") in self._profiles:
            self._pending(uid, pod, now)

    def pod_gone(self, uid: str, now: float) -> None:
        """The pod was deleted or has ended."""
        known = self._waiting.pop(uid, None) is not None
        self.queue.forget(uid)
        if self._release(uid) or known:
            self.queue.happened(now)

    def node_seen(self, node: Json, now: float) -> None:
        name, signature = name_of(node), node_signature(node)
        before = self._nodes.get(name)
        if before is not None and before.signature == signature:
            return
        capacity = node_capacity(node)
        capacity.used = before.capacity.used if before is not None else self._lost.pop(name, Counter())
        self._nodes[name] = _NodeSeen(capacity, signature)
        self.queue.happened(now)

    def node_gone(self, name: str) -> None:
        seen = self._nodes.pop(name, None)
        if seen is not None:
            self._lost[name] = seen.capacity.used

    # -- one attempt after the other

    def next(self, now: float) -> Attempt | None:
        uid = self.queue.pop(now)
        if uid is None:
            return None
        pod = self._waiting[uid]
        needs, misfits, candidates = self._needs(pod), {}, []
        for name in sorted(self._nodes):
            reasons = self._nodes[name].capacity.misfits(needs)
            if reasons:
                misfits[name] = reasons
            else:
                candidates.append(name)
        is_asked = self._asks_about_all or asks_for(pod, self._managed)
        extended = self._profiles[pod["spec"]["schedulerName"]] and is_asked
        return Attempt(pod, needs, tuple(candidates), misfits, len(self._nodes), extended)

    def choose(self, attempt: Attempt, nodes: Iterable[str]) -> str | None:
        """The emptiest of these nodes; ties are random (seeded). None if none of them exists any more."""
        scores = {
            name: self._nodes[name].capacity.least_allocated_score(attempt.needs)
            for name in sorted(nodes)
            if name in self._nodes
        }
        if not scores:
            return None
        best = max(scores.values())
        return self._rng.choice([name for name, score in scores.items() if score == best])

    def refused(self, attempt: Attempt, now: float) -> None:
        self.queue.refused(attempt.uid, now)

    def failed(self, attempt: Attempt, now: float) -> None:
        self.queue.failed(attempt.uid, now)

    def assume(self, attempt: Attempt, node: str) -> None:
        """Counts the pod on `node` while it is being bound."""
        if attempt.uid in self._waiting:
            self._hold(attempt.uid, _Held(node, attempt.needs, assumed=True))

    def bind_failed(self, attempt: Attempt, now: float) -> bool:
        """Reports a failed bind; returns whether the pod is still pending, so that it is tried again."""
        held = self._held.get(attempt.uid)
        if held is not None and held.assumed:
            self._release(attempt.uid)
            self.queue.failed(attempt.uid, now)
            self.queue.happened(now)
        return attempt.uid in self._waiting

    def waiting(self, uid: str) -> Json | None:
        """A pending pod, as last seen."""
        return self._waiting.get(uid)

    def is_assumed(self, uid: str) -> bool:
        return uid in self._held

    def _pending(self, uid: str, pod: Json, now: float) -> None:
        if is_being_deleted(pod) or pod["spec"].get("schedulingGates"):
            if self._waiting.pop(uid, None) is not None:
                self.queue.forget(uid)
                self._release(uid)
            return
        before = self._waiting.get(uid)
        self._waiting[uid] = pod
        if before is None:
            self.queue.add(uid, priority=pod["spec"].get("priority") or 0)
        elif _essence(before) != _essence(pod):
            self.queue.changed(uid, now)

    def _needs(self, pod: Json) -> PodNeeds:
        ignored = self._managed if self._profiles.get(pod["spec"].get("schedulerName", "")) else frozenset[str]()
        return pod_needs(pod, ignored=ignored)

    def _hold(self, uid: str, held: _Held) -> None:
        self._release(uid)
        self._held[uid] = held
        seen = self._nodes.get(held.node)
        if seen is not None:
            seen.capacity.take(held.needs.amounts)
        else:
            used = self._lost.setdefault(held.node, Counter())
            used.update(held.needs.amounts)
            used["pods"] += 1

    def _release(self, uid: str) -> bool:
        held = self._held.pop(uid, None)
        if held is None:
            return False
        seen = self._nodes.get(held.node)
        if seen is not None:
            seen.capacity.give_back(held.needs.amounts)
        elif held.node in self._lost:
            used = self._lost[held.node]
            used.subtract(held.needs.amounts)
            used["pods"] -= 1
        return True


def _essence(pod: Json) -> Json:
    """The pod without metadata that changes with every write; of its status, the claims that were made for it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in _BESIDE}
    claims = (pod.get("status") or {}).get("resourceClaimStatuses")
    return {"metadata": metadata, "spec": pod["spec"], "claims": claims}


def fit_error(nodes: int, misfits: Reasons) -> str:
    """kube-scheduler's message: equal reasons are counted together, and the entries are sorted as texts."""
    counts = Counter(reason for reasons in misfits.values() for reason in reasons)
    entries = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{nodes} nodes are available:" + (f" {', '.join(entries)}." if entries else "")
