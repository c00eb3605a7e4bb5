"""Where the page's facts come from: the interface, and a cluster that does not change.

A source has the scheduler's own engine on the cluster's objects, so that the page shows what the scheduler sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates
from tessera.inspect.dashboard.documents import NO_ORIGIN, Measurements, PodOrigin
from tessera.inspect.dashboard.journal import PageJournal
from tessera.inspect.explanation import bad_pod_text, explain
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import explanation_lines
from tessera.inspect.render.lines import StyledLine
from tessera.inspect.state import Json
from tessera.scheduler.engine import Engine
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire import keys
from tessera.wire.objects import Pod


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that asks for devices and has none."""

    uid: str
    namespace: str
    name: str
    request: PodRequest | None
    """None if it cannot be read"""
    candidates: Sequence[str] | Candidates = ()
    problem: str = ""
    """why it is never placed, whatever is free"""
    origin: PodOrigin = NO_ORIGIN
    """`since` is when it began to wait"""
    attempts: int | None = None
    """how often it was refused, if that is known"""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What is known about one pod."""

    lines: Sequence[StyledLine] = ()
    """what `tessera explain` says"""
    facts: Json = field(default_factory=dict)


class PageSource(Protocol):
    """What the page shows."""

    @property
    def engine(self) -> Engine: ...

    @property
    def measurements(self) -> Measurements: ...

    @property
    def journal(self) -> PageJournal | None: ...

    def describe(self) -> Json:
        """The member `source` of the state document."""
        ...

    def origin(self, uid: str) -> PodOrigin: ...

    def measured_anew(self) -> Iterable[str]:
        """Nodes whose measurements changed since the last call."""
        ...

    def waiting(self) -> Iterable[WaitingPod]: ...

    def node_facts(self, name: str) -> Json:
        """What the ledger does not know about a node, for people."""
        ...

    async def explain(self, namespace: str, name: str) -> PodAnswer | None:
        """None if there is no such pod now."""
        ...

    async def begin_trial(self) -> OfflineCluster:
        """For pods that do not exist; `OfflineCluster.begin_trial` says more. Raises InspectionError."""
        ...


class FixedSource:
    """A snapshot, a description, or the end of a journal. Sources that follow a cluster build on it."""

    def __init__(self, cluster: OfflineCluster, *, kind: str = "snapshot", journal: PageJournal | None = None) -> None:
        self.cluster = cluster
        self.measurements = Measurements()
        self.journal = journal
        self._kind = kind
        self._keys = {pod.metadata.uid: key for key, pod in cluster.pods.items()}

    @property
    def engine(self) -> Engine:
        return self.cluster.engine

    @property
    def problem(self) -> str:
        """What is missing, in sentences for people."""
        return "; ".join(f"not readable: {text}" for text in self.cluster.state.unseen)

    def describe(self) -> Json:
        return {
            "kind": self._kind,
            "name": self.cluster.state.source,
            "live": False,
            "journal": self.journal.range() if self.journal is not None else None,
            "problem": self.problem,
        }

    def origin(self, uid: str) -> PodOrigin:
        key = self._keys.get(uid)
        return pod_origin(self.cluster.pods[key]) if key is not None else NO_ORIGIN

    def measured_anew(self) -> Iterable[str]:
        return ()

    def waiting(self) -> Iterable[WaitingPod]:
        return waiting_pods(self.cluster)

    def node_facts(self, name: str) -> Json:
        spec = self.cluster.nodes.get(name, {}).get("spec") or {}
        taints = [
            f"{each.get('key')}={each.get('value', '')}:{each.get('effect')}" for each in spec.get("taints") or ()
        ]
        return {"unschedulable": "yes" if spec.get("unschedulable") else "", "taints": ", ".join(taints)}

    async def explain(self, namespace: str, name: str) -> PodAnswer | None:
        key = f"{namespace}/{name}"
        if key not in self.cluster.pods:
            return None
        found = explain(self.cluster, key)
        facts = {"phase": found.phase, "scheduler": found.scheduler, "verdict": found.status.value}
        return PodAnswer([*explanation_lines(found)], facts)

    async def begin_trial(self) -> OfflineCluster:
        self.cluster.state.require_nodes()
        return self.cluster.begin_trial()


def waiting_pods(cluster: OfflineCluster) -> list[WaitingPod]:
    """The pods of the cluster that ask for devices and are on no node."""
    found = []
    for key, pod in cluster.pods.items():
        if pod.spec.node_name or pod.status.phase in ENDED or pod.metadata.deletion_timestamp:
            continue
        if pod.spec.scheduling_gates or cluster.ledger.pod(pod.metadata.uid) is not None:
            continue
        prepared, metadata = cluster.prepare(pod), pod.metadata
        origin = pod_origin(pod)._replace(since=created_at(pod))
        if isinstance(prepared, BadPod):
            problem = bad_pod_text(prepared)
            found.append(WaitingPod(metadata.uid, metadata.namespace, metadata.name, None, (), problem, origin))
        elif prepared.request.asks_for_devices:
            names, _ = cluster.candidates(cluster.documents[key])
            found.append(
                WaitingPod(metadata.uid, metadata.namespace, metadata.name, prepared.request, names, origin=origin)
            )
    return found


def pod_origin(pod: Pod) -> PodOrigin:
    """What a bound pod itself says."""
    text = pod.annotations.get(keys.BIND_TIME) or pod.annotations.get(keys.ASSIGNED_TIME) or ""
    since = float(text) if text.isdecimal() and text.isascii() and len(text) < 16 else None
    workload = pod.workload
    return PodOrigin(workload.kind, workload.name, since, created_at(pod))


def created_at(pod: Pod) -> float | None:
    """Unix seconds; None if that is not known."""
    try:
        return datetime.fromisoformat(pod.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        return None
