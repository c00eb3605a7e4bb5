"""One agent put together: what lives as long as the process, and what is made anew for every configuration.

    Surroundings   apiserver, cards, handover and its memory: a new configuration must not lose what was answered
    Agent          registration, kubelet's plugin and the sharing mode, with one set of settings

An agent serves once the cards and the node's pods are known, so that kubelet never sees a list without cards that are
there, nor an answer about a pod that is not known yet. It ends by cancellation; nothing of it goes on afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

import structlog
from prometheus_client import CollectorRegistry

from tessera.kube.client import KubeClient
from tessera.kube.events import EventRecorder
from tessera.node.current import Current
from tessera.node.fleet import Fleet
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.claims import Claim
from tessera.node.handover.cluster import KubeCluster
from tessera.node.inventory.cards import Hardware
from tessera.node.kubelet.plugin import Plugin
from tessera.node.kubelet.pod_resources import PodResources, PodResourcesError
from tessera.node.modes.answers import Answer, Refused
from tessera.node.modes.choosing import build_mode
from tessera.node.modes.mig_annotations import MigAnnotations
from tessera.node.registration.registrar import NodeRegistrar
from tessera.node.registration.scoring import AskLinks
from tessera.node.retiring import retire
from tessera.node.settings import AgentSettings
from tessera.node.settling import Settling
from tessera.node.static_mig.assembly import build_static_mig, serves_instances
from tessera.node.static_mig.serving import StaticMig
from tessera.node.static_mig.watching import InstanceWatch

log = structlog.get_logger(__name__)

STOP_S = 15.0
"""for a sharing mode to end what it is doing"""


class Holders:
    """kubelet's PodResources, of the resource that is served now."""

    def __init__(self) -> None:
        self._asked: PodResources | None = None

    async def use(self, settings: AgentSettings) -> None:
        before, path = self._asked, settings.paths.pod_resources
        self._asked = None if path is None else PodResources(path, settings.resource)
        if before is not None:
            await before.close()

    async def list(self) -> Mapping[tuple[str, str, str], tuple[str, ...]]:
        if self._asked is None:
            raise PodResourcesError("nobody is to be asked (--pod-resources-socket)")
        return {(at.namespace, at.pod, at.container): ids for at, ids in (await self._asked.list()).items()}

    async def held(self) -> Collection[Collection[str]] | None:
        """Device ids of every container that holds some; None where that is unknown."""
        try:
            return list((await self.list()).values())
        except PodResourcesError:
            return None

    async def close(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            await asked.close()


class NotStarted:
    """The sharing mode while there is none."""

    async def start(self, fleet: Fleet) -> None: ...

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        raise Refused("the node agent is starting; try again")

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        raise Refused("the node agent is starting; try again")

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None: ...

    async def stop(self) -> None: ...


class Surroundings:
    """Make it on the event loop that runs it."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        client: KubeClient,
        hardware: Hardware,
        fleet: Current[Fleet],
        links: AskLinks,
        events: EventRecorder,
        link_events: EventRecorder,
        mark: Callable[[Mapping[str, str]], None],
        registry: CollectorRegistry,
    ) -> None:
        """`mark` takes the cards that the sharing mode cannot share now."""
        self.client = client
        self.hardware = hardware
        self.fleet = fleet
        self.links = links
        self.link_events = link_events
        self.mark = mark
        self.holders = Holders()
        self.handover = NodeHandover(
            settings,
            NotStarted(),
            cluster=KubeCluster(client),
            resources=None if settings.paths.pod_resources is None else self.holders,
            report=events.record,
            registry=registry,
        )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self.handover.run(self.client)
        finally:
            await self.holders.close()


class Agent:
    """Lives as long as its settings."""

    def __init__(self, settings: AgentSettings, around: Surroundings) -> None:
        self._settings = settings
        self._around = around
        handover = around.handover
        self.registrar = NodeRegistrar(
            around.client,
            around.fleet,
            settings,
            links=around.links,
            events=around.link_events,
            zone=datetime.now().astimezone().tzinfo or UTC,
        )
        watch = InstanceWatch(around.hardware, around.fleet, strategy=settings.node.mig_strategy)
        self.mode = build_mode(
            settings,
            around.hardware,
            write=MigAnnotations(around.client).write,
            held=around.holders.held,
            known=lambda: handover.live_claims() if handover.pods.ready.is_set() else None,
            instances=watch.instances,
        )
        self.plugin: Plugin | StaticMig = Plugin(
            settings, around.fleet, handover.allocator, on_new_kubelet=handover.progress.kubelet_is_new
        )
        if serves_instances(settings):
            self.plugin = build_static_mig(settings, watch, fleet=around.fleet, mode=self.mode, shared=self.plugin)

    @property
    def registered(self) -> bool:
        """Whether kubelet can use the plugin."""
        return not self.plugin.problem

    def missing(self) -> str:
        """Why kubelet's pods cannot be served; empty = ready."""
        fleet = self._around.fleet.value
        if not _known(fleet):
            return f"no cards: {fleet.problem}" if self._settings.fail_on_init_error else ""
        if not self._around.handover.pods.ready.is_set():
            return "the first list of this node's pods is not complete"
        if self.plugin.problem:
            return f"kubelet cannot use the plugin: {self.plugin.problem}"
        written = self.registrar.done and not self.registrar.failures
        return "" if written else "the node is not registered with the scheduler"

    async def run(self) -> None:
        """Until cancelled; a part that fails ends all."""
        await self._around.holders.use(self._settings)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.registrar.run())
            group.create_task(self._serve())
            group.create_task(retire(self._settings, self._around.hardware, self._around.handover))

    async def _serve(self) -> None:
        around = self._around
        await self._cards_known()
        await around.handover.pods.ready.wait()
        try:
            await self.mode.start(around.fleet.value)
            around.handover.use(self._settings, self.mode)
            async with asyncio.TaskGroup() as group:
                group.create_task(Settling(self.mode, around.handover, around.fleet, mark=around.mark).run())
                group.create_task(self.plugin.run())
        finally:
            around.handover.use(self._settings, NotStarted())
            around.mark({})
            await self._stop_mode()

    async def _cards_known(self) -> None:
        async with aclosing(self._around.fleet.changes()) as fleets:
            async for fleet in fleets:
                if _known(fleet):
                    return

    async def _stop_mode(self) -> None:
        try:
            # Not asyncio.timeout: in a task that is being cancelled, Debian 12's Python (3.11.2) lets the cancellation
            # out there instead of a TimeoutError.
            await asyncio.wait_for(self.mode.stop(), STOP_S)
        except TimeoutError:
            log.warning("the sharing mode did not end in time", seconds=STOP_S)


def _known(fleet: Fleet) -> bool:
    """Whether it says what there is, and not only that nothing could be read so far."""
    return not fleet.problem or bool(fleet.cards)
