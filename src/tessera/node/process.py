"""The life of the agent process: hardware, signals, reload, and an orderly end.

    start:    cards are watched -> the agent's parts run (`agent`) -> ready
    SIGHUP, or a changed file:  read and check again -> parts end and start with it; a bad one changes nothing
    a fault of a part:          parts end and start again after a pause that grows up to a bound
    SIGTERM, SIGINT, SIGQUIT:   parts end, the socket is gone -> handovers and events are written -> exit 0

Card health and handovers survive all of these but the last. The process never exits because cards, kubelet or the
apiserver are away.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

import structlog

from tessera.host.call_thread import CallTimeout, call_once
from tessera.host.cards import Hardware
from tessera.kube.access import load_access
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import AccessError
from tessera.node.agent import COMPONENT, NodeAgent, Surroundings
from tessera.node.configuration import changes, save_last_good
from tessera.node.inventory import choose_hardware
from tessera.node.metrics import AgentMetrics, AgentStatus, serve
from tessera.node.settings import Configuration
from tessera.services.process import STOPS, FileWatch, run_until, signals
from tessera.services.value_types import Address
from tessera.wire.errors import WireError

log = structlog.get_logger(__name__)

CLOSE_S = 3.0
"""for the driver"""
FLUSH_S = 3.0
"""for unwritten handovers at the end, and again for events"""
PAUSES = Backoff(initial=1.0, cap=60.0, floor=0.5)
"""after faults of the agent's parts"""
SOUND_S = 300.0
"""after this long without a fault the back-off starts again"""

Reload = Callable[[], Configuration]
"""reads flags and files again; raises WireError or ValueError"""


def run(configuration: Configuration, reload: Reload | None = None) -> int:
    """Runs until stopped. Returns the exit code."""
    return asyncio.run(_main(configuration, reload))


async def _main(configuration: Configuration, reload: Reload | None) -> int:
    try:
        access = load_access(
            kubeconfig=configuration.kubeconfig, context=configuration.context, environ=configuration.settings.environ
        )
        hardware = await asyncio.to_thread(choose_hardware, configuration)
    except (AccessError, WireError) as error:
        log.error("cannot start", error=str(error))
        return 2
    async with KubeClient(access, user_agent=COMPONENT) as client:
        try:
            return await AgentProcess(configuration, client, hardware, reload=reload).run()
        finally:
            await _close(hardware)


