"""A process that works on its own and serves its metrics meanwhile, until it is told to stop.

start:            the metrics are served -> the work begins
SIGTERM, SIGINT:  the work is cancelled, exit 0
no address, an unexpected fault, or the end of the work:  exit 1
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from tessera.services import exposition
from tessera.services.addresses import Address
from tessera.services.common_settings import ListenerLimits
from tessera.services.listener import Listener, health_routes, metrics_route

log = structlog.get_logger(__name__)

STOPS = (signal.SIGTERM, signal.SIGINT)
GRACE_S = 2.0
"""for a scrape in progress at the end"""


class Worker:
    """One running process. A subclass says what the work is; build it on the event loop that runs it."""

    def __init__(
        self,
        metrics: Address,
        limits: ListenerLimits,
        *,
        missing: Callable[[], str],
        fault: Callable[[], str] = str,
    ) -> None:
        """`missing` and `fault` are those of `health_routes`."""
        self.listening = asyncio.Event()
        self.address: Address | None = None
        """of the metrics; set before `listening`"""
        self.stopping = asyncio.Event()
        self.registry = CollectorRegistry()
        self._metrics = metrics
        routes = [metrics_route(partial(exposition.render, self.registry)), *health_routes(missing, fault)]
        self._listener = Listener(metrics, routes, limits=limits, grace=GRACE_S)

    async def work(self) -> None:
        """Does not end by itself."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called at the end, after the work."""

    async def run(self) -> int:
        """Returns 0 after a signal, 1 after a fault."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self.stopping.set)
        work, stop = asyncio.create_task(self._serve()), asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            code = 0 if stop.done() else 1
        finally:
            work.cancel()
            stop.cancel()
            (fault, _) = await asyncio.gather(work, stop, return_exceptions=True)
            await self.close()
            for number in STOPS:
                loop.remove_signal_handler(number)
        if isinstance(fault, OSError):
            log.error("cannot listen", address=str(self._metrics), error=str(fault))
        elif isinstance(fault, Exception):
            log.error("a part of the process failed", exc_info=fault)
        log.info("stopped")
        return code

    async def _serve(self) -> None:
        try:
            await self._listener.start()
            self.address = self._listener.address
            self.listening.set()
            log.info("listening", what="metrics", address=str(self.address))
            await self.work()
        finally:
            await self._listener.stop()
