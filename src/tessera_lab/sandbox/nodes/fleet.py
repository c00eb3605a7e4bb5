"""All simulated nodes behind one watch: a thousand kubelets would otherwise need a thousand connections.

Every bound pod is passed to its node's kubelet. Pods on nodes that are not simulated are ignored.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.pod_logs import LogLine
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tessera_lab.sandbox.objects import JSON_ACCESSOR, node_of, uid_of

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