class AgentProcess:
    """One running agent. Build it on the event loop that runs it."""

    def __init__(
        self, configuration: Configuration, client: KubeClient, hardware: Hardware, *, reload: Reload | None = None
    ) -> None:
        self.configuration = configuration
        self._reload = reload
        self.metrics = AgentMetrics(self._status)
        self.around = Surroundings(
            configuration.settings, client=client, hardware=hardware, registry=self.metrics.registry
        )
        self.agent: NodeAgent | None = None
        self.listening = asyncio.Event()
        self.address: Address | None = None
        """of the metrics; set before `listening`"""
        self.stopping = asyncio.Event()
        self._file_watch = FileWatch(lambda: self.configuration.files)
        self._restart = asyncio.Event()
        self._parts_over = asyncio.Event()
        self._kept: str | None = None

    async def run(self) -> int:
        """Returns 0 after a signal, 1 after a fault outside the parts that can be restarted."""
        with signals(self.stopping, stops=(*STOPS, signal.SIGQUIT), on_hangup=self._file_watch.request_reload):
            return await self._until_stopped()

    def missing(self) -> str:
        """Returns why pods cannot be served; empty if ready."""
        return self.agent.missing() if self.agent is not None else "the agent is starting"

    def _on_listening(self, address: Address) -> None:
        self.address = address
        self.listening.set()

    async def _until_stopped(self) -> int:
        self._log_problems(self.configuration)
        try:
            was_stopped, fault = await run_until(self.stopping, self._work(), end=self._end_in_order)
        finally:
            await self.around.inventory.close()
        if fault is not None:
            log.error("a part of the agent failed", exc_info=fault)
        lost = await asyncio.gather(self.around.events.flush(FLUSH_S), self.around.link_events.flush(FLUSH_S))
        log.info("stopped", events_lost=sum(lost))
        return 0 if was_stopped else 1

    async def _end_in_order(self, work: asyncio.Task[None]) -> None:
        """Stops serving first, then writes what was handed over. The next agent writes the rest."""
        log.info("stopping")
        self._restart.set()
        over = asyncio.create_task(self._parts_over.wait())
        await asyncio.wait([over, work], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not work.done():
            left = await self.around.handover.flush(FLUSH_S)
            if left:
                log.warning("handovers are not written", pods=left)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.around.run())
            group.create_task(self._watch_files())
            group.create_task(self._run_parts())
            if self.configuration.metrics is not None:
                group.create_task(
                    serve(
                        self.configuration.metrics,
                        self.metrics,
                        limits=self.configuration.limits,
                        missing=self.missing,
                        on_listening=self._on_listening,
                    )
                )

    # -- the agent's parts

    async def _run_parts(self) -> None:
        """Runs the parts with one configuration after the other, each until it changes or a part fails."""
        failures, time = 0, asyncio.get_running_loop().time
        while not self.stopping.is_set():
            self._restart.clear()
            self.agent = NodeAgent(self.configuration.settings, self.around)
            await self._keep_node_file()
            began = time()
            _, fault = await run_until(self._restart, self.agent.run())
            if fault is None:
                failures = 0
                continue
            failures = 1 if time() - began >= SOUND_S else failures + 1
            pause = PAUSES.delay(failures)
            self.metrics.restarts.add()
            log.error("a part of the agent failed; restarting all parts", again_in_s=round(pause, 1), exc_info=fault)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._restart.wait()
        self._parts_over.set()

    async def _keep_node_file(self) -> None:
        text = self.configuration.node_config
        if text is None or text == self._kept:
            return
        before, self._kept = self._kept, text  # at once: two tasks come here
        try:
            await asyncio.to_thread(save_last_good, text, self.configuration.settings.paths.state)
        except OSError as error:
            self._kept = before
            log.warning("the node configuration cannot be kept for later", error=str(error))

    # -- configuration

    async def _watch_files(self) -> None:
        """Reads the configuration again on SIGHUP and when a file changes."""
        await self._file_watch.start()
        # A file may have changed since it was first read.
        await self._read_again(asked=False)
        while True:
            await self._read_again(asked=await self._file_watch.wait_for_change())

    async def _read_again(self, *, asked: bool) -> None:
        if self._reload is None:
            return
        try:
            found = await asyncio.to_thread(self._reload)
        except (WireError, ValueError, OSError) as error:
            log.error("configuration not read again, the old one stays", error=str(error))
            self.metrics.reloads.add(value="refused")
            return
        old, self.configuration = self.configuration, found
        if (found.faults, found.warnings) != (old.faults, old.warnings):
            self._log_problems(found)
        changed = found.settings != old.settings
        self.metrics.reloads.add(value="taken" if changed else "unchanged")
        if not changed and not asked:
            await self._keep_node_file()
            return
        if changed:
            log.info("configuration changed", settings=changes(found, since=old))
        else:
            log.info("restarting with the same configuration")
        if found.settings.paths.driver_root_here != old.settings.paths.driver_root_here:
            log.warning("another driver root takes effect when the agent is restarted")
        self.around.watch.use(found.settings)
        self._restart.set()

    def _log_problems(self, configuration: Configuration) -> None:
        for text in configuration.faults:
            log.error("configuration fault", problem=text)
        for text in configuration.warnings:
            log.warning("configuration", warning=text)

    # -- metrics

    def _status(self) -> AgentStatus:
        agent, around = self.agent, self.around
        return AgentStatus(
            fleet=around.fleet.value,
            faults=around.watch.faults,
            missing=self.missing(),
            registered=agent is not None and agent.registered,
            registration_failures=0 if agent is None else agent.registrar.failures,
            events_dropped=around.events.dropped + around.link_events.dropped,
            watch_ages=around.handover.watch_ages,
        )


async def _close(hardware: Hardware) -> None:
    """A driver that hangs does not keep the process from exiting."""
    with suppress(CallTimeout):
        await call_once("closing", hardware.close, deadline=CLOSE_S)
