"""Simulated GPU nodes: the Node object, the cards that its agent registers, and a simulated kubelet.

    agent "env" or "answer"    Tessera's own (see `allocation`), named in the annotation tessera.io/agent
    agent "hami"               HAMi's plugin: node lock and bind phases, no such annotation

Everything goes through the API, as on a real node; `containers` and the faults are for tests. All nodes of a fleet are
behind one watch: a thousand kubelets would otherwise need a thousand connections.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from tessera.core.model.devices import HAMI_CORE, Device
from tessera.inspect.description import SLOTS, DescribedCards, make_devices
from tessera.kube.backoff import Backoff
from tessera.kube.client import STRATEGIC_PATCH, KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import NODES, PODS
from tessera.wire import keys
from tessera.wire.registration import (
    encode_pair_scores,
    encode_registration_json,
    encode_registration_text,
    encode_reported,
)
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.subresources import LogLine
from tessera_lab.sandbox.nodes.allocation import DeviceIds, HamiPlugin, SimulatedPlugin, TesseraAgent
from tessera_lab.sandbox.nodes.containers import ClaimDriver
from tessera_lab.sandbox.nodes.kubelet import ADDRESS, ContainerView, Kubelet, KubeletFaults, KubeletTimings
from tessera_lab.sandbox.objects import JSON_ACCESSOR, format_timestamp, node_of, uid_of

VENDOR = "NVIDIA"
A100 = "NVIDIA A100-SXM4-80GB"
A100_MEMORY = 81920
"""MiB"""


def gpu_cards(
    node: str,
    count: int,
    *,
    model: str = A100,
    memory: int = A100_MEMORY,
    slots: int = SLOTS,
    mode: str = HAMI_CORE,
    numa_nodes: int = 1,
    linked: int = 0,
) -> tuple[Device, ...]:
    """`count` cards of a node, spread over `numa_nodes`, in groups of `linked` that are linked to each other."""
    cards = DescribedCards(
        model=model, count=count, memory=memory, slots=slots, mode=mode, numa=numa_nodes, linked=linked
    )
    return make_devices(node, cards)


AgentKind = Literal["env", "answer", "hami"]

RESOURCE = "nvidia.com/gpu"
REGISTER = "hami.io/node-nvidia-register"
PAIR_SCORES = "hami.io/node-nvidia-score"
HANDSHAKE = "hami.io/node-handshake"
HANDSHAKE_EVERY_S = 30.0
"""how often HAMi's plugins up to v2.7 report"""
HEARTBEAT_EVERY_S = 300.0
"""how often kubelet reports a node that does not change"""

_RETRIES = Backoff(initial=0.1, cap=5.0)


@dataclass(frozen=True, slots=True)
class SimulatedNodeSpec:
    """The properties of a simulated node."""

    name: str
    cards: Sequence[Device] = ()
    agent: AgentKind = "env"
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    text_registration: bool = False
    """the format of HAMi's plugins up to v2.7"""
    handshake: bool = False
    """answers the scheduler's handshake, like HAMi's plugins up to v2.7"""
    shuffled: bool = False
    """admits waiting pods in random order, to show that order does not matter"""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.agent not in get_args(AgentKind):
            raise ValueError(f"{self.agent!r} is not a kind of agent; choose one of {', '.join(get_args(AgentKind))}")


