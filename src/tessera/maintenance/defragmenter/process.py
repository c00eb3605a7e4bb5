"""The life of `tessera defrag run`: hold the Lease, make a round every so often, serve the metrics.

    start ──▶ standing by ── the Lease is free ──▶ leading: rounds ── the Lease is lost ──▶ standing by
    SIGTERM, SIGINT:  what is held is given back, the Lease is released, exit 0
    no address, or an unexpected fault:  exit 1

A round that fails (an apiserver that cannot be reached) is logged, and the next one tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable

import structlog

from tessera.inspect.collector import collect
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.lease_election import LeaseElection
from tessera.kube.leases import boottime
from tessera.kube.session import run_with_client
from tessera.maintenance.defragmenter.controller import Defragmenter, Outcome, RoundOptions
from tessera.maintenance.defragmenter.eviction_budget import EvictionBudget
from tessera.maintenance.defragmenter.metrics import DefragmenterMetrics, ScrapeView
from tessera.maintenance.defragmenter.settings import DefragmenterSettings
from tessera.services.worker import Worker

log = structlog.get_logger(__name__)

COMPONENT = "tessera-defrag"
RENEWALS = 6
"""in the duration of the Lease"""


def run(settings: DefragmenterSettings) -> int:
    """Runs until stopped. Returns the exit code."""
    return asyncio.run(
        run_with_client(
            lambda client: DefragmenterProcess(settings, client).run(),
            kubeconfig=settings.kubeconfig,
            context=settings.context,
            user_agent=COMPONENT,
        )
    )


class DefragmenterProcess(Worker):
    """One running process. Build it on the event loop that runs it."""

    def __init__(
        self,
        settings: DefragmenterSettings,
        client: KubeClient,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = boottime,
    ) -> None:
        super().__init__(settings.metrics, settings.limits, missing=lambda: self._fault)
        self.settings = settings
        self.rounds: Counter[Outcome] = Counter()
        self._leading: asyncio.Task[None] | None = None
        """makes rounds while the Lease is held"""
        self._client = client
        self._now = now
        self._election = LeaseElection(
            client,
            namespace=settings.lease_namespace or client.namespace,
            name=settings.lease_name,
            identity=f"{socket.gethostname()}_{uuid.uuid4()}",
            duration_s=settings.lease_duration,
            clock=clock,
            now=now,
        )
        self._budget = EvictionBudget(self._election, per_hour=settings.evictions_per_hour, now=now, clock=clock)
        options = RoundOptions(
            patience_s=settings.patience,
            max_moves=settings.max_moves,
            step_timeout_s=settings.step_timeout,
            dry_run=settings.dry_run,
        )
        self.defragmenter = Defragmenter(client, self._look, None if settings.dry_run else self._budget, options, now)
        self._last_round = 0.0
        self._fault = ""
        self.registry.register(DefragmenterMetrics(self._view))

    async def work(self) -> None:
        if self.settings.dry_run:
            await self._make_rounds()
        else:
            await self._lead_repeatedly()

    # -- the Lease

    @property
    def is_leading(self) -> bool:
        """Whether this process makes rounds, or ends the last one."""
        return self._leading is not None

    async def _lead_repeatedly(self) -> None:
        pause = self.settings.lease_duration / RENEWALS
        try:
            while True:
                try:
                    await self._election.acquire()
                    self._fault = ""
                except KubeError as error:
                    self._fault = f"the Lease cannot be read or written: {error}"
                    log.warning("lease not renewed", error=str(error))
                await self._follow_lease()
                if self._leading is None:
                    await asyncio.sleep(pause)
                elif (await asyncio.wait([self._leading], timeout=pause))[0]:
                    self._leading.result()  # A fault: rounds do not end by themselves.
        finally:
            await self._stop_leading()
            with contextlib.suppress(KubeError):
                await self._election.release()

    async def _follow_lease(self) -> None:
        if self._election.is_held() and self._leading is None:
            log.info("leading", evictions_left=self._budget.left())
            self._leading = asyncio.create_task(self._make_rounds())
        elif self._leading is not None and not self._election.is_held():
            log.warning("the Lease is lost")
            await self._stop_leading()

    async def _stop_leading(self) -> None:
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)
            self._leading = None

    # -- rounds

    async def _make_rounds(self) -> None:
        while True:
            try:
                outcome = await self.defragmenter.make_round()
                self.rounds[outcome] += 1
                left = None if self.settings.dry_run else self._budget.left()
                log.info("round", outcome=outcome.value, waiting=self.defragmenter.figures.waiting, evictions_left=left)
            except (KubeError, InspectionError) as error:
                log.warning("round failed", error=str(error))
            self._last_round = self._now()
            await asyncio.sleep(self.settings.interval)

    async def _look(self) -> OfflineCluster:
        state = await collect(
            self._client, source="the cluster", now=self._now, namespace=None, for_preemption=True
        )  # fmt: skip
        return OfflineCluster(state)

    def _view(self) -> ScrapeView:
        return ScrapeView(
            is_leader=self._election.is_held(),
            figures=self.defragmenter.figures,
            rounds=self.rounds,
            evictions_left=self._budget.left(),
            evictions_per_hour=self.settings.evictions_per_hour,
            last_round=self._last_round,
        )
