"""Where the page's facts come from: the interface, and a cluster that does not change.

A source has the scheduler's own engine on the cluster's objects, so that the page shows what the scheduler sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates
from tessera.inspect.dashboard.documents import NO_ORIGIN, Measurements, PodOrigin
from tessera.inspect.explanation import bad_pod_text
from tessera.inspect.offline_cluster import OfflineCluster
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


class PageSource(Protocol):
    """What the page shows."""

    @property
    def engine(self) -> Engine: ...

    @property
    def measurements(self) -> Measurements: ...

    def describe(self) -> Json:
        """The member `source` of the state document."""
        ...

    def origin(self, uid: str) -> PodOrigin: ...

    def measured_anew(self) -> Iterable[str]:
        """Nodes whose measurements changed since the last call."""
        ...

    def waiting(self) -> Iterable[WaitingPod]: ...


class FixedSource:
    """A snapshot or a description."""

    def __init__(self, cluster: OfflineCluster, *, kind: str = "snapshot") -> None:
        self.cluster = cluster
        self.measurements = Measurements()
        self._kind = kind
        self._keys = {pod.metadata.uid: key for key, pod in cluster.pods.items()}

    @property
    def engine(self) -> Engine:
        return self.cluster.engine

    def describe(self) -> Json:
        state = self.cluster.state
        problem = "; ".join(f"not readable: {text}" for text in state.unseen)
        return {"kind": self._kind, "name": state.source, "live": False, "journal": None, "problem": problem}

    def origin(self, uid: str) -> PodOrigin:
        key = self._keys.get(uid)
        return pod_origin(self.cluster.pods[key]) if key is not None else NO_ORIGIN

    def measured_anew(self) -> Iterable[str]:
        return ()

    def waiting(self) -> Iterable[WaitingPod]:
        return waiting_pods(self.cluster)


def waiting_pods(cluster: OfflineCluster) -> list[WaitingPod]:
    """The pods of the cluster that ask for devices and are on no node."""
    found = []
    for key, pod in cluster.pods.items():
        if pod.spec.node_name or pod.status.phase in ENDED or pod.metadata.deletion_timestamp:
            continue
        if pod.spec.scheduling_gates or cluster.ledger.pod(pod.metadata.uid) is not None:
            continue
        prepared, metadata = cluster.prepare(pod), pod.metadata
        origin = pod_origin(pod)._replace(since=created_at(cluster.documents[key]))
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
    return PodOrigin(workload.kind, workload.name, since)


def created_at(document: dict[str, Any]) -> float | None:
    text = (document.get("metadata") or {}).get("creationTimestamp")
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None
