"""The process: listeners, certificates, metrics, signals, reload, and an orderly end.

start:   certificates -> listeners -> informers; ready when all first lists are complete
SIGHUP, or a changed file: the configuration is read again; a bad one is reported and the old one stays
SIGTERM: no new connections -> running binds end -> pending events are written -> exit 0
"""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Sequence

import structlog
import uvloop

from tessera.http11.limits import Guard, LoopIteration
from tessera.http11.router import Route
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.errors import AccessError
from tessera.scheduler.access_review import EVICT_PODS, AccessReview
from tessera.scheduler.certificates.tls import ServingTls, TlsError
from tessera.scheduler.features.moves.feature import Moves
from tessera.scheduler.http_api import (
    extender_routes,
    find_refusal,
    journal_routes,
    metrics_routes,
    moves_routes,
    webhook_routes,
    without_pages,
)
from tessera.scheduler.journal_file import JournalFile
from tessera.scheduler.metrics.exposition import Exposition
from tessera.scheduler.metrics.granted_time import GrantedTime, TenureTime
from tessera.scheduler.metrics.service_metrics import Metrics, add_readings
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.scheduler.service import Service
from tessera.scheduler.settings import Settings
from tessera.services.listener import Listener, health_routes
from tessera.services.process import FileWatch, signals
from tessera.services.value_types import Address
from tessera.vendors.registry import build_vendors
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.objects import Pod, Workload

log = structlog.get_logger(__name__)

EVENTS_SHARE = 0.25
"""of the grace period, kept for events after the last bind has ended"""
SYNC_POLL = 0.1
"""seconds between looks at whether the first lists are complete"""
YOUNG_OBJECTS = 10_000
"""allocated before the collector looks at them"""

Reload = Callable[[], Settings]
"""reads flags and files again; raises WireError or ValueError where they are bad"""


class ServedPage(SchedulerObserver):
    """A page that a package above this one serves on a listener of the scheduler.

    The scheduler knows neither its routes nor what they show. It gives the page the running service, reports to it as
    to every observer, and closes it before the listeners end."""

    headers = b""
    """lines of the head of every response"""

    def routes(self, service: Service) -> list[Route]:
        """Called once, before the listeners start."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what would keep connections open."""
        raise NotImplementedError


def run(settings: Settings, reload: Reload | None = None, page: ServedPage | None = None) -> int:
    """Run until told to stop; the exit code."""
    return uvloop.run(_main(settings, reload, page))


async def _main(settings: Settings, reload: Reload | None, page: ServedPage | None) -> int:
    try:
        access = load_access(kubeconfig=settings.kubeconfig, context=settings.context, environ=os.environ)
    except AccessError as error:
        log.error("no access to the apiserver", error=str(error))
        return 2
    async with KubeClient(
        access, timeout=settings.kube_timeout, qps=settings.kube_qps, burst=settings.kube_burst
    ) as client:
        try:
            process = Process(settings, client, reload=reload, page=page)
        except TlsError as error:
            log.error("cannot serve TLS", error=str(error))
            return 2
        return await process.run()


