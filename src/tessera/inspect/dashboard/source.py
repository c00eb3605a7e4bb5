"""Where the page's facts come from: the interface, a cluster that does not change, and the end of a journal.

A source has the scheduler's own engine on the cluster's objects, so that the page shows what the scheduler sees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.dashboard.journal import PageJournal, RecordedJournal, refused_then
from tessera.inspect.dashboard.nodes import ShownCluster
from tessera.inspect.dashboard.pods import NO_ORIGIN, NodeNames, PendingPods, PodOrigin, WaitingPod, pod_origin
from tessera.inspect.explanation import Explanation, explain
from tessera.inspect.journal_source import FileSource
from tessera.inspect.offline_cluster import InspectedCluster, OfflineCluster
from tessera.inspect.replay import Timeline
from tessera.inspect.state import ClusterState, InspectionError, Json
from tessera.scheduler.engine_view import GangView
from tessera.scheduler.pod_cycle import CycleState
from tessera.scheduler.settings import Settings
from tessera.wire.journal import Record, SnapshotEnd, Start


class PodAnswer(NamedTuple):
    """What is known about one pod."""

    found: Explanation
    cycle: str = ""
    """how far the scheduler is with it, if that is known"""


class PageSource(ShownCluster):
    """What the page shows: the cluster as it is now, and what else can be asked of it."""

    kind = "snapshot"
    is_live = False

    def __init__(self, cluster: InspectedCluster, journal: PageJournal | None) -> None:
        self.cluster = cluster
        self.view = cluster.view
        self.users_of = cluster.view.users_of
        self.journal = journal

    @property
    def ledger(self) -> Ledger:
        return self.view.ledger

    def is_handing_over(self, uid: str) -> bool:
        return self.view.state_of(uid) is CycleState.HANDING_OVER

    def held_until(self, uid: str) -> float | None:
        return self.view.held_until(uid)

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

    def measured_anew(self) -> Iterable[str]:
        """Nodes whose measurements changed since the last call."""
        return ()

    @abstractmethod
    def waiting(self) -> Iterable[WaitingPod]: ...

    def gang_since(self, gang: GangView) -> float | None:
        """Unix seconds since which it waits: since the first of the members that wait was created."""
        created = [self.origin(request.uid).created for request in gang.pending]
        return min((moment for moment in created if moment is not None), default=None)

    def node_facts(self, name: str) -> Json:
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

    async def explain(self, namespace: str, name: str) -> PodAnswer | None:
        key = f"{namespace}/{name}"
        return PodAnswer(explain(self.cluster, key)) if key in self.cluster.pods else None

    async def fork(self) -> OfflineCluster:
        self.cluster.state.require_nodes()
        return self.cluster.fork()


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
        self._waiting = [replace(pod, candidates=everywhere) for pod, _ in refused_then(timeline, moment, self.origin)]

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
