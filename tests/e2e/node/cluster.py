"""One cluster of one test on a real node: stock kube-scheduler, `tessera scheduler`, kubelet, `tessera device-plugin`.

Control plane, containerd and kubelet are shared by all tests; scheduler and agent belong to one. What the containers
printed is read through the apiserver, as a tenant reads it.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import DEVICE_CLASSES, MUTATING_WEBHOOKS, NODES, PODS
from tessera.wire.resource_api import API_VERSION, DRIVER
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedFleet
from tessera_lab.sandbox.objects import containers_of, uid_of
from tests.contract.client import client, read_kubeconfig
from tests.e2e.cluster import Cluster, clean_up, end_tasks, make_namespace, webhook_configuration
from tests.e2e.control_plane import ControlPlane
from tests.e2e.node.agent import CARDS, PLUGINS, SPLIT, Agent
from tests.e2e.node.container import NodeContainer
from tests.e2e.node.control_plane import NODE, NodeControlPlane
from tests.e2e.node.environment_check import Environment, read_environment, wrong_environments
from tests.e2e.node.image import END
from tests.e2e.node.kubelet import kubelet
from tests.e2e.node.machine import Machine
from tests.e2e.node.runtime import Runtime
from tests.e2e.processes import Program
from tests.e2e.replica import FromFiles, Replica, until

PATIENCE_S = 300.0
"""for many containers, on a machine that is busy"""
GPU = "nvidia.com/gpu"


@dataclass
class Node:
    """What tests share: the node without its agent."""

    node_container: NodeContainer
    plane: NodeControlPlane
    runtime: Runtime
    kubelet: Program

    def stop(self) -> None:
        self.kubelet.stop()
        self.runtime.program.stop()
        self.plane.stop()


def start_node(node_container: NodeContainer, tools: Mapping[str, Path], machine: Machine) -> Node:
    """Its programs run; whether kubelet likes it here is seen by the first test."""
    folder = node_container.folder / "plane"
    folder.mkdir()
    plane = NodeControlPlane(folder, tools)
    plane.logs = node_container.logs / "plane"
    runtime = Runtime(node_container, tools, machine)
    runtime.start()
    plane.start()
    node = Node(node_container, plane, runtime, kubelet(node_container, tools, plane))
    node.kubelet.start()
    return node


class NodeCluster(Cluster):
    """A cluster of the one node."""

    node: Node
    agent: Agent
    shares: int = CARDS * SPLIT
    """devices that kubelet counts"""

    # -- the node

    async def is_served(self) -> bool:
        """Agent and kubelet have found each other, and the node shows all devices."""
        for program in (self.agent.program, self.node.kubelet):
            assert program.is_running, f"{program.name} ended:\n{program.words()}"
        return await self._devices() == self.shares and await self.agent.is_ready()

    async def is_not_served(self) -> bool:
        return await self._devices() == 0

    async def served(self) -> None:
        await until(self.is_served, what="kubelet and the agent to be ready")

    async def restart_kubelet(self) -> None:
        """It forgets the plugin, and is served again when this returns."""
        await asyncio.to_thread(self.node.kubelet.stop)
        # What the node shows from now on is what the new kubelet knows.
        none = {"capacity": {GPU: "0"}, "allocatable": {GPU: "0"}}
        await self.api.patch(NODES.path(name=NODE, subresource="status"), {"status": none})
        self.node.kubelet.start()
        await self.served()

    async def restart_agent(self) -> None:
        """As after SIGKILL; kubelet is served again when this returns."""
        self.agent.program.kill()
        await until(self.is_not_served, what="kubelet to miss the agent")
        self.agent.program.start()
        await self.served()

    async def _devices(self) -> int:
        """As the node shows them."""
        found: Json = await self.api.get(NODES.path(name=NODE), dict[str, Any])
        return int(found["status"].get("allocatable", {}).get(GPU, 0))

    async def node_is_registered(self) -> bool:
        nodes = (await self.api.list(NODES.path(), dict[str, Any])).items
        return bool(nodes) and await self.nodes_are_open()

    async def cards_are_known(self) -> bool:
        return len((await self.replica.scrape()).use) == CARDS

    # -- containers

    async def environments(self, pods: Iterable[Json]) -> dict[tuple[str, str], Environment]:
        return await environments(self.plane, pods)

    async def wrong_environments(self) -> list[str]:
        seen = await self.environments(self.pods)
        return list(wrong_environments(self.pods, seen, hook=self.agent.hook))

    async def empty(self) -> None:
        """All pods end in order."""
        await self.api.delete(PODS.path(self.namespace))
        await self.wait_for(lambda: not self.pods, what="the end of all pods", within_s=PATIENCE_S)


async def environments(plane: ControlPlane, pods: Iterable[Json]) -> dict[tuple[str, str], Environment]:
    """What each container printed, by the uid of its pod and its name, as a tenant reads it."""
    trust = ssl.create_default_context(cadata=plane.authority.cert_pem.bytes().decode())
    headers = {"Authorization": "Bearer tenant-secret"}
    found: dict[tuple[str, str], Environment] = {}
    connector = aiohttp.TCPConnector(ssl=trust)
    async with aiohttp.ClientSession(plane.url, headers=headers, connector=connector) as session:
        for pod in pods:
            for container in containers_of(pod):
                metadata = pod["metadata"]
                path = PODS.path(metadata["namespace"], metadata["name"], "log")
                look = _log_reader(session, path, container["name"])
                text = await until(look, what=f"the output of {metadata['name']} {container['name']}")
                found[uid_of(pod), container["name"]] = read_environment(text)
    return found


def _log_reader(session: aiohttp.ClientSession, path: str, container: str) -> Callable[[], Any]:
    async def read() -> str:
        async with session.get(path, params={"container": container}) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text if END in text else ""

    return read


Between = Callable[[NodeControlPlane], AbstractAsyncContextManager[Path]]
"""something between kubelet and the agent, which looks for kubelet in the folder that it gives"""


@asynccontextmanager
async def node_cluster(node: Node, between: Between | None = None) -> AsyncIterator[NodeCluster]:
    """A cluster of this node, ready for pods."""
    if between is None:
        async with _cluster(node, PLUGINS) as found:
            yield found
    else:
        async with between(node.plane) as folder, _cluster(node, folder) as found:
            yield found


@asynccontextmanager
async def shared_cluster(
    node: Node, settings: Mapping[str, Any], *flags: str, shares: int
) -> AsyncIterator[NodeCluster]:
    """A cluster of this node whose cards are for pods and ResourceClaims alike. `settings` is its entry of the node
    configuration, `flags` are the scheduler's, and kubelet counts so many `shares`."""
    access = load_access(kubeconfig=str(node.plane.kubeconfig()), environ={})
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    device_class = {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
    async with KubeClient(access) as api:
        await api.create(DEVICE_CLASSES.path(), {"apiVersion": API_VERSION, "kind": "DeviceClass", **device_class})
        try:
            async with _cluster(node, PLUGINS, "--dra", *flags, settings=settings, shares=shares) as found:
                yield found
        finally:
            await api.delete(DEVICE_CLASSES.path(name=DRIVER))


@asynccontextmanager
async def _cluster(
    node: Node,
    plugins: Path,
    *flags: str,
    settings: Mapping[str, Any] | None = None,
    shares: int = CARDS * SPLIT,
) -> AsyncIterator[NodeCluster]:
    """With `settings`, cards are for claims too. `flags` are the scheduler's."""
    plane, label = node.plane, uuid.uuid4().hex[:6]
    namespace = f"e2e-{label}"
    own = () if settings is None else ("--dra", "--dra-allocator=tessera")
    agent = Agent(node.node_container, plane, *own, plugins=plugins, label=f"agent-{label}", node=settings)
    certificates = FromFiles(plane.folder / f"webhook-{label}.pem")
    replica = Replica(plane, f"--hook-path={agent.hook}", *flags, label=label, certificates=certificates)
    webhook = webhook_configuration(namespace, namespace, certificates.client_config(replica.webhook_port))
    access = load_access(kubeconfig=str(plane.kubeconfig()), environ={})
    try:
        async with KubeClient(access) as api, client(read_kubeconfig(plane.kubeconfig("tenant"))) as tenant:
            found = NodeCluster(
                plane, api=api, tenant=tenant, fleet=SimulatedFleet(api, []), namespace=namespace, replica=replica
            )
            found.node, found.agent, found.shares = node, agent, shares
            await make_namespace(api, namespace)
            await api.create(MUTATING_WEBHOOKS.path(), webhook)
            try:
                found.background = [asyncio.create_task(found.watch_pods())]
                await until(found.node_is_registered, what="kubelet to be ready")
                for program in (agent.program, replica.tessera, replica.kube_scheduler):
                    program.start()
                await found.served()
                await replica.ready()
                await until(found.cards_are_known, what="the scheduler to know all cards")
                await until(found.webhook_is_asked, what="the webhook to be asked")
                yield found
                await found.empty()
                assert found.missing_rights() == set(), "rbac.yaml is not enough"
            finally:
                await end_tasks(found.background)
                await clean_up(api, namespace, ())
                await api.delete(MUTATING_WEBHOOKS.path(name=namespace))
    finally:
        replica.kill()
        agent.program.kill()
