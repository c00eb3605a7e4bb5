"""The life of the process: watch the node's pods, one round every few seconds, and show what was found.

    start:            pods are listed -> rounds -> ready
    a failed round:   what was known is shown no more, /healthz and /readyz say why -> the next round is tried
    no address, or a fault that nobody foresaw:  exit 1, so that whoever started it sees it
    SIGTERM, SIGINT:  exit 0

The driver is asked beside the rounds: while it is away or hangs, only the series of cards are missing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.errors import AccessError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS
from tessera.monitor.collector import Rounds, Snapshot
from tessera.monitor.device_usage import CardUse, HostUse
from tessera.monitor.metrics import Seen, Series
from tessera.monitor.pods import Pods
from tessera.monitor.settings import MonitorSettings
from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import InventoryError
from tessera.services import exposition as exposing
from tessera.services.addresses import Address
from tessera.services.listener import Listener
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)

COMPONENT = "tessera-monitor"
STOPS = (signal.SIGTERM, signal.SIGINT)
ROUND_S = 5.0
"""between rounds, as HAMi-core expects it"""
DEADLINE_S = 30.0
"""for one round; milliseconds on a working disk"""
DRIVER_S = 10.0
"""for the driver to answer about all cards"""
GRACE_S = 2.0
"""for a scrape that is under way at the end"""
CLOSE_S = 3.0
SHOWN = 5
"""problems in one message"""


def run(settings: MonitorSettings) -> int:
    """Run until told to stop; the exit code."""
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
        return await Process(settings, client).run()


class Process:
    """One running monitor. Make it on the event loop that runs it."""

    def __init__(
        self,
        settings: MonitorSettings,
        client: KubeClient,
        *,
        host: HostUse | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.listening = asyncio.Event()
        self.address: Address | None = None
        """of the metrics; known once `listening` is set"""
        self.stopping = asyncio.Event()
        self.pods = Pods()
        self._reflector = Reflector(
            client,
            PODS.path(),
            Pod,
            self.pods,
            key=lambda pod: f"{pod.metadata.namespace}/{pod.metadata.name}",
            uid=lambda pod: pod.metadata.uid,
            version=lambda pod: pod.metadata.resource_version,
            field_selector=f"spec.nodeName={settings.node_name}",
            on_error=self.pods.hear,
        )
        self._rounds = Rounds(settings.base, interval=settings.resync)
        self._host = host or HostUse(settings.driver_root)
        self._now = now
        self._round_thread = CallThread("regions")
        self._driver_thread = CallThread("driver")
        self._snapshot = Snapshot()
        self._cards: tuple[CardUse, ...] = ()
        self._missing = "the node's pods are not known yet"
        self._said: dict[str, str] = {}
        self._registry = CollectorRegistry()
        self._registry.register(Series(self._seen, legacy=settings.legacy_metrics))

    def missing(self) -> str:
        """Why nothing true can be said about containers; empty = all is well."""
        return self._missing

    async def run(self) -> int:
        """Until a signal: 0; a fault: 1."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self.stopping.set)
        work, stop = asyncio.create_task(self._work()), asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            code = 0 if stop.done() else 1
        finally:
            work.cancel()
            stop.cancel()
            (fault, _) = await asyncio.gather(work, stop, return_exceptions=True)
            await self._close()
            for number in STOPS:
                loop.remove_signal_handler(number)
        if isinstance(fault, OSError):
            log.error("cannot listen", address=str(self.settings.metrics), error=str(fault))
        elif isinstance(fault, Exception):
            log.error("a part of the monitor failed", exc_info=fault)
        log.info("stopped")
        return code

    async def _work(self) -> None:
        routes = [
            web.get("/metrics", self._metrics),
            *(web.get(path, self._health) for path in ("/healthz", "/readyz")),
        ]
        listener = Listener(self.settings.metrics, routes, grace=GRACE_S)
        try:
            await listener.start()
            self.address = listener.address
            self.listening.set()
            log.info("listening", what="metrics", address=str(listener.address))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reflector.run())
                group.create_task(self._every_round())
                group.create_task(self._ask_driver())
        finally:
            await listener.stop()

    async def _every_round(self) -> None:
        await self.pods.ready.wait()
        while True:
            granted = {owner: cards for pod in self.pods.all() for owner, cards in pod.granted.items()}
            look = partial(self._rounds.run, granted, self.pods.uids(), now=self._now())
            try:
                self._snapshot = await self._round_thread.call(look, deadline=DEADLINE_S)
                self._missing = ""
            except (OSError, NoAnswer) as error:
                # Old numbers would look as good as new ones.
                self._snapshot, self._missing = Snapshot(), f"regions cannot be read: {error}"
            self._say("regions", self._missing or "; ".join(self._snapshot.problems[:SHOWN]))
            await asyncio.sleep(ROUND_S)

    async def _ask_driver(self) -> None:
        while True:
            try:
                self._cards = await self._driver_thread.call(self._host.read, deadline=DRIVER_S)
                self._say("driver", "")
            except (InventoryError, NoAnswer) as error:
                self._cards = ()
                self._say("driver", str(error))
            await asyncio.sleep(ROUND_S)

    def _say(self, what: str, problem: str) -> None:
        """Once for every change, not once a round."""
        if problem and problem != self._said.get(what):
            log.warning("not everything can be shown", what=what, problem=problem)
        self._said[what] = problem

    def _seen(self) -> Seen:
        return Seen(
            node=self.settings.node_name,
            now=self._now(),
            pods=self.pods.all(),
            regions=self._snapshot.regions,
            cards=self._cards,
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=exposing.render(self._registry), headers={"Content-Type": exposing.CONTENT_TYPE})

    async def _health(self, _request: web.Request) -> web.Response:
        text = self.missing()
        return web.Response(status=503, text=f"{text}\n") if text else web.Response()

    async def _close(self) -> None:
        """A driver or a disk that hangs does not keep the process from ending."""
        with suppress(NoAnswer):
            await self._driver_thread.call(self._host.close, deadline=CLOSE_S)
        await self._driver_thread.close(patience=0.0)
        await self._round_thread.close(patience=CLOSE_S)
