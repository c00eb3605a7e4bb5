"""Judges Bindings of gangs and evictions by what the replica that sent them could know.

    partial gang         a Binding of a gang was sent before as many members as it needs had come to be bound, and no
                         member was, or could be, bound
    needless eviction    no pod of a higher priority that this replica had refused was waiting
    evicted twice        the replica had seen that the pod was leaving already

A replica knows what its watches have shown it. So a pod that is gone, but was not shown as gone, still counts for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.robustness.history import (
    BindAnswered,
    BindCalled,
    Event,
    EventSeen,
    EvictionSent,
    FilterAnswered,
    PodShown,
    WriteAnswered,
    WriteSent,
)

Report = Callable[..., None]
"""kind, text, time and the pods that it is about"""


@dataclass
class DecisionChecker:
    """Takes one event after the other."""

    report: Report
    _pods: dict[str, PodShown] = field(default_factory=dict)
    """the last that was shown of every pod, also of those that are gone"""
    _members: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """gang -> its pods"""
    _leaving: dict[str, int] = field(default_factory=dict)
    """pod -> the revision that first showed that it leaves"""
    _seen_gone: set[tuple[str, str]] = field(default_factory=set)
    _seen_leaving: set[tuple[str, str]] = field(default_factory=set)
    _seen_bound: set[tuple[str, str]] = field(default_factory=set)
    _refused: set[tuple[str, str]] = field(default_factory=set)
    _come: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """replica -> pods whose bind calls are not answered"""
    _released: set[tuple[str, str]] = field(default_factory=set)
    """bind calls that may go on, because their gang was complete or begun; a turn on the node may take seconds"""
    _written: set[str] = field(default_factory=set)
    """pods that are bound, or may be"""

    def take(self, event: Event) -> None:
        match event:
            case PodShown():
                self._on_pod(event)
            case EventSeen():
                self._on_seen(event)
            case FilterAnswered():
                self._end_call(event.replica, event.uid)
                if event.nodes:
                    self._refused.discard((event.replica, event.uid))
                elif not event.error:
                    self._refused.add((event.replica, event.uid))
            case BindCalled():
                self._come[event.replica].add(event.uid)
                self._release(event.replica, event.uid)
            case BindAnswered():
                self._end_call(event.replica, event.uid)
            case WriteSent():
                self._on_write(event)
            case WriteAnswered():
                shown = self._pods.get(event.uid)
                if 400 <= event.status < 500 and shown is not None and not shown.node:
                    self._written.discard(event.uid)
            case EvictionSent():
                self._on_eviction(event)
            case _:
                pass

    def _on_pod(self, pod: PodShown) -> None:
        self._pods[pod.uid] = pod
        if pod.node:
            self._written.add(pod.uid)
        if pod.is_leaving:
            self._leaving.setdefault(pod.uid, pod.revision)
        if pod.gang is not None:
            self._members[pod.gang.name].add(pod.uid)

    def _on_seen(self, seen: EventSeen) -> None:
        who = seen.replica, seen.uid
        if seen.type == "DELETED":
            self._seen_gone.add(who)
        if int(seen.revision) >= self._leaving.get(seen.uid, int(seen.revision) + 1):
            self._seen_leaving.add(who)
        shown = self._pods.get(seen.uid)
        if shown is not None and shown.node:
            self._seen_bound.add(who)

    def _release(self, replica: str, uid: str) -> str:
        """Let the binds of the pod's gang go on if that may be; otherwise what is missing."""
        pod = self._pods.get(uid)
        if pod is None or pod.gang is None:
            return ""
        there = {uid for uid in self._members[pod.gang.name] if (replica, uid) not in self._seen_gone}
        come = there & self._come[replica]
        if not (there & self._written) - {uid} and len(come) < pod.gang.minimum:
            return f"{len(come)} of {pod.gang.minimum} members of {pod.gang.name}"
        self._released.update((replica, member) for member in come)
        return ""

    def _end_call(self, replica: str, uid: str) -> None:
        self._come[replica].discard(uid)
        self._released.discard((replica, uid))

    def _on_write(self, write: WriteSent) -> None:
        if (write.replica, write.uid) not in self._released and (found := self._release(write.replica, write.uid)):
            text = f"{self._pods[write.uid].key} is bound to {write.node} with {found}"
            self.report("partial gang", text, write.at, write.uid)
        self._written.add(write.uid)

    def _on_eviction(self, eviction: EvictionSent) -> None:
        victim = self._pods.get(eviction.uid)
        if victim is None:
            return
        if (eviction.replica, eviction.uid) in self._seen_leaving:
            self.report("evicted twice", f"{victim.key} was leaving already", eviction.at, eviction.uid)
        waits = (
            self._pods[uid].priority > victim.priority
            for replica, uid in self._refused
            if replica == eviction.replica and uid in self._pods and not self._is_settled(replica, uid)
        )
        if not any(waits):
            text = f"{victim.key} (priority {victim.priority}), and no pod above it waits"
            self.report("needless eviction", text, eviction.at, eviction.uid)

    def _is_settled(self, replica: str, uid: str) -> bool:
        """Whether the replica has seen that the pod needs no room any more."""
        return (replica, uid) in self._seen_gone or (replica, uid) in self._seen_bound
