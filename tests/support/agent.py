"""The whole node agent in one event loop: the real `AgentProcess` with simulated cards, a scripted kubelet on real
sockets, and the embedded apiserver. Everything of the machine that an agent touches is in a folder of the test's own.

    async with agent_node(folder) as node:
        pod = await node.bound_pod("p", [[node.slice(0, memory=3000, cores=30)]])
        answer = await node.allocate(1)
        await node.phase_is("p", "success")
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from json import dumps, loads
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tessera.cli.grouped import read_file
from tessera.host.cards import CardFacts
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera.node.configuration import build_configuration
from tessera.node.process import AgentProcess
from tessera.node.settings import Configuration
from tessera.services.settings_table import SettingsError
from tessera.wire import keys
from tessera.wire.keys import NODE_LOCK
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera_lab.sandbox.api.server import ServerOptions
from tessera_lab.sandbox.control_plane import ControlPlane
from tests.support.cards import FaultyCards
from tests.support.kubelet import ScriptedKubelet, ScriptedPodResources, plugins_folder, serving_pod_resources
from tests.support.network import free_ports

NODE = "node-a"
TO_ALLOCATE, ALLOCATED = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated"
TWO_CARDS: Mapping[str, Any] = {"cards": [{"model": "A100-SXM4-80GB", "count": 2}]}
SPLIT = 4
PATIENCE_S = 60.0
"""before an event that never happens fails the test"""

Json = dict[str, Any]
T = TypeVar("T")


@dataclass
class AgentNode:
    """One node. The agent may be stopped, killed and started again; kubelet, cards and API keep running."""

    plane: ControlPlane
    kubelet: ScriptedKubelet
    resources: ScriptedPodResources
    hardware: FaultyCards
    folder: Path
    flags: dict[str, str]
    environ: dict[str, str]
    _process: AgentProcess | None = None
    _task: asyncio.Task[int] | None = field(default=None, repr=False)
    _client: KubeClient | None = field(default=None, repr=False)

    # -- the agent's life

    @property
    def process(self) -> AgentProcess:
        assert self._process is not None, "the agent is not running"
        return self._process

    def configuration(self) -> Configuration:
        """The settings, read from the files as they are now."""
        return build_configuration(self.flags, self.environ, read_file)

    async def start(self, *, ready: bool = True) -> None:
        """Starts the agent, and waits until kubelet can use it."""
        access = load_access(kubeconfig=str(self.plane.kubeconfig), environ={})
        self._client = await KubeClient(access, user_agent="tessera-device-plugin").__aenter__()
        if isinstance(self.hardware, FaultyCards):
            self.hardware.begin_waits()
        self._process = AgentProcess(self.configuration(), self._client, self.hardware, reload=self.configuration)
        self._task = asyncio.create_task(self._process.run())
        if ready:
            await self.until(lambda: not self.process.missing(), what="the agent to be ready")

    async def stop(self) -> int:
        """Stops the agent as SIGTERM does; returns the exit code."""
        assert self._task is not None
        self.process.stopping.set()
        self._end_waits()
        code = await self._task
        await self._forget()
        return code

    async def ended(self) -> int:
        """Waits until the agent ends by itself; returns the exit code."""
        assert self._task is not None
        code = await self._task
        await self._forget()
        return code

    async def kill(self) -> None:
        """Kills the agent, as far as a task can be killed: nothing is finished, but the socket is removed."""
        assert self._task is not None
        self._task.cancel()
        self._end_waits()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._forget()

    def _end_waits(self) -> None:
        """Otherwise the thread that waits for events of cards ends half a second later."""
        if isinstance(self.hardware, FaultyCards):
            self.hardware.end_waits()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def _forget(self) -> None:
        assert self._client is not None
        await self._client.__aexit__(None, None, None)
        self._process, self._task, self._client = None, None, None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    # -- files

    def configure(self, **entry: Any) -> None:
        """Write the node JSON with one entry for this node."""
        (self.folder / "config.json").write_text(dumps({"nodeconfig": [{"name": NODE, **entry}]}))

    # -- pods

    def card(self, index: int) -> CardFacts:
        found = self.hardware.scan()[index]
        assert isinstance(found, CardFacts)
        return found

    def slice(self, index: int, *, memory: int, cores: int = 0) -> DeviceEntry:
        return DeviceEntry(self.card(index).uuid, "NVIDIA", memory, cores)

    async def bound_pod(
        self,
        name: str,
        slices: Sequence[Sequence[DeviceEntry]],
        *,
        inits: int = 0,
        env: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Json:
        """A pod as a scheduler leaves it: bound to this node, with an allocation for each container.

        The first `inits` containers are init containers. Without the webhook the pod depends on Allocate."""
        containers = [
            {
                "name": f"c{position}",
                "image": "x",
                "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                "resources": {"limits": {"nvidia.com/gpu": str(len(given))}} if given else {},
            }
            for position, given in enumerate(slices)
        ]
        manifest = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"initContainers": containers[:inits], "containers": containers[inits:]},
        }
        pod = await self.plane.create_pod(manifest)
        text, now = encode_pod_devices(slices), str(int(time.time()))
        given = {
            keys.ASSIGNED_NODE: NODE,
            keys.ASSIGNED_TIME: now,
            keys.BIND_TIME: now,
            keys.BIND_PHASE: keys.PHASE_ALLOCATING,
            TO_ALLOCATE: text,
            ALLOCATED: text,
        }
        await self.plane.client.bind(
            "default", name, uid=pod["metadata"]["uid"], node=NODE, annotations={**given, **(annotations or {})}
        )
        return self.pod(name)

    def pod(self, name: str) -> Json:
        found = self.plane.pod("default", name)
        assert found is not None
        return found

    def annotations(self, name: str | None = None) -> Json:
        """Of a pod, or of the node."""
        found = self.plane.node(NODE) if name is None else self.pod(name)
        return dict((found or {}).get("metadata", {}).get("annotations") or {})

    async def phase_is(self, name: str, phase: str) -> None:
        """Of the pod's handover."""
        await self.plane.wait_for(
            lambda: self.annotations(name).get(keys.BIND_PHASE) == phase, PATIENCE_S, what=f"{name} to be {phase}"
        )

    # -- kubelet

    async def allocate(
        self, count: int, *, holder: tuple[str, str] | None = None
    ) -> messages.ContainerAllocateResponse:
        """One container's devices as kubelet gets them: a preference, Allocate, and then they are held.

        `holder`: the pod and container that PodResources names from then on; by default none."""
        taken = {each for ids in self.resources.held.values() for each in ids}
        free = [each for each, health in self.kubelet.health.items() if health == "Healthy" and each not in taken]
        (preferred,) = await self.kubelet.prefer(free, size=count)
        ids = preferred or free[:count]
        answer = await self.kubelet.allocate(ids)
        if holder is not None:
            self.resources.held["default", *holder] = ids
        return answer.container_responses[0]

    # -- waiting

    async def until(self, predicate: Callable[[], object], *, what: str = "") -> None:
        """Polls a condition of the agent that no event announces."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not predicate():
                    if self._task is not None and self._task.done():
                        raise AssertionError(f"the agent ended with {self._task.result()}")
                    await asyncio.sleep(0.005)
        except TimeoutError as error:
            said = self.process.missing() if self.is_running else "it is not running"
            raise TimeoutError(
                f"waited for {what or 'something that did not happen'}; the agent says: {said}"
            ) from error


@asynccontextmanager
async def agent_node(
    folder: Path,
    *,
    cards: Mapping[str, Any] = TWO_CARDS,
    node: Mapping[str, Any] | None = None,
    yaml: str = f"nvidia: {{deviceSplitCount: {SPLIT}}}\n",
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    start: bool = True,
) -> AsyncIterator[AgentNode]:
    """A node with its agent. `cards` is the file of simulated cards, `node` this node's entry of the node JSON."""
    async with AsyncExitStack() as stack:
        plugins = stack.enter_context(plugins_folder())
        # Not among the plugins: a kubelet that starts clears their folder.
        resources_socket = stack.enter_context(plugins_folder()) / "kubelet.sock"
        (folder / "cards.json").write_text(dumps(cards))
        (folder / "device-config.yaml").write_text(yaml)
        told = {
            "node-name": NODE,
            "simulate": str(folder / "cards.json"),
            "config-file": str(folder / "device-config.yaml"),
            "node-config-file": str(folder / "config.json"),
            "plugin-dir": str(plugins),
            "pod-resources-socket": str(resources_socket),
            "hook-path": str(folder / "hook"),
            "state-dir": str(folder / "state"),
            "cdi-dir": str(folder / "cdi"),
            "mps-dir": str(folder / "mps"),
            "lock-dir": str(folder / "lock"),
            "driver-root-ctr-path": str(folder / "driver"),
            "metrics-bind-address": "127.0.0.1:0",
            **(flags or {}),
        }
        # What the enforcing library's image puts on the host.
        (folder / "hook" / "vgpu").mkdir(parents=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (folder / "hook" / "vgpu" / name).touch()
        plane = await stack.enter_async_context(ControlPlane(server=ServerOptions(port=free_ports(1)[0])))
        await plane.client.create(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        kubelet = await stack.enter_async_context(ScriptedKubelet(plugins))
        resources = ScriptedPodResources()
        await stack.enter_async_context(serving_pod_resources(resources_socket, resources))
        configuration = build_configuration(told, environ or {}, read_file)
        assert configuration.simulated is not None
        hardware = FaultyCards.from_file(configuration.simulated, node_name=configuration.settings.node_name)
        stack.callback(hardware.close)
        world = AgentNode(plane, kubelet, resources, hardware, folder, told, dict(environ or {}))
        if node is not None:
            world.configure(**node)
        if start:
            await world.start()
            await kubelet.listed()
        try:
            yield world
        finally:
            if world.is_running:
                assert await world.stop() == 0


YAML = "device-config.yaml"
JSON = "/config/config.json"

Files = Mapping[str, str | OSError | UnicodeError]


def reader(files: Files) -> Callable[[str], str]:
    def read(path: str) -> str:
        found = files.get(path, FileNotFoundError(2, "No such file or directory"))
        if isinstance(found, str):
            return found
        raise found

    return read


def told(
    *arguments: str,
    yaml: str | None = None,
    json: str | None = None,
    files: Files | None = None,
    environ: Mapping[str, str] | None = None,
    **variables: str,
) -> Configuration:
    """What `name=value` arguments, variables and the two files make, on the node n1."""
    flags = dict(argument.split("=", 1) for argument in arguments)
    found: dict[str, Any] = {}
    if yaml is not None:
        found[YAML] = yaml
        flags.setdefault("config-file", YAML)
    if json is not None:
        found[JSON] = json
    known = {"NODE_NAME": "n1", **(environ or {}), **variables}
    return build_configuration(flags, known, reader(found | dict(files or {})))


def problems(*arguments: str, **given: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        told(*arguments, **given)
    return list(caught.value.problems)


def node_json(**keys: Any) -> str:
    """A node JSON with one entry for n1."""
    return dumps({"nodeconfig": [{"name": "n1", **keys}]})


REGISTER = "hami.io/node-nvidia-register"
SCORES = "hami.io/node-nvidia-score"
LOCKED_AT = "2026-11-15T10:00:00Z"
AGENT = "tessera-device-plugin"


async def registered(node: AgentNode, predicate: Callable[[list[Json]], object] = bool) -> list[Json]:
    """The registered cards, as soon as they satisfy the predicate: the plain JSON objects."""

    def found() -> list[Json] | None:
        cards = loads(node.annotations().get(REGISTER) or "[]")
        return cards if predicate(cards) else None

    return await node.plane.wait_for(found, PATIENCE_S, what="such a registration") or []


async def take_lock(node: AgentNode, pod: str) -> str:
    """Locks the node for this pod."""
    text = f"{LOCKED_AT},default,{pod}"
    await node.plane.client.patch(NODES.path(name=NODE), {"metadata": {"annotations": {NODE_LOCK: text}}})
    return text


async def lock(node: AgentNode, pod: str) -> str:
    """Locks the node for a waiting pod; returns once the agent has seen it."""
    text = await take_lock(node, pod)
    await node.until(
        lambda: node.process.around.handover.pods.node_view.lock_text == text, what="the lock to be heard of"
    )
    return text


async def bound(node: AgentNode, name: str, slices: Sequence[Sequence[DeviceEntry]], **more: Any) -> Json:
    """A pod of `bound_pod`; returns once the agent has seen it."""
    pod = await node.bound_pod(name, slices, **more)
    pods = node.process.around.handover.pods
    await node.until(lambda: pods.get(pod["metadata"]["uid"]), what=f"{name} to be heard of")
    return pod


async def unlocked(node: AgentNode) -> None:
    await node.plane.wait_for(lambda: NODE_LOCK not in node.annotations(), PATIENCE_S, what="the lock to be gone")


async def pod_ended(node: AgentNode, name: str, phase: str) -> None:
    """Sets the phase that kubelet reports, not the phase of the handover."""
    await node.plane.client.patch(f"{PODS.path('default', name)}/status", {"status": {"phase": phase}})


def writes(node: AgentNode, path: str = "") -> list[tuple[str, str]]:
    """Method and path of the agent's successful writes so far."""
    return [
        (seen.method, seen.path)
        for seen in node.plane.server.journal
        if seen.writes and seen.agent == AGENT and path in seen.path and seen.status == 200
    ]
