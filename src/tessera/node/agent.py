"""Builds one agent: the parts that live as long as the process, and the parts built for each configuration.

    Surroundings   cards, events, handover and its memory: a new configuration must not lose what was answered
    NodeAgent      registration, kubelet's plugin and the sharing mode, with one set of settings

With `--dra` a driver for ResourceClaims runs, and the cards are published. If kube-scheduler allocates the claims, the
cards are not registered and the classic plugin does not run; if Tessera's scheduler does, both worlds share the cards.

An agent serves once the cards and the node's pods are known, so kubelet never sees an incomplete list of cards, and no
Allocate is answered for an unknown pod. It ends by cancellation and leaves nothing running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from tessera.host.call_thread import AsyncInventory
from tessera.host.cards import Hardware
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster
from tessera.node.arbiter import Arbiter
from tessera.node.dra.driver import Driver
from tessera.node.dra.prepared_claims import FILE, PreparedClaims
from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.fleet import Fleet
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.assignments import Assignment
from tessera.node.handover.pod_cache import KubeCluster
from tessera.node.health.hardware_watch import HardwareWatch
from tessera.node.kubelet.plugin import Plugin
from tessera.node.kubelet.pod_resources import PodResourcesClient
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.node.modes.factory import build_mode
from tessera.node.modes.mig.mode import MigAnnotations
from tessera.node.modes.mig.records import boot_id
from tessera.node.reconciler import LiveAssignments, Reconciler, clean_up
from tessera.node.registration.registrar import NodeRegistrar
from tessera.node.settings import AgentSettings
from tessera.node.static_mig import InstanceWatch, StaticMig
from tessera.services.exposition import Registry

log = structlog.get_logger(__name__)

COMPONENT = "tessera-device-plugin"
LINK_COMPONENT = "hami-device-plugin"
"""source of events about links between cards, the same as HAMi's"""
LINK_WINDOW_S = 3600.0
"""equal events about links within this time become one"""
STOP_S = 15.0
"""for a sharing mode to stop"""
CLAIMED = "ResourceClaims that were prepared with --dra still hold it"


class NotStarted(SharingMode):
    """The sharing mode before the agent has started one."""

    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        raise AllocationRefused("the node agent is starting; try again")

    async def hand_over_downward_api(self, ids: Sequence[str]) -> ContainerResponse:
        raise AllocationRefused("the node agent is starting; try again")


class Surroundings:
    """What all configurations share. Build it on the event loop that runs it."""

    def __init__(self, settings: AgentSettings, *, client: KubeClient, hardware: Hardware, registry: Registry) -> None:
        self.client = client
        self.hardware = hardware
        self.inventory = AsyncInventory(hardware)
        self.watch = HardwareWatch(self.inventory, settings)
        self.fleet = self.watch.fleet
        self.events = EventBroadcaster(client, component=COMPONENT, host=settings.node_name)
        self.link_events = EventBroadcaster(
            client, component=LINK_COMPONENT, host=settings.node_name, window=LINK_WINDOW_S
        )
        self.holders = PodResourcesClient()
        self.handover = NodeHandover(
            settings,
            NotStarted(),
            cluster=KubeCluster(client),
            resources=None if settings.paths.pod_resources is None else self.holders,
            report=self.events.record,
            registry=registry,
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.watch.run())
                group.create_task(self.events.run())
                group.create_task(self.link_events.run())
                group.create_task(self.handover.run(self.client))
        finally:
            await self.holders.close()