class Process(SchedulerObserver):
    """One running scheduler with its listeners. As an observer of the pipeline it keeps the series about cards."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        *,
        reload: Reload | None = None,
        page: ServedPage | None = None,
    ) -> None:
        self.settings = settings
        self._reload = reload
        self._client = client
        self.metrics = Metrics()
        self._page = page
        observers = [self.metrics, self] if page is None else [self.metrics, self, page]
        self.service = Service(settings, client, observer=ObserverGroup(*observers))
        kept = settings.journal
        self._journal_file = (
            JournalFile(self.service.journal, kept.file, limit=kept.file_bytes, files=kept.files) if kept.file else None
        )
        self._exposition = Exposition(
            self.service.ledger, legacy=settings.legacy_metrics, users_of=self.service.view.users_of
        )
        self._tenure_time = TenureTime(asyncio.get_running_loop().time, lambda: self.service.is_leader)
        self._granted_time = GrantedTime(self.service.ledger, self._tenure_time)
        self._tls = ServingTls(settings.tls, client, client_ca=settings.listeners.client_ca, now=time.time)
        self._tls.prepare()
        self.listeners: dict[str, Listener] = {}
        self._iteration = LoopIteration()
        self.stopping = asyncio.Event()
        self._file_watch = FileWatch(lambda: [self.settings.device_config_file])
        add_readings(self.metrics, self.service, self._tls, self._journal_file)

    async def run(self) -> int:
        """Until SIGTERM or SIGINT: 0; a fault of one part ends all: 1."""
        with signals(self.stopping, on_hangup=self._file_watch.request_reload):
            return await self._run()

    async def _run(self) -> int:
        try:
            await self._listen()
        except OSError as error:
            log.error("cannot listen", error=str(error))
            await self.close_listeners()
            return 1
        work = [
            asyncio.create_task(coroutine)
            for coroutine in (self.service.run(), self._tls.run(), self._watch_files(), self._freeze())
        ]
        stop = asyncio.create_task(self.stopping.wait())
        journal = [] if self._journal_file is None else [asyncio.create_task(self._journal_file.run())]
        try:
            # The tasks that may end by themselves only end well; anything else that ends is a fault.
            parts = [stop, *work[:3], *journal]
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Not an orderly end, but nothing of this process may go on without it.
            for task in (*work, *journal, stop):
                task.cancel()
            await asyncio.gather(*work, *journal, stop, return_exceptions=True)
            raise
        code = 0 if stop in done else 1
        if code == 0 and self.settings.shutdown_delay_s:
            await self._announce_end()
        deadline = asyncio.get_running_loop().time() + self.settings.grace_s
        log.info("stopping", binds=self.service.engine.cycles.checked_out)
        self.service.journal.close()
        await self.close_listeners()
        for task in (*work, stop):
            task.cancel()
        await _log_failures(work)
        left = await self.service.recorder.flush(deadline - asyncio.get_running_loop().time())
        if self._journal_file is not None:
            self._journal_file.stop()
            await asyncio.wait(journal, timeout=max(deadline - asyncio.get_running_loop().time(), 0.0))
            journal[0].cancel()
            await _log_failures(journal)
        log.info("stopped", events_lost=left)
        return code

    async def _announce_end(self) -> None:
        """Not ready from now on, and still served for a while: the apiserver calls the webhook over connections that
        it keeps, and does not repeat a call that is cut off."""
        seconds = self.settings.shutdown_delay_s
        log.info("ending soon", seconds=seconds)
        for listener in self.listeners.values():
            listener.announce_end()
        await asyncio.sleep(seconds)

    # -- listening

    async def _listen(self) -> None:
        listeners, tls = self.settings.listeners, self._tls.context
        engine, observe = self.service.engine, self.metrics.observe
        verbs = {"filter": engine.answer_filter, "bind": engine.answer_bind, "preempt": engine.answer_preempt}
        apply, may_evict = engine.feature(Moves).apply, AccessReview(self._client, EVICT_PODS).refuse
        decide = [
            *extender_routes(verbs, observe),
            *journal_routes(self.service.journal),
            *moves_routes(apply, may_evict, guarded=True),
        ]
        admit, metrics = webhook_routes(self.service.webhook.answer, observe), metrics_routes(self._render_metrics)
        if tls is None or (listeners.single is None and not listeners.extender_tls):
            decide = without_pages(decide)
        if listeners.single is not None:
            self._add_listener("single", listeners.single, [*decide, *admit], guard=find_refusal, tls=tls)
        else:
            own = tls if listeners.extender_tls else None
            self._add_listener("extender", listeners.extender, decide, guard=find_refusal, tls=own)
            if tls is not None:
                self._add_listener("webhook", listeners.webhook, admit, tls=tls)
        self._add_listener("metrics", listeners.metrics, metrics)
        if self._page is not None and listeners.dashboard is not None and tls is not None:
            page = self._page
            routes = [*page.routes(self.service), *moves_routes(apply, may_evict, guarded=False)]
            self._add_listener("dashboard", listeners.dashboard, routes, tls=tls, headers=page.headers)
        for name, listener in self.listeners.items():
            await listener.start()
            log.info("listening", what=name, address=str(listener.address))

    def _add_listener(
        self,
        name: str,
        address: Address | None,
        routes: list[Route],
        *,
        guard: Guard | None = None,
        tls: ssl.SSLContext | None = None,
        headers: bytes = b"",
    ) -> None:
        if address is not None:
            self.listeners[name] = Listener(
                address,
                [*routes, *health_routes(self._unready)],
                guard=guard,
                tls=tls,
                limits=self.settings.listeners.limits,
                headers=headers,
                iteration=self._iteration,
                grace=self.settings.grace_s * (1 - EVENTS_SHARE),
            )

    async def close_listeners(self) -> None:
        """Accept nothing new; running requests end within the grace period."""
        if self._page is not None:
            await self._page.close()
        await asyncio.gather(*(listener.stop() for listener in self.listeners.values()))

    def _unready(self) -> str:
        """What is missing before callers should be sent here; leading is not needed for that, but to be able to."""
        if self.stopping.is_set():
            return "this replica ends"
        return self.service.unsynced() or self.service.engine.takeover.problem or self._tls.missing()

    # -- metrics

    def on_pod(self, uid: str, pod: Pod | None) -> None:
        if pod is None:
            self._exposition.instances.drop(uid)
            self._granted_time.on_holder(uid, None)
        else:
            self._granted_time.on_holder(uid, pod.workload)
            text = pod.annotations.get(keys.MIG_ALLOCATIONS, "")
            self._exposition.instances.put(uid, node=pod.spec.node_name, text=text)

    def on_claim(self, uid: str, workload: Workload | None) -> None:
        self._granted_time.on_holder(uid, workload)

    def on_cards(self, node: str) -> None:
        self._granted_time.on_cards(node)
        self._exposition.touch(node)

    def on_tenure(self) -> None:
        self._tenure_time.begin()

    async def _render_metrics(self) -> AsyncGenerator[bytes, None]:
        self.metrics.keep_only(self.service.ledger.node_names())
        yield self.metrics.render()
        for series in (self._exposition, self._granted_time):
            async for piece in series.stream():
                yield piece

    # -- configuration

    async def _watch_files(self) -> None:
        """Read the configuration again on SIGHUP and when its file changes."""
        await self._file_watch.start()
        # The file may have changed between the first reading and the first look.
        self._read_configuration()
        while True:
            await self._file_watch.wait_for_change()
            self._read_configuration()
            self._tls.look()

    def _read_configuration(self) -> None:
        if self._reload is None:
            return
        try:
            settings = self._reload()
            vendors = build_vendors(settings.device_sections, settings.switches)
        except (WireError, ValueError, OSError) as error:
            log.error("configuration not read again, the old one stays", error=str(error))
            return
        if settings.device_sections == self.settings.device_sections:
            return
        log.info("device configuration changed")
        self.settings = settings
        self.service.replace_vendors(vendors, settings)

    async def _freeze(self) -> None:
        """Take what the first lists brought out of garbage collection: almost all of it lives for ever.

        Until they are complete the collector would look at everything again and again, and find nothing."""
        gc.disable()
        try:
            while self.service.unsynced():
                await asyncio.sleep(SYNC_POLL)
        finally:
            gc.enable()
        gc.collect()
        gc.freeze()
        # What comes later mostly stays too, and reference cycles are rare: collecting seldom is enough.
        gc.set_threshold(YOUNG_OBJECTS)
        log.info("ready", nodes=len(self.service.ledger.node_names()), pods=len(self.service.ledger.pods()))


async def _log_failures(ended: Sequence[asyncio.Task[None]]) -> None:
    for result in await asyncio.gather(*ended, return_exceptions=True):
        if isinstance(result, Exception):
            log.error("a part of the service failed", exc_info=result)
