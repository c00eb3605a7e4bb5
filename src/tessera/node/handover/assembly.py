"""All of handover on one node, put together: two watches, the answers, and what comes after them.

Everything runs in one task group; cancelling `run` ends it. Settings and sharing mode may be exchanged while it runs:
what was answered so far stays known.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from tessera.kube.client import KubeClient
from tessera.node.handover.allocator import SliceAllocator
from tessera.node.handover.claims import Claim
from tessera.node.handover.holdings import Holdings, PodResources
from tessera.node.handover.janitor import Janitor
from tessera.node.handover.kube_api import Cluster
from tessera.node.handover.locks import NodeLockRelease
from tessera.node.handover.metrics import HandoverMetrics
from tessera.node.handover.pods import NodePods, lock_reflector, pod_reflector
from tessera.node.handover.progress import Progress
from tessera.node.handover.records import Records
from tessera.node.handover.searching import Search
from tessera.node.handover.status_writer import HandoverWriter
from tessera.node.handover.verifier import Report, Verifier
from tessera.node.modes.base import SharingMode
from tessera.node.settings import AgentSettings


class NodeHandover:
    """`allocator` is what kubelet's calls go to; it answers while `run` runs."""

    def __init__(
        self,
        settings: AgentSettings,
        mode: SharingMode,
        *,
        cluster: Cluster,
        resources: PodResources | None,
        report: Report,
        registry: CollectorRegistry,
        records: Records | None = None,
    ) -> None:
        """`report` records an event; `resources` is None where kubelet's PodResources API is not to be asked."""
        metrics = HandoverMetrics(registry)
        holdings = Holdings(resources)
        self.progress = Progress(travels=settings.uses_downward_api)
        self.pods = NodePods(
            settings.node_name,
            time=lambda: asyncio.get_running_loop().time(),
            on_first=self.progress.inherit,
            on_started=self.progress.finish,
            on_ended=self.progress.ended,
            on_gone=self.progress.forget,
        )
        self.records = records if records is not None else Records(settings.paths.state)
        self._search = Search(self.pods, self.progress, holdings)
        locks = NodeLockRelease(cluster, settings.node_name)
        self._writer = HandoverWriter(cluster, self.pods, self.progress, locks, before=self.records.save)
        self.verifier = Verifier(
            self.pods,
            self.progress,
            holdings,
            self._writer,
            self.records,
            report=report,
            metrics=metrics,
        )
        self.janitor = Janitor(
            cluster, self.pods, self.progress, holdings, self._writer, locks, self.records, metrics=metrics
        )
        self.allocator = SliceAllocator(
            mode,
            self._search,
            pods=self.pods,
            progress=self.progress,
            writer=self._writer,
            locks=locks,
            records=self.records,
            verifier=self.verifier,
            metrics=metrics,
        )

    def use(self, settings: AgentSettings, mode: SharingMode) -> None:
        """From the next call on."""
        self.progress.travels = settings.uses_downward_api
        self.allocator.mode = mode

    def live_claims(self) -> list[Claim] | None:
        """Of every container that has or will have slices, for `SharingMode.settle`; None where that is unknown."""
        claims = self.pods.live_claims()
        return None if claims is None else self.records.live(claims, self.pods.is_alive)

    async def flush(self, deadline: float) -> int:
        """Write what was answered and not written yet; of how many pods that was not possible in so many seconds."""
        return await self._writer.flush(deadline)

    async def run(self, client: KubeClient | None = None) -> None:
        """Until cancelled. `client` is for the watches; without one, somebody else feeds `pods`."""
        for record in await self.records.load():
            self.progress.restore(record.ids, record.claim, record.holder)
        try:
            async with asyncio.TaskGroup() as tasks:
                if client is not None:
                    tasks.create_task(pod_reflector(client, self.pods).run())
                    tasks.create_task(lock_reflector(client, self.pods).run())
                tasks.create_task(self._writer.run())
                tasks.create_task(self.verifier.run())
                tasks.create_task(self.janitor.run())
                tasks.create_task(self.allocator.run())
        finally:
            self.records.close()