class NodeAgent:
    """The agent with one set of settings."""

    def __init__(self, settings: AgentSettings, around: Surroundings) -> None:
        self._settings = settings
        self._around = around
        handover = around.handover
        self.registrar = NodeRegistrar(
            around.client,
            around.fleet,
            settings,
            links=around.inventory.links,
            events=around.link_events,
        )
        self._held: Mapping[str, str] = {}
        """why cards take no new pod, by uuid, whatever the sharing mode says"""
        self._prepared = PreparedClaims(settings.paths.state, settings.paths.cdi)
        self._assignments = LiveAssignments(handover.pods, self._prepared)
        watch = InstanceWatch(around.hardware, around.fleet, strategy=settings.node.mig_strategy)
        self.mode = build_mode(
            settings,
            around.hardware,
            write=MigAnnotations(around.client).write,
            held=around.holders.held,
            known=self._known_assignments,
            instances=watch.instances,
        )
        self._arbiter = Arbiter(settings, around.fleet, holdings=handover.holdings, prepared=self._prepared)
        self._driver: Driver | None = None
        if settings.dra:
            self._driver = self._build_driver()
        self._plugin: Plugin | StaticMig | None = None
        if settings.serves_pods:
            plugin = Plugin(settings, around.fleet, handover.allocator, on_new_kubelet=handover.on_new_kubelet)
            self._plugin = plugin
            if settings.node.serves_instances:
                self._plugin = StaticMig(settings, watch, fleet=around.fleet, shared=plugin, mode=self.mode)

    def _build_driver(self) -> Driver:
        settings, around = self._settings, self._around
        pods = around.handover.pods
        return Driver(
            settings,
            ClaimPreparer(
                around.client,
                settings,
                around.fleet,
                mode=self.mode,
                arbiter=self._arbiter,
                prepared=self._prepared,
                boot=boot_id(),
            ),
            SlicePublisher(around.client, around.fleet, settings, links=around.inventory.links, pods=pods),
        )

    @property
    def registered(self) -> bool:
        """Whether kubelet can use the plugin, and the driver for ResourceClaims if there is one."""
        served = (self._plugin, None if self._driver is None else self._driver.plugin)
        return all(each is None or not each.problem for each in served)

    def missing(self) -> str:
        """Returns why pods cannot be served; empty if ready."""
        fleet = self._around.fleet.value
        if not _is_known(fleet):
            return f"no cards: {fleet.problem}" if self._settings.fail_on_init_error else ""
        if not self._around.handover.pods.ready.is_set():
            return "the first list of this node's pods is not complete"
        if self._plugin is not None and self._plugin.problem:
            return f"kubelet cannot use the plugin: {self._plugin.problem}"
        if self._driver is not None and self._driver.problem:
            return self._driver.problem
        written = self.registrar.done.is_set() and not self.registrar.failures
        return "" if written else "the node is not registered with the scheduler"

    async def run(self) -> None:
        """Runs until cancelled. A part that fails ends all."""
        await self._around.holders.use(self._settings.paths.pod_resources, self._settings.resource)
        try:
            if self._driver is None:
                await self._hold_claimed_cards()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._register())
                group.create_task(self._serve())
                group.create_task(
                    clean_up(self._settings, self._around.hardware, self._assignments, fleet=self._around.fleet)
                )
        finally:
            await self._prepared.close()

    async def _register(self) -> None:
        if self._driver is not None and self._settings.serves_pods:
            # kube-scheduler may have been offered the cards until now.
            await self._driver.publisher.published.wait()
        await self.registrar.run()

    async def _hold_claimed_cards(self) -> None:
        """Takes no work for cards that ResourceClaims still hold, before they are registered. Raises OSError."""
        try:
            await self._prepared.load()
        except ValueError as error:
            raise OSError(
                f"{self._settings.paths.state / FILE} cannot be read, so it is unknown which cards ResourceClaims hold;"
                f" start with --dra, or remove it if no pod with a ResourceClaim is on the node: {error}"
            ) from error
        # Nothing that was prepared before a boot is in use, and kubelet prepares nothing without the driver.
        self._prepared.keep_only(boot_id())
        self._prepared.open()
        self._held = {each.uuid: CLAIMED for held in self._prepared.live_assignments() or () for each in held.slices}
        self._mark({})

    def _mark(self, problems: Mapping[str, str]) -> None:
        self._around.watch.mark({**problems, **self._held})

    def _known_assignments(self) -> Sequence[Assignment] | None:
        return self._assignments.all() if self._around.handover.pods.ready.is_set() else None

    async def _serve(self) -> None:
        around = self._around
        fleet = around.fleet.value
        while not _is_known(fleet):
            fleet = await around.fleet.other_than(fleet)
        await around.handover.pods.ready.wait()
        try:
            if self._driver is not None:
                await self._driver.preparer.recover()
            await self.mode.start(around.fleet.value)
            async with asyncio.TaskGroup() as group:
                group.create_task(Reconciler(self.mode, self._assignments, around.fleet, mark=self._mark).run())
                if self._driver is not None:
                    after = None if self._settings.serves_pods else self.registrar.done
                    group.create_task(self._driver.run(after=after))
                if self._plugin is not None:
                    around.handover.use(self._settings, self.mode, self._arbiter)
                    group.create_task(self._plugin.run())
        finally:
            around.handover.use(self._settings, NotStarted(), None)
            self._mark({})
            await self._stop_mode()

    async def _stop_mode(self) -> None:
        try:
            # Not asyncio.timeout: in a task that is being cancelled, Debian 12's Python (3.11.2) lets the cancellation
            # out there instead of a TimeoutError.
            await asyncio.wait_for(self.mode.stop(), STOP_S)
        except TimeoutError:
            log.warning("the sharing mode did not end in time", seconds=STOP_S)


def _is_known(fleet: Fleet) -> bool:
    """Whether the cards have been read, even if there are none."""
    return not fleet.problem or bool(fleet.cards)
