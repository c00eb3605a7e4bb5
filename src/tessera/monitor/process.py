"""The life of the monitor process: watch the pods, run a round every few seconds, serve the metrics.

    start:            pods are listed -> rounds -> ready
    a failed round:   no container metrics; /healthz and /readyz say why -> the next round tries again
    no address, or an unexpected fault:  exit 1
    SIGTERM, SIGINT:  exit 0

The driver is read beside the rounds: while it is missing or hangs, only the card metrics are missing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.cards import InventoryError
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.errors import AccessError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS
from tessera.monitor.collector import RegionCollector, Snapshot
from tessera.monitor.device_usage import CardUtilization, HostUsage
from tessera.monitor.metrics import MonitorMetrics, ScrapeView, UsedTime
from tessera.monitor.pods import ClaimUsers, Pods
from tessera.monitor.settings import MonitorSettings
from tessera.services.exposition import Registry
from tessera.services.listener import Listener, health_routes, metrics_route
from tessera.services.process import run_until, signals
from tessera.services.value_types import Address
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)

COMPONENT = "tessera-monitor"
ROUND_S = 5.0
"""between rounds, as HAMi-core expects"""
DEADLINE_S = 30.0
"""for one round; milliseconds on a working disk"""
DRIVER_S = 10.0
"""for the driver to read all cards"""
CLOSE_S = 3.0
GRACE_S = 2.0
"""for a scrape in progress at the end"""
SHOWN = 5
"""problems in one message"""


def run(settings: MonitorSettings) -> int:
    """Runs until stopped. Returns the exit code."""
    return asyncio.run(_main(settings))


async def _main(settings: MonitorSettings) -> int:
    for text in settings.warnings:
        log.warning("configuration", warning=text)
    try:
        access = load_access(kubeconfig=settings.kubeconfig, context=settings.context, environ=os.environ)
    except AccessError as error:
        log.error("cannot start", error=str(error))
        return 2
    async with KubeClient(access, user_agent=COMPONENT) as client:
        return await MonitorProcess(settings, client).run()


class MonitorProcess:
    """One running monitor. Build it on the event loop that runs it."""

    def __init__(
        self,
        settings: MonitorSettings,
        client: KubeClient,
        *,
        host: HostUsage | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.listening = asyncio.Event()
        self.address: Address | None = None
        """of the metrics; set before `listening`"""
        self.stopping = asyncio.Event()
        self.pods = Pods()
        self._reflector = Reflector(
            client,
            PODS.path(),
            Pod,
            self.pods,
            field_selector=f"spec.nodeName={settings.node_name}",
            on_error=self.pods.on_error,
        )
        self._claims = ClaimUsers(client)
        self._collector = RegionCollector(settings.base, interval=settings.resync)
        self._host = host or HostUsage(settings.driver_root)
        self._now = now
        self._round_thread = CallThread("regions")
        self._driver_thread = CallThread("driver")
        self._snapshot = Snapshot()
        self._cards: tuple[CardUtilization, ...] = ()
        self._missing = "the node's pods are not known yet"
        self._logged: dict[str, str] = {}
        self._used_time = UsedTime(settings.node_name, asyncio.get_running_loop().time)
        self.registry = Registry()
        self.registry.register(MonitorMetrics(self._view, legacy=settings.legacy_metrics).collect)
        self.registry.register(self._used_time.collect)
        # /healthz says the same as /readyz: a monitor that cannot read the regions is of no use.
        health = health_routes(self.missing, self.missing)
        routes = [metrics_route(self.registry.render), *health]
        self._listener = Listener(settings.metrics, routes, limits=settings.limits, grace=GRACE_S)

    async def run(self) -> int:
        """Returns 0 after a signal, 1 after a fault."""
        with signals(self.stopping):
            try:
                was_stopped, fault = await run_until(self.stopping, self._serve())
            finally:
                await self._close()
        if isinstance(fault, OSError):
            log.error("cannot listen", address=str(self.settings.metrics), error=str(fault))
        elif fault is not None:
            log.error("a part of the process failed", exc_info=fault)
        log.info("stopped")
        return 0 if was_stopped else 1

    def missing(self) -> str:
        """Returns why container metrics are missing; empty if they are not."""
        return self._missing

    async def _serve(self) -> None:
        try:
            await self._listener.start()
            self.address = self._listener.address
            self.listening.set()
            log.info("listening", what="metrics", address=str(self.address))
            await self._work()
        finally:
            await self._listener.stop()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._collect_repeatedly())
            group.create_task(self._look_up_claims_repeatedly())
            group.create_task(self._read_driver_repeatedly())

    async def _collect_repeatedly(self) -> None:
        await self.pods.ready.wait()
        while True:
            pods = self.pods.all()
            granted = self._claims.granted(pods, [card.uuid for card in self._cards])
            look = partial(
                self._collector.run, granted, self.pods.uids(), claimed=self._claims.owners(), now=self._now()
            )
            try:
                self._snapshot = await self._round_thread.call(look, deadline=DEADLINE_S)
                self._missing = ""
            except (OSError, CallTimeout) as error:
                # Old values would look like current ones.
                self._snapshot, self._missing = Snapshot(), f"regions cannot be read: {error}"
            self._used_time.on_round(pods, self._snapshot.regions, granted)
            self._log_problem("regions", self._missing or "; ".join(self._snapshot.problems[:SHOWN]))
            await asyncio.sleep(ROUND_S)

    async def _look_up_claims_repeatedly(self) -> None:
        """Beside the rounds, which must not wait for the apiserver."""
        await self.pods.ready.wait()
        while True:
            problem = await self._claims.look_up(self.pods.all(), self._snapshot.claim_dirs)
            self._log_problem("claims", problem)
            await asyncio.sleep(ROUND_S)

    async def _read_driver_repeatedly(self) -> None:
        while True:
            try:
                self._cards = await self._driver_thread.call(self._host.read, deadline=DRIVER_S)
                self._log_problem("driver", "")
            except (InventoryError, CallTimeout) as error:
                self._cards = ()
                self._log_problem("driver", str(error))
            self._used_time.on_cards(self._cards)
            await asyncio.sleep(ROUND_S)

    def _log_problem(self, what: str, problem: str) -> None:
        """Logs each problem once, not once per round."""
        if problem and problem != self._logged.get(what):
            log.warning("metrics are incomplete", what=what, problem=problem)
        self._logged[what] = problem

    def _view(self) -> ScrapeView:
        return ScrapeView(
            node=self.settings.node_name,
            now=self._now(),
            pods=self.pods.all(),
            regions=self._snapshot.regions,
            cards=self._cards,
        )

    async def _close(self) -> None:
        """A driver or disk that hangs does not keep the process from exiting."""
        with suppress(CallTimeout):
            await self._driver_thread.call(self._host.close, deadline=CLOSE_S)
        await self._driver_thread.close(patience=0.0)
        await self._round_thread.close(patience=CLOSE_S)