class SimulatedNode:
    """One node. Call `connect` first; `run` it together with a watch that calls `kubelet.seen` and `gone`."""

    resource = RESOURCE  # nodes with other cards or the real agent override this, `registration` and `agent_of`

    def __init__(self, name: str | SimulatedNodeSpec, cards: Sequence[Device] = (), **more: Any) -> None:
        """Takes a spec, or the fields of one."""
        self.spec = name if isinstance(name, SimulatedNodeSpec) else SimulatedNodeSpec(name, tuple(cards), **more)
        self.cards = tuple(self.spec.cards)
        self.pace = KubeletTimings()
        self.faults = KubeletFaults()
        self.plugin_is_up = True
        self._rng = random.Random(f"{self.spec.seed}/{self.spec.name}")
        self._ids = DeviceIds(self._rng)
        self._kubelet: Kubelet | None = None
        self._agent: SimulatedPlugin | None = None
        self._client: KubeClient | None = None
        self._now: Callable[[], float] = time.time

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kubelet(self) -> Kubelet:
        if self._kubelet is None:
            raise RuntimeError(f"node {self.name} is not connected")
        return self._kubelet

    @property
    def containers(self) -> dict[tuple[str, str], ContainerView]:
        """What every admitted container sees, by the pod's uid and the container's name."""
        return self.kubelet.containers

    def connect(self, client: KubeClient, *, now: Callable[[], float] = time.time) -> None:
        self._client, self._now = client, now
        kubelet = self._kubelet = Kubelet(
            client,
            ids=self._ids,
            resource=self.resource,
            pace=self.pace,
            faults=self.faults,
            shuffled=self.spec.shuffled,
            rng=self._rng,
            now=now,
        )
        self._agent = self.agent_of(client, kubelet)

    def agent_of(self, client: KubeClient, kubelet: Kubelet) -> SimulatedPlugin:
        """The plugin that this node's kubelet calls."""
        if self.spec.agent == "hami":
            return HamiPlugin(client, self.name, rng=self._rng)
        return TesseraAgent(
            self.name,
            downward_api=self.spec.agent == "env",
            pods=kubelet.waiting_pods,
            all_pods=kubelet.pods,
            wrong_pod=lambda: self.faults.wrong_pod,
            rng=self._rng,
        )

    def claim_driver(self) -> ClaimDriver | None:
        """What serves ResourceClaims on this node; nodes with the real agent have one."""
        return None

    async def register(self) -> None:
        """Creates the node, or updates the existing one."""
        self._offer()
        document = self.document()
        try:
            await self._api.create(NODES.path(), document)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._annotate(document["metadata"]["annotations"])
            await self._report({"status": document["status"]})

    async def run(self) -> None:
        """Sends heartbeats and runs the kubelet, until cancelled."""
        assert self._agent is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.kubelet.run(self._agent, self.claim_driver()))
            tasks.create_task(self._every(HEARTBEAT_EVERY_S, self._heartbeat))
            if self.spec.handshake:
                tasks.create_task(self._every(HANDSHAKE_EVERY_S, self._shake_hands))

    # -- changes

    async def set_cards(self, cards: Sequence[Device]) -> None:
        """Changes the cards and their registration."""
        await self.list_cards(cards)
        await self._annotate(self.registration())

    async def list_cards(self, cards: Sequence[Device]) -> None:
        """Changes what the plugin lists to kubelet, but not the registration."""
        self.cards = tuple(cards)
        await self._plugin_lists()

    async def set_health(self, uuid: str, healthy: bool) -> None:
        await self.set_cards([replace(card, healthy=healthy) if card.uuid == uuid else card for card in self.cards])

    async def stop_plugin(self) -> None:
        """Stops the plugin: kubelet offers no devices any more, but the registration stays."""
        self.plugin_is_up = False
        await self._plugin_lists()

    async def start_plugin(self) -> None:
        self.plugin_is_up = True
        await self._plugin_lists()
        await self._annotate(self.registration())

    # -- documents

    def document(self) -> Json:
        """The Node object as kubelet and agent write it together."""
        spec = self.spec
        at = format_timestamp(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": spec.name,
                "labels": {"kubernetes.io/hostname": spec.name, "kubernetes.io/os": "linux", **spec.labels},
                "annotations": self.registration(),
            },
            "spec": {"taints": [dict(taint) for taint in spec.taints]} if spec.taints else {},
            "status": {
                **self._amounts(),
                "conditions": [self._ready(at, since=at)],
                "addresses": [
                    {"type": "InternalIP", "address": ADDRESS},
                    {"type": "Hostname", "address": spec.name},
                ],
                "nodeInfo": {
                    "kubeletVersion": "v1.36.3",
                    "operatingSystem": "linux",
                    "osImage": "Tessera sandbox",
                    "architecture": "amd64",
                    "containerRuntimeVersion": "sandbox://0",
                },
            },
        }

    def registration(self) -> dict[str, str]:
        """The annotations that the agent writes on the node."""
        if not self.cards:
            return {}
        encode = encode_registration_text if self.spec.text_registration else encode_registration_json
        written = {REGISTER: encode(self.cards)}
        if any(card.links for card in self.cards):
            written[PAIR_SCORES] = encode_pair_scores({card.uuid: card.links for card in self.cards})
        if self.spec.agent != "hami":
            written[keys.AGENT] = self.spec.agent
        if self.spec.handshake:
            written[HANDSHAKE] = self._reported()
        return written

    def _reported(self) -> str:
        return encode_reported(datetime.fromtimestamp(self._now(), UTC), zone=UTC)

    def _amounts(self) -> Json:
        spec = self.spec
        common = {"cpu": spec.cpu, "memory": spec.memory, "pods": str(spec.pods)}
        if not self.cards:
            return {"capacity": common, "allocatable": common}
        known = sum(card.slots for card in self.cards)
        return {
            "capacity": common | {self.resource: str(known)},
            "allocatable": common | {self.resource: str(self._ids.offered)},
        }

    @staticmethod
    def _ready(at: str, *, since: str | None = None) -> Json:
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": at,
        }
        return condition | ({"lastTransitionTime": since} if since else {})

    # -- writing

    @property
    def _api(self) -> KubeClient:
        if self._client is None:
            raise RuntimeError(f"node {self.name} is not connected")
        return self._client

    def _offer(self) -> None:
        self._ids.offer(self.cards if self.plugin_is_up else ())

    async def _plugin_lists(self) -> None:
        self._offer()
        await self._report({"status": self._amounts()})

    async def _heartbeat(self) -> None:
        await self._report({"status": {"conditions": [self._ready(format_timestamp(self._now()))]}})

    async def _shake_hands(self) -> None:
        if self.plugin_is_up:
            await self._annotate({HANDSHAKE: self._reported()})

    async def _annotate(self, annotations: Mapping[str, str]) -> None:
        await self._api.patch(NODES.path(name=self.name), {"metadata": {"annotations": annotations}})

    async def _report(self, body: Json) -> None:
        await self._api.patch(NODES.path(name=self.name, subresource="status"), body, content_type=STRATEGIC_PATCH)

    async def _every(self, period_s: float, act: Callable[[], Any]) -> None:
        failures = 0
        while True:
            await asyncio.sleep(_RETRIES.delay(failures) if failures else period_s)
            try:
                await act()
            except KubeError:
                failures += 1
            else:
                failures = 0


