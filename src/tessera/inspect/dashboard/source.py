"""Where the page's facts come from: the interface, a cluster that does not change, and the end of a journal.

A source has the scheduler's own engine on the cluster's objects, so that the page shows what the scheduler sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates
from tessera.inspect.dashboard.documents import NO_ORIGIN, PodOrigin, encode
from tessera.inspect.dashboard.journal import PageJournal, RecordedJournal, refused_then
from tessera.inspect.explanation import Explanation, bad_pod_text, explain
from tessera.inspect.journal_source import FileSource
from tessera.inspect.offline_cluster import InspectedCluster, OfflineCluster
from tessera.inspect.replay import Timeline
from tessera.inspect.state import ClusterState, InspectionError, Json
from tessera.inspect.utilization import NOTHING_MEASURED
from tessera.scheduler.engine_view import EngineView, GangView
from tessera.scheduler.settings import Settings
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire import keys
from tessera.wire.journal import Record, SnapshotEnd, Start
from tessera.wire.objects import Pod
from tessera.wire.pod_groups import PodGroup, read_pod_group


@dataclass(frozen=True, eq=False)
class NodeNames:
    """Nodes to choose from. One object for all pods that may use the same ones, so that it is compared by identity."""

    names: tuple[str, ...] = ()


NO_NODES = NodeNames()


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that asks for devices and has none."""

    uid: str
    namespace: str
    name: str
    request: PodRequest | None
    """None if it cannot be read"""
    candidates: NodeNames | Candidates = NO_NODES
    problem: str = ""
    """why it is never placed, whatever is free"""
    origin: PodOrigin = NO_ORIGIN
    """`since` is when it began to wait"""
    attempts: int | None = None
    """how often it was refused, if that is known"""
    nominated_node: str = ""
    """as the API shows it"""


class PodAnswer(NamedTuple):
    """What is known about one pod."""

    found: Explanation
    cycle: str = ""
    """how far the scheduler is with it, if that is known"""


class PageSource(ABC):
    """What the page shows."""

    kind = "snapshot"
    is_live = False

    def __init__(self, cluster: InspectedCluster, journal: PageJournal | None) -> None:
        self.cluster = cluster
        self.journal = journal
        self.measurements = NOTHING_MEASURED

    @property
    def view(self) -> EngineView:
        return self.cluster.view

    @property
    @abstractmethod
    def problem(self) -> str:
        """What is missing, in sentences for people."""

    def describe(self) -> Json:
        """The member `source` of the state document."""
        return {
            "kind": self.kind,
            "name": self.cluster.state.source,
            "live": self.is_live,
            "journal": self.journal.range() if self.journal is not None else None,
            "problem": self.problem,
        }

    @abstractmethod
    def origin(self, uid: str) -> PodOrigin: ...

    def measured_anew(self) -> Iterable[str]:
        """Nodes whose measurements changed since the last call."""
        return ()

    @abstractmethod
    def waiting(self) -> Iterable[WaitingPod]: ...

    @abstractmethod
    def gang_since(self, gang: GangView) -> float | None:
        """Unix seconds since which it waits."""

    def node_facts(self, name: str) -> Json:
        """What the ledger does not know about a node, for people."""
        spec = self.cluster.nodes.get(name, {}).get("spec") or {}
        taints = [
            f"{each.get('key')}={each.get('value', '')}:{each.get('effect')}" for each in spec.get("taints") or ()
        ]
        return {"unschedulable": "yes" if spec.get("unschedulable") else "", "taints": ", ".join(taints)}

    @abstractmethod
    async def explain(self, namespace: str, name: str) -> PodAnswer | None:
        """None if there is no such pod now."""

    @abstractmethod
    async def fork(self) -> OfflineCluster:
        """For pods that do not exist; `OfflineCluster.fork` says more. Raises InspectionError."""


