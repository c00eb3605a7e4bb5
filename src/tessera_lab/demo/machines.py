"""The six nodes of the demo, made from files of simulated cards.

On NVIDIA nodes the sandbox's kubelet calls the real node agent, which works on simulated cards:

    simulated cards --> HardwareWatch --> NodeRegistrar --> annotations of the node
    kubelet's Allocate --> SliceAllocator --> SharingMode --> what the container gets
    kubelet's claims   --> ClaimPreparer  --> SharingMode --> what containers of the claim get, on nodes with `dra`

Only the sockets between kubelet and agent are left out: calls stay in the process. The library files that a real node
gets from an image are empty files in the node's own folder. Huawei's own plugin serves Ascend chips, so it is simulated
as well: it registers its chips, finds its pod through the node lock, and writes how the handover ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import yaml

from tessera.core.model.devices import Device
from tessera.host.call_thread import AsyncInventory
from tessera.host.cards import Hardware
from tessera.host.simulated.hardware import simulated_hardware
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster
from tessera.kube.resources import NODES
from tessera.node.agent import NotStarted
from tessera.node.arbiter import Arbiter
from tessera.node.dra.prepared_claims import PreparedClaims, cdi_device
from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.fleet import Fleet
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.handover.pod_cache import KubeCluster
from tessera.node.health.hardware_watch import HardwareWatch
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.factory import build_mode
from tessera.node.modes.mig.mode import MigAnnotations
from tessera.node.modes.mig.records import boot_id
from tessera.node.reconciler import LiveAssignments, Reconciler
from tessera.node.registration.devices import registrable
from tessera.node.registration.registrar import NodeRegistrar
from tessera.node.settings import AgentSettings, DraAllocator, Paths
from tessera.services.exposition import Registry
from tessera.vendors.ascend import CHART, VISIBLE, Ascend
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.node_config import Mode, NodeSettings
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices, encode_pod_devices
from tessera.wire.registration import encode_registration_json
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import AllocateError
from tessera_lab.sandbox.nodes.containers import ClaimKey, Environments
from tessera_lab.sandbox.nodes.kubelet import Kubelet
from tessera_lab.sandbox.nodes.node import SimulatedNode, SimulatedNodeSpec
from tessera_lab.sandbox.objects import annotations_of, containers_of, name_of, namespace_of, uid_of

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
            registry=Registry(),
        )
        self._prepared = PreparedClaims(settings.paths.state, settings.paths.cdi)
        self._registrar = NodeRegistrar(
            client,
            self.fleet,
            settings,
            links=self._inventory.links,
            events=self._events,
        )
        self._claims = LiveAssignments(self._handover.pods, self._prepared)
        self._mode = build_mode(settings, hardware, write=MigAnnotations(client).write, known=self._known_assignments)
        self._serving = asyncio.Event()
        pods = self._handover.pods
        self._arbiter = Arbiter(settings, self.fleet, holdings=self._handover.holdings, prepared=self._prepared)
        self._preparer = ClaimPreparer(
            client,
            settings,
            self.fleet,
            mode=self._mode,
            arbiter=self._arbiter,
            prepared=self._prepared,
            boot=boot_id(),
        )
        self._publisher = SlicePublisher(client, self.fleet, settings, links=self._inventory.links, pods=pods)

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

    async def prepare(self, claim: ClaimKey) -> Environments:
        await self._serving.wait()
        try:
            record = await self._preparer.prepare(ObjectKey(*claim))
        except AllocationRefused as refusal:
            raise AllocateError(str(refusal)) from refusal
        devices = {each["name"]: each for each in (record.spec or {}).get("devices", ())}
        return {
            request: _variables(devices[cdi_device(claim.uid, request)])
            for request in record.cdi_devices
            if cdi_device(claim.uid, request) in devices
        }

    async def unprepare(self, claim: ClaimKey) -> None:
        try:
            await self._preparer.unprepare(ObjectKey(*claim))
        except AllocationRefused as refusal:
            raise AllocateError(str(refusal)) from refusal

    # -- life

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run())
                tasks.create_task(self._events.run())
                tasks.create_task(self._handover.run(self._client))
                tasks.create_task(self._register())
                tasks.create_task(self._serve())
        finally:
            await self._prepared.close()
            self._hardware.close()
            await self._inventory.close()

    async def _register(self) -> None:
        if self._settings.dra:
            # kube-scheduler must not be offered cards that are registered.
            await self._publisher.published.wait()
        await self._registrar.run()

    def _known_assignments(self) -> Sequence[Assignment] | None:
        return self._claims.all() if self._handover.pods.ready.is_set() else None

    async def _serve(self) -> None:
        fleet = self.fleet.value
        while not fleet.cards:
            fleet = await self.fleet.other_than(fleet)
        await self._handover.pods.ready.wait()
        try:
            await self._preparer.recover()
            await self._mode.start(self.fleet.value)
            self._handover.use(self._settings, self._mode, self._arbiter)
            self._serving.set()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(Reconciler(self._mode, self._claims, self.fleet, mark=self._watch.mark).run())
                if self._settings.dra:
                    tasks.create_task(self._publisher.run())
        finally:
            await self._preparer.stop()
            await self._mode.stop()


def _variables(device: Json) -> dict[str, str]:
    """The environment that a CDI device gives to a container."""
    edits = device.get("containerEdits") or {}
    return dict(each.partition("=")[::2] for each in edits.get("env") or ())


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

    def claim_driver(self) -> RealAgent | None:
        return self._real if self._settings.dra else None

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


CHIP = "Ascend910B3"
VENDOR = Ascend(next(chip for chip in CHART.configs if chip.common_word == CHIP))
SHARES = 4
"""pods that share a chip: as many as fit with the smallest template"""

_UUIDS = uuid.UUID("d0b4f9b2-52a9-5b53-9a57-3e6f4d2a8c11")


def ascend_chips(node: str, count: int) -> tuple[Device, ...]:
    """Chips as their plugin registers them, with the same ids every time."""
    return tuple(
        Device(
            uuid=f"NPU-{uuid.uuid5(_UUIDS, f'{node}/{index}')}",
            vendor=CHIP,
            index=index,
            slots=SHARES,
            memory=VENDOR.chip.memory_allocatable,
            cores=VENDOR.chip.ai_core,
            model=CHIP,
        )
        for index in range(count)
    )


class AscendPlugin:
    """Huawei's plugin, as far as scheduler and kubelet see it. It relies on kubelet admitting pods in binding order."""

    def __init__(self, client: KubeClient, node: str, kubelet: Kubelet) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._kubelet = kubelet
        self._handed: dict[str, int] = {}
        """pod -> containers that have their chips"""

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        for pod in self._kubelet.waiting_pods():
            slices = [each for each in _entries(pod) if each]
            done = self._handed.get(uid_of(pod), 0)
            if done >= len(slices):
                continue
            if len(slices[done]) != len(device_ids):
                raise AllocateError(f"a container is to get {len(slices[done])} chips, asked for {len(device_ids)}")
            self._handed[uid_of(pod)] = done + 1
            if done + 1 == len(slices):
                await self._client.patch(self._path, {"metadata": {"annotations": {keys.NODE_LOCK: None}}})
            return {VISIBLE: ",".join(entry.uuid for entry in slices[done])}
        raise AllocateError("no pod waits for chips")

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        return None

    def admitted(self, pod: Json) -> dict[str, str]:
        self._handed.pop(uid_of(pod), None)
        if not any(_entries(pod)):
            return {}
        blank = encode_pod_devices([()] * len(containers_of(pod)))
        return {keys.BIND_PHASE: keys.PHASE_SUCCESS, VENDOR.keys.to_allocate: blank}

    def rejected(self, pod: Json) -> dict[str, str]:
        self._handed.pop(uid_of(pod), None)
        return {keys.BIND_PHASE: keys.PHASE_FAILED} if any(_entries(pod)) else {}


