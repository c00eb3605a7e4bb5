"""The cluster as a journal leaves it, as a source of the page: its last moment, and the way there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.inspect.dashboard.documents import NO_ORIGIN
from tessera.inspect.dashboard.journal import RecordedJournal, refused_then
from tessera.inspect.dashboard.source import FixedSource, NodeNames, WaitingPod
from tessera.inspect.journal_source import FileSource
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.replay import Timeline
from tessera.inspect.state import ClusterState, InspectionError
from tessera.scheduler.settings import Settings
from tessera.wire.journal import Record, SnapshotEnd, Start


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