class FixedSource(PageSource):
    """A snapshot, a description, or the end of a journal. Sources that follow a cluster build on it."""

    cluster: OfflineCluster

    def __init__(self, cluster: OfflineCluster, journal: PageJournal | None = None) -> None:
        super().__init__(cluster, journal)
        self._keys = {pod.metadata.uid: key for key, pod in cluster.pods.items()}
        self.pending = PendingPods(cluster)
        for key in cluster.pods:
            self.pending.put(key)

    @property
    def problem(self) -> str:
        return "; ".join(f"not readable: {text}" for text in self.cluster.state.unseen)

    def origin(self, uid: str) -> PodOrigin:
        key = self._keys.get(uid)
        return pod_origin(self.cluster.pods[key]) if key is not None else NO_ORIGIN

    def waiting(self) -> Iterable[WaitingPod]:
        return self.pending.pods()

    def gang_since(self, gang: GangView) -> float | None:
        created = [self.origin(request.uid).created for request in gang.pending]
        return min((moment for moment in created if moment is not None), default=None)

    async def explain(self, namespace: str, name: str) -> PodAnswer | None:
        key = f"{namespace}/{name}"
        return PodAnswer(explain(self.cluster, key)) if key in self.cluster.pods else None

    async def fork(self) -> OfflineCluster:
        self.cluster.state.require_nodes()
        return self.cluster.fork()


class PendingPods:
    """The pods of a cluster that ask for devices and are on no node.

    What is read of a pod, and the nodes that kube-scheduler would ask about for it, are kept until the pod or a node
    changes: this is asked several times a second.
    """

    def __init__(self, cluster: OfflineCluster) -> None:
        self._cluster = cluster
        self._pods: dict[str, WaitingPod | None] = {}
        """by key; None until it is asked for"""
        self._candidates: dict[bytes, NodeNames] = {}
        """by what pods say about nodes"""

    def put(self, key: str) -> None:
        """The pod appeared or changed."""
        pod = self._cluster.pods[key]
        is_over = pod.status.phase in ENDED or pod.metadata.deletion_timestamp
        if pod.spec.node_name or is_over or pod.spec.scheduling_gates:
            self._pods.pop(key, None)
        else:
            self._pods[key] = None

    def drop(self, key: str) -> None:
        self._pods.pop(key, None)

    def on_claims(self) -> None:
        """A claim, a class or what nodes offer to claims has changed: what pods with claims ask for may be another."""
        for key in self._pods:
            if self._cluster.pods[key].spec.resource_claims:
                self._pods[key] = None

    def on_nodes(self) -> None:
        """What kube-scheduler looks at has changed on some node."""
        self._candidates.clear()
        self._pods = dict.fromkeys(self._pods)

    def pods(self) -> Iterator[WaitingPod]:
        for key, known in list(self._pods.items()):
            pod = known if known is not None else self._read(key)
            self._pods[key] = pod
            is_waiting = pod.problem or pod.request is not None
            if is_waiting and self._cluster.ledger.pod(pod.uid) is None:
                yield pod

    def _read(self, key: str) -> WaitingPod:
        pod, prepared = self._cluster.pods[key], self._cluster.prepare(self._cluster.pods[key])
        metadata, origin = pod.metadata, pod_origin(pod)
        origin = origin._replace(since=origin.created)
        if isinstance(prepared, BadPod):
            problem = bad_pod_text(prepared)
            return WaitingPod(metadata.uid, metadata.namespace, metadata.name, None, problem=problem, origin=origin)
        if not prepared.needs_placement:
            return WaitingPod(metadata.uid, metadata.namespace, metadata.name, None)
        nodes = self._nodes(self._cluster.documents[key])
        pinned = prepared.claims.node if prepared.claims is not None else ""
        if prepared.claims is not None and pinned:
            if pinned not in nodes.names:
                text = prepared.claims.elsewhere.text
                return WaitingPod(metadata.uid, metadata.namespace, metadata.name, None, problem=text, origin=origin)
            nodes = NodeNames((pinned,))
        return WaitingPod(
            metadata.uid,
            metadata.namespace,
            metadata.name,
            prepared.request,
            nodes,
            origin=origin,
            nominated_node=pod.status.nominated_node_name,
        )

    def _nodes(self, document: Json) -> NodeNames:
        spec = document["spec"]
        told = encode([spec.get("nodeSelector"), spec.get("affinity"), spec.get("tolerations")])
        found = self._candidates.get(told)
        if found is None:
            found = self._candidates[told] = NodeNames(tuple(self._cluster.candidates(document)[0]))
        return found


