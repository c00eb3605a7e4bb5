"""NVIDIA nodes of the demo: the sandbox's kubelet calls the real node agent, which works on simulated cards.

    simulated cards --> HardwareWatch --> NodeRegistrar --> annotations of the node
    kubelet's Allocate --> SliceAllocator --> SharingMode --> what the container gets

Only the sockets between kubelet and agent are left out: calls stay in the process. The library files that a real node
gets from an image are empty files in the node's own folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from tessera.host.async_hardware import AsyncInventory
from tessera.host.cards import Hardware
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster
from tessera.lab.sandbox.api.kinds import Json
from tessera.lab.sandbox.nodes.allocation import AllocateError
from tessera.lab.sandbox.nodes.kubelet import Kubelet
from tessera.lab.sandbox.nodes.node import SimulatedNode, SimulatedNodeSpec
from tessera.lab.sandbox.objects import name_of, namespace_of, uid_of
from tessera.node.agent import NotStarted
from tessera.node.fleet import Fleet
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.kube_api import KubeCluster
from tessera.node.health.hardware_watch import HardwareWatch
from tessera.node.live_claims import LiveClaims
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.factory import build_mode
from tessera.node.modes.mig.annotations import MigAnnotations
from tessera.node.reconciler import Reconciler
from tessera.node.registration.devices import registrable
from tessera.node.registration.registrar import NodeRegistrar
from tessera.node.settings import AgentSettings, Paths

COMPONENT = "tessera-device-plugin"
LIBRARY = ("libvgpu.so", "ld.so.preload")


def paths_in(folder: Path) -> Paths:
    """Everything that an agent touches on its machine, below one folder; no sockets."""
    library = folder / "hook" / "vgpu"
    library.mkdir(parents=True)
    for name in LIBRARY:
        (library / name).touch()
    return Paths(
        plugins=folder / "plugins",
        kubelet_socket=None,
        pod_resources=None,
        hook=folder / "hook",
        lock=folder / "lock",
        state=folder / "state",
        cdi=folder / "cdi",
        mps=folder / "mps",
        driver_root_here=folder / "driver",
    )


class RealAgent:
    """The node agent without its sockets, as the sandbox's kubelet sees a plugin."""

    def __init__(self, settings: AgentSettings, hardware: Hardware, *, client: KubeClient, kubelet: Kubelet) -> None:
        self._settings = settings
        self._hardware = hardware
        self._client = client
        self._inventory = AsyncInventory(hardware)
        self._watch = HardwareWatch(self._inventory, settings)
        self.fleet = self._watch.fleet
        self._events = EventBroadcaster(client, component=COMPONENT, host=settings.node_name)
        self._handover = NodeHandover(
            settings,
            NotStarted(),
            cluster=KubeCluster(client),
            resources=HeldDevices(kubelet),
            report=self._events.record,
            registry=CollectorRegistry(),
        )
        self._registrar = NodeRegistrar(
            client,
            self.fleet,
            settings,
            links=self._inventory.links,
            events=self._events,
        )
        self._mode = build_mode(
            settings, hardware, write=MigAnnotations(client).write, known=self._handover.pods.live_claims
        )
        self._serving = asyncio.Event()

    # -- what kubelet asks

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        await self._serving.wait()
        try:
            (answer,) = await self._handover.allocator.allocate([device_ids])
        except AllocationRefused as refusal:
            raise AllocateError(str(refusal)) from refusal
        return answer.env

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        return self._handover.allocator.prefer(available, (), count) or None

    def admitted(self, pod: Json) -> dict[str, str]:
        """The agent writes for itself."""
        return {}

    def rejected(self, pod: Json) -> dict[str, str]:
        return {}

    # -- life

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run())
                tasks.create_task(self._events.run())
                tasks.create_task(self._handover.run(self._client))
                tasks.create_task(self._registrar.run())
                tasks.create_task(self._serve())
        finally:
            self._hardware.close()
            await self._inventory.close()

    async def _serve(self) -> None:
        fleet = self.fleet.value
        while not fleet.cards:
            fleet = await self.fleet.other_than(fleet)
        await self._handover.pods.ready.wait()
        try:
            await self._mode.start(self.fleet.value)
            self._handover.use(self._settings, self._mode)
            self._serving.set()
            await Reconciler(self._mode, LiveClaims(self._handover.pods), self.fleet, mark=self._watch.mark).run()
        finally:
            await self._mode.stop()


class HeldDevices:
    """kubelet's PodResources: which container of a pod that is here holds which devices."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    async def list(self) -> Mapping[tuple[str, str, str], tuple[str, ...]]:
        pods = {uid_of(pod): pod for pod in self._kubelet.pods()}
        return {
            (namespace_of(pods[uid]), name_of(pods[uid]), container): view.device_ids
            for (uid, container), view in self._kubelet.containers.items()
            if uid in pods and view.device_ids
        }


class AgentNode(SimulatedNode):
    """A node whose cards are registered and handed out by the real agent."""

    def __init__(self, spec: SimulatedNodeSpec, settings: AgentSettings, hardware: Hardware) -> None:
        super().__init__(spec)
        self._settings = settings
        self._hardware = hardware
        self._real: RealAgent | None = None

    def agent_of(self, client: KubeClient, kubelet: Kubelet) -> RealAgent:
        self._real = RealAgent(self._settings, self._hardware, client=client, kubelet=kubelet)
        return self._real

    def registration(self) -> dict[str, str]:
        """The agent registers its cards itself."""
        return {}

    async def run(self) -> None:
        assert self._real is not None, "connect the node first"
        # The agents of all nodes share one log; their tasks inherit what it says about them.
        structlog.contextvars.bind_contextvars(node=self.name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._real.run())
            tasks.create_task(self._list_cards(self._real))

    async def _list_cards(self, agent: RealAgent) -> None:
        """Tell kubelet what there is, as ListAndWatch does."""
        async with aclosing(agent.fleet.changes()) as fleets:
            async for fleet in fleets:
                await self._listed_now(fleet)

    async def _listed_now(self, fleet: Fleet) -> None:
        if fleet.cards:
            await self.list_cards(registrable(fleet, self._settings).devices)