REGISTERED_AT_ONCE = 16


class SimulatedFleet:
    """The nodes by name."""

    def __init__(
        self,
        client: KubeClient,
        nodes: Iterable[SimulatedNode],
        *,
        now: Callable[[], float] = time.time,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` is called after a kubelet has seen a change."""
        self.nodes: dict[str, SimulatedNode] = {}
        self._client = client
        self._now = now
        self._on_change = on_change
        self._tasks: asyncio.TaskGroup | None = None
        self._where: dict[str, tuple[str, str]] = {}
        """pod's key -> its node and uid"""
        self._started: dict[str, asyncio.Task[None]] = {}
        for node in nodes:
            self._connect(node)

    async def register(self) -> None:
        """Creates all nodes in the API."""
        gate = asyncio.Semaphore(REGISTERED_AT_ONCE)

        async def one(node: SimulatedNode) -> None:
            async with gate:
                await node.register()

        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes.values():
                tasks.create_task(one(node))

    async def run(self) -> None:
        """Runs all nodes, until cancelled."""
        reflector = Reflector(
            self._client,
            PODS.path(),
            dict[str, Any],
            self,
            accessor=JSON_ACCESSOR,
            field_selector="spec.nodeName!=",
            rng=random.Random(0),
        )
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(reflector.run())
            for node in self.nodes.values():
                self._started[node.name] = tasks.create_task(node.run())

    async def add(self, node: SimulatedNode) -> None:
        """Adds a node to the running cluster."""
        self._connect(node)
        await node.register()
        if self._tasks is not None:
            self._started[node.name] = self._tasks.create_task(node.run())

    async def remove(self, name: str) -> SimulatedNode:
        """Stops a node's kubelet, as a crash would. The Node object stays."""
        node = self.nodes.pop(name)
        task = self._started.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        return node

    def read_log(self, pod: Json, container: str) -> Sequence[LogLine] | None:
        """What a container wrote so far; nothing if its node is not simulated."""
        node = self.nodes.get(node_of(pod))
        return node.kubelet.read_log(pod, container) if node is not None else ()

    # -- the watch

    def put(self, key: str, obj: Json) -> None:
        self._where[key] = (node_of(obj), uid_of(obj))
        node = self.nodes.get(node_of(obj))
        if node is not None:
            node.kubelet.seen(obj)
            self._notify()

    def drop(self, key: str) -> None:
        name, uid = self._where.pop(key)
        node = self.nodes.get(name)
        if node is not None:
            node.kubelet.gone(uid)
            self._notify()

    def synced(self) -> None:
        """Nothing to do: a kubelet only knows the pods that it has seen."""

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _connect(self, node: SimulatedNode) -> None:
        if node.name in self.nodes:
            raise ValueError(f"there are two nodes {node.name}")
        node.connect(self._client, now=self._now)
        self.nodes[node.name] = node