class AscendNode(SimulatedNode):
    """A node with Ascend chips."""

    resource = VENDOR.names.count

    def agent_of(self, client: KubeClient, kubelet: Kubelet) -> AscendPlugin:
        return AscendPlugin(client, self.name, kubelet)

    def registration(self) -> dict[str, str]:
        return {VENDOR.keys.register: encode_registration_json(self.cards)}


def _entries(pod: Json) -> Sequence[Sequence[DeviceEntry]]:
    try:
        return decode_pod_devices(annotations_of(pod).get(VENDOR.keys.to_allocate, ""))
    except WireError:
        return ()


CARDS_FILE = "cards.yaml"
"""in a node's folder: edit it to break a card while the demo runs (docs/install.md)"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node with NVIDIA cards: the content of its file of simulated cards."""

    name: str
    cards: tuple[Mapping[str, Any], ...]
    links: tuple[Mapping[str, Any], ...] = ()
    mode: Mode = "hami-core"
    labels: Mapping[str, str] = field(default_factory=dict)


MACHINES = (
    Machine(
        "a100-1",
        ({"model": "A100-SXM4-80GB", "count": 2},),
        links=({"cards": [0, 1], "nvlinks": 12},),
    ),
    Machine(
        "a100-2",
        ({"model": "A100-SXM4-40GB", "count": 2},),
        links=({"cards": [0, 1], "nvlinks": 12},),
    ),
    # Two groups of four: a pod with four cards should get one of them.
    Machine(
        "h100-1",
        ({"model": "H100", "count": 8, "numa": [0, 0, 0, 0, 1, 1, 1, 1]},),
        links=({"cards": [0, 1, 2, 3], "nvlinks": 18}, {"cards": [4, 5, 6, 7], "nvlinks": 18}),
    ),
    Machine("l4-1", ({"model": "L4", "count": 2},)),
    Machine("mig-1", ({"model": "A100-SXM4-80GB", "count": 1, "mig": True},), mode="mig"),
)
ASCEND_NODE, ASCEND_CHIPS = "ascend-1", 2


def demo_nodes(folder: Path) -> list[SimulatedNode]:
    """All nodes. Each keeps its files in its own subfolder."""
    chips = ascend_chips(ASCEND_NODE, ASCEND_CHIPS)
    return [*(make_node(machine, folder / machine.name) for machine in MACHINES), AscendNode(ASCEND_NODE, chips)]


def make_node(machine: Machine, folder: Path) -> AgentNode:
    """A node with the real agent, which keeps its files in the folder."""
    folder.mkdir()
    file = folder / CARDS_FILE
    document = {"cards": [*machine.cards], "links": [*machine.links]}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    settings = AgentSettings(
        node_name=machine.name,
        node=NodeSettings(mode=machine.mode),
        topology_scores=True,
        dra=True,
        dra_allocator=DraAllocator.TESSERA,
        paths=paths_in(folder),
    )
    hardware = simulated_hardware(file, node_name=machine.name)
    return AgentNode(SimulatedNodeSpec(machine.name, labels=machine.labels), settings, hardware)