def pod_origin(pod: Pod) -> PodOrigin:
    """What a bound pod itself says."""
    text = pod.annotations.get(keys.BIND_TIME) or pod.annotations.get(keys.ASSIGNED_TIME) or ""
    since = float(text) if text.isdecimal() and text.isascii() and len(text) < 16 else None
    workload = pod.workload
    group = read_pod_group(pod)
    gang = group.name if isinstance(group, PodGroup) else ""
    return PodOrigin(workload.kind, workload.name, since, created_at(pod), gang)


def created_at(pod: Pod) -> float | None:
    """Unix seconds; None if that is not known."""
    try:
        return datetime.fromisoformat(pod.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        return None


async def read_records(*paths: str) -> tuple[list[Record], Sequence[str]]:
    """The records of these files that fit together, and notes about what was left out. Raises InspectionError."""
    source = FileSource(*paths)
    records: list[Record] = []
    state: list[Record] | None = None
    """that is not complete"""
    async for record in source.records():
        if isinstance(record, Start):
            state = [record]
        elif source.is_damaged:
            # Without the lost lines nothing is known up to the next state.
            state = None
        elif state is None:
            records.append(record)
        else:
            state.append(record)
            if isinstance(record, SnapshotEnd):
                records += state
                state = None
    if Timeline(records).begin == 0.0:
        raise InspectionError(f"{', '.join(paths)}: does not begin with the state of the ledger")
    return records, source.notes


class RecordedSource(FixedSource):
    """The last moment of a journal. Make it on a running event loop."""

    kind = "journal"

    def __init__(self, records: Sequence[Record], *, name: str) -> None:
        """Raises InspectionError if the records do not fit together."""
        timeline = Timeline(records)
        moment = timeline.at(timeline.end)
        cluster = OfflineCluster(ClusterState(name, moment.time), settings=_settings(records))
        for node in moment.ledger.node_names():
            view = moment.ledger.node(node)
            if view is not None:
                cluster.ledger.observe_node(view.facts)
                # Nothing is known of labels and taints: no node is ruled out by them.
                cluster.nodes[node] = {"metadata": {"name": node}}
        for entry in moment.ledger.pods():
            cluster.ledger.put_pod(entry.facts, entry.state, observed=entry.observed)
        cluster.ledger.quotas = moment.ledger.quotas.copy()
        super().__init__(cluster, RecordedJournal(records))
        everywhere = NodeNames(tuple(cluster.nodes))
        self._waiting = [
            WaitingPod(
                record.pod.uid,
                record.pod.namespace,
                record.pod.name,
                timeline.request(record),
                everywhere,
                origin=NO_ORIGIN._replace(since=since),
                attempts=record.refusals,
            )
            for since, record in refused_then(records, moment)
        ]

    def waiting(self) -> Iterable[WaitingPod]:
        return self._waiting


def _settings(records: Sequence[Record]) -> Settings:
    """The settings of the process that wrote the end of the journal."""
    start = next(record for record in reversed(records) if isinstance(record, Start))
    return Settings(
        device_sections=start.device_sections,
        enable_ascend=start.enable_ascend,
        enable_iluvatar=start.enable_iluvatar,
        node_policy=start.node_policy,
        device_policy=start.device_policy,
        scheduler_name=start.scheduler_name,
    )
