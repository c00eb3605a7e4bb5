"""Builds the handover of one node: two watches, the answers, and what comes after them.

Everything runs in one task group; cancelling `run` ends it. Settings and sharing mode may be exchanged while it runs:
what was answered so far stays known.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.reflector import Reflector
from tessera.node.handover.allocation_state import Allocation, AllocationState
from tessera.node.handover.allocator import Admission, SliceAllocator
from tessera.node.handover.checkpoint import Checkpoint
from tessera.node.handover.holdings import Holdings
from tessera.node.handover.pod_cache import KubeCluster, PodCache, node_reflector, pod_reflector
from tessera.node.handover.status_writer import StatusWriter
from tessera.node.handover.verifier import PodResources, Report, Verifier
from tessera.node.modes.base import SharingMode
from tessera.node.settings import AgentSettings
from tessera.services.exposition import Counter, Registry

SWEEP_S = 5.0
"""seconds between sweeps"""


class NodeHandover:
    """`allocator` is what kubelet's calls go to; it answers while `run` runs."""

    def __init__(
        self,
        settings: AgentSettings,
        mode: SharingMode,
        *,
        cluster: KubeCluster,
        resources: PodResources | None,
        report: Report,
        registry: Registry,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """`report` records an event; `resources` is None where kubelet's PodResources API is not to be asked."""
        self._state = AllocationState(downward_api=settings.uses_downward_api)
        self.pods = PodCache(
            settings.node_name,
            cluster,
            time=lambda: asyncio.get_running_loop().time(),
            on_gone=self._on_gone,
        )
        self.checkpoint = checkpoint if checkpoint is not None else Checkpoint(settings.paths.state)
        self._writer = StatusWriter(cluster, self.pods, self._state)
        self._verifier = Verifier(
            self.pods, self._state, self._writer, resources=resources, report=report, registry=registry
        )
        self.holdings = Holdings(self.pods, self._state, checkpoint=self.checkpoint, verifier=self._verifier)
        self.allocator = SliceAllocator(
            mode,
            self.pods,
            self._state,
            writer=self._writer,
            verifier=self._verifier,
            checkpoint=self.checkpoint,
            registry=registry,
        )
        self._watches: dict[str, Reflector[Any]] = {}
        self._repairs = Counter(
            registry,
            "tessera_agent_repairs_total",
            "Leftovers of a crash that were cleaned up",
            label="what",
            values=("handover", "lock"),
        )

    @property
    def watch_ages(self) -> dict[str, float]:
        """By resource, seconds since its watch last said something."""
        return {resource: watch.age for resource, watch in self._watches.items()}

    def use(self, settings: AgentSettings, mode: SharingMode, admission: Admission | None) -> None:
        """From the next call on. `admission` says what fits; None where the mode refuses everything."""
        self._state.downward_api = settings.uses_downward_api
        self.allocator.mode = mode
        self.allocator.admission = admission

    def on_new_kubelet(self) -> None:
        """kubelet has restarted."""
        self._state.doubt()

    async def flush(self, deadline: float) -> int:
        """Write what was answered and not written yet; the number of pods for which that took more seconds."""
        return await self._writer.flush(deadline)

    async def run(self, client: KubeClient | None = None) -> None:
        """Until cancelled. `client` is for the watches; without one, the caller feeds `pods`."""
        records = await self.checkpoint.load()
        self.holdings.restore(records)
        for record in records:
            if record.ids:
                self._state.add(Allocation(frozenset(record.ids), frozenset(record.askers), record.assignment))
        self._state.doubt()
        async with asyncio.TaskGroup() as tasks:
            if client is not None:
                self._watches = {
                    "pods": pod_reflector(client, self.pods),
                    "nodes": node_reflector(client, self.pods),
                }
                for watch in self._watches.values():
                    tasks.create_task(watch.run())
            tasks.create_task(self._writer.run())
            tasks.create_task(self._verifier.run())
            tasks.create_task(self._sweep_regularly())
            tasks.create_task(self.allocator.run())

    async def sweep(self) -> None:
        """Make up for what a crash left behind, as far as it is known for certain; forget pods that are gone."""
        ended = await self._verifier.end_late_handovers()
        self._repairs.add(ended, value="handover")
        self._repairs.add(await self._writer.release_stale_lock(), value="lock")
        await self.holdings.refresh(patient=True)
        answered = self._state.uids()
        await self.checkpoint.prune(
            lambda uid: uid in answered or self.pods.get(uid) is not None or self.holdings.has_departed(uid)
        )

    def _on_gone(self, uid: str) -> None:
        self.holdings.on_gone(uid)
        self._state.forget(uid)

    async def _sweep_regularly(self) -> None:
        await self.pods.ready.wait()
        for uid in self._state.uids():
            # The pod went while no agent was there to see it.
            if self.pods.get(uid) is None:
                self._state.forget(uid)
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_S)
