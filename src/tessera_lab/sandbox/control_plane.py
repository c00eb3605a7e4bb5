"""A whole cluster in one object: API server, controllers, scheduling loop and simulated nodes.

    async with ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 8))]) as plane:
        await plane.start_scheduling(extender_url)
        pod = await plane.create_pod(manifest)
        await plane.wait_for(lambda: plane.phase("default", "p") == "Running")

Everything runs in one task group, which ends with the block. If a component fails, `wait_for` raises.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tessera.kube.access import Access, load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import PODS
from tessera_lab.sandbox.api.kinds import EVENTS as EVENT_KIND
from tessera_lab.sandbox.api.kinds import NODES as NODE_KIND
from tessera_lab.sandbox.api.kinds import PODS as POD_KIND
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.server import ApiServer, ServerOptions
from tessera_lab.sandbox.api.store import StoreChange
from tessera_lab.sandbox.controllers.loop import ControllerLoop
from tessera_lab.sandbox.nodes.node import SimulatedFleet, SimulatedNode
from tessera_lab.sandbox.objects import phase_of
from tessera_lab.sandbox.scheduling.extender_client import ExtenderClient
from tessera_lab.sandbox.scheduling.loop import SchedulerProfile, SchedulingLoop

WAIT_S = 60.0
"""seconds that `wait_for` waits by default"""

T = TypeVar("T")


class ControlPlane:
    """Use it as `async with`. Nothing is scheduled before `start_scheduling`."""

    def __init__(
        self,
        *,
        nodes: Iterable[SimulatedNode] = (),
        profile: SchedulerProfile | None = None,
        server: ServerOptions | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder`: where the kubeconfig is written; by default a temporary folder."""
        self.server = ApiServer(server)
        self.scheduling: SchedulingLoop | None = None
        self._profile = profile
        self._first_nodes = tuple(nodes)
        self._folder = folder
        self._client: KubeClient | None = None
        self._fleet: SimulatedFleet | None = None
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._requested: asyncio.Queue[tuple[str | None, asyncio.Future[None]]] = asyncio.Queue()
        self._main: asyncio.Task[None] | None = None
        self._kubeconfig: Path | None = None
        self._controllers = ControllerLoop(self.server.verbs)
        self.server.cluster.store.listen(self._on_store_change)

    async def __aenter__(self) -> Self:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._live(ready))
        try:
            await asyncio.wait([self._main, ready], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._main.cancel()
            raise
        if self._main.done():
            await self._main
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._main is not None:
            await self._main

    # -- state

    @property
    def client(self) -> KubeClient:
        if self._client is None:
            raise RuntimeError("the control plane is not running: use it in `async with`")
        return self._client

    @property
    def kubeconfig(self) -> Path:
        """For kubectl, and for the scheduler under test."""
        if self._kubeconfig is None:
            raise RuntimeError("the control plane is not running: use it in `async with`")
        return self._kubeconfig

    @property
    def has_stopped(self) -> bool:
        """Whether it was stopped, or a component has failed."""
        return self._main is not None and self._main.done()

    @property
    def fleet(self) -> SimulatedFleet:
        if self._fleet is None:
            raise RuntimeError("the control plane is not running: use it in `async with`")
        return self._fleet

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        return self.fleet.nodes

    def pod(self, namespace: str, name: str) -> Json | None:
        """The pod as the API server has it now. It must not be changed."""
        stored = self.server.cluster.store.get(POD_KIND, namespace, name)
        return stored.object if stored is not None else None

    def pods(self, namespace: str = "") -> list[Json]:
        return [stored.object for stored in self.server.cluster.store.list(POD_KIND, namespace)]

    def node(self, name: str) -> Json | None:
        stored = self.server.cluster.store.get(NODE_KIND, "", name)
        return stored.object if stored is not None else None

    def phase(self, namespace: str, name: str) -> str:
        pod = self.pod(namespace, name)
        return phase_of(pod) if pod is not None else ""

    def events(self, namespace: str, name: str) -> list[Json]:
        """The events about a pod."""
        return [
            stored.object
            for stored in self.server.cluster.store.list(EVENT_KIND, namespace)
            if stored.object.get("involvedObject", {}).get("name") == name
        ]

    # -- actions

    async def start_scheduling(self, extender_url: str | None = None) -> None:
        """Starts the scheduling loop, in place of one that runs. Without an extender, a pod goes to the emptiest node
        that it fits on."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._requested.put((extender_url, done))
        await self._unless_broken(done)

    async def create_pod(self, manifest: Json) -> Json:
        """Creates a pod through the API, webhooks included, and returns it as stored."""
        namespace = manifest.get("metadata", {}).get("namespace") or "default"
        body = {"apiVersion": "v1", "kind": "Pod", **manifest}
        return await self.client.create(PODS.path(namespace), body, dict[str, Any])

    async def delete_pod(self, namespace: str, name: str, *, grace_s: int | None = None) -> None:
        await self.client.delete(PODS.path(namespace, name), grace_s=grace_s)

    async def wait_for(self, predicate: Callable[[], T], timeout: float = WAIT_S, *, what: str = "") -> T:
        """The first true result of `predicate`, which is called again after every change."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._changed.clear()
                    answer = predicate()
                    if answer:
                        return answer
                    await self._unless_broken(self._changed.wait())
        except TimeoutError as error:
            raise TimeoutError(f"waited {timeout:g} s for {what or 'a condition that never became true'}") from error

    # -- life cycle

    async def _live(self, ready: asyncio.Future[None]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            async with self.server:
                folder = self._folder or Path(temporary)
                path = folder / "kubeconfig"
                self.server.write_kubeconfig(path)
                access: Access = load_access(kubeconfig=str(path), environ={})
                async with KubeClient(access) as client:
                    self._client, self._kubeconfig = client, path
                    self._fleet = SimulatedFleet(
                        client, self._first_nodes, now=self.server.options.now, on_change=self._changed.set
                    )
                    self.server.cluster.read_log = self._fleet.read_log
                    await self._fleet.register()
                    async with asyncio.TaskGroup() as tasks:
                        parts = (self._fleet.run(), self._controllers.run(), self._schedule())
                        background = [tasks.create_task(part) for part in parts]
                        ready.set_result(None)
                        await self._stopping.wait()
                        for task in background:
                            task.cancel()

    async def _schedule(self) -> None:
        """Runs the scheduling loop that was requested last."""
        running: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                url, started = await self._requested.get()
                if running is not None:
                    running.cancel()
                    await asyncio.wait([running])
                running = tasks.create_task(self._schedule_with(url, started))

    async def _schedule_with(self, url: str | None, started: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            extender = await stack.enter_async_context(ExtenderClient(url)) if url else None
            now, on_change = self.server.options.now, self._changed.set
            loop = SchedulingLoop(self.client, extender, profile=self._profile, now=now, on_change=on_change)
            self.scheduling = await stack.enter_async_context(loop)
            if not started.done():
                started.set_result(None)
            await loop.run()

    async def _unless_broken(self, awaitable: Any) -> None:
        """Waits, and raises if the control plane fails meanwhile."""
        assert self._main is not None
        waiting = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait([waiting, self._main], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiting.done():
                waiting.cancel()
        if self._main.done():
            await self._main
            raise RuntimeError("the control plane has stopped")

    def _on_store_change(self, change: StoreChange) -> None:
        self._changed.set()
