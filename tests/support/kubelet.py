"""A scripted kubelet on real sockets, and what a device plugin needs beside it: folders with short paths, cards, an
allocator with scripted responses, and PodResources.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardFacts, GpuInstanceProfile
from tessera.node.fleet import CardState, Fleet, preferred
from tessera.node.kubelet.endpoint import answering, open_channel, target, unary
from tessera.node.modes.base import ContainerResponse
from tessera.node.settings import AgentSettings, Paths
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet import methods
from tessera.wire.kubelet import pod_resources_pb2 as holdings
from tessera.wire.kubelet.methods import Method, Request, Response
from tessera.wire.node_config import NodeSettings

DEFAULTS = NodeSettings()


@contextmanager
def plugins_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="plugins-") as folder:
        yield Path(folder)


def settings_in(folder: Path, node: NodeSettings = DEFAULTS, *, resource: str = "nvidia.com/gpu") -> AgentSettings:
    """An agent whose kubelet is in this folder."""
    paths = Paths(plugins=folder, kubelet_socket=folder / "kubelet.sock", pod_resources=folder / "pod-resources.sock")
    return AgentSettings(node_name="node-a", node=node, resource=resource, paths=paths)


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-207a-2038-9b45-23cac89cb67a"


def card(number: int, *, numa: int | None = None, problem: str = "", instances: int = 0) -> CardState:
    """`instances`: the most MIG instances it can have; 0 = no MIG."""
    offer = GpuInstanceProfile("1g.18gb", 19, 1, 18_432, 16, instances, (MigPlacement(0, 1),))
    offers = (offer,) if instances else ()
    return CardState(CardFacts(uuid(number), number, "NVIDIA H200", numa=numa, mig_profiles=offers), problem)


def fleet(count: int = 2, *, sick: frozenset[int] | set[int] = frozenset()) -> Fleet:
    """`count` cards; those with numbers in `sick` are unhealthy."""
    return Fleet(tuple(card(number, problem="xid 79" if number in sick else "") for number in range(count)))


def streaming(
    channel: aio.Channel, method: Method[Request, Response]
) -> aio.UnaryStreamMultiCallable[Request, Response]:
    return channel.unary_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


class ScriptedPodResources:
    """`held`: device ids by (namespace, pod, container)."""

    def __init__(self, resource: str = "nvidia.com/gpu") -> None:
        self.resource = resource
        self.held: dict[tuple[str, str, str], list[str]] = {}
        self.response: holdings.ListPodResourcesResponse | None = None
        """instead of `held`"""
        self.silent = False
        """whether it never answers"""

    def _answer(self) -> holdings.ListPodResourcesResponse:
        if self.response is not None:
            return self.response
        pods: dict[tuple[str, str], holdings.PodResources] = {}
        for (namespace, pod, container), ids in self.held.items():
            entry = pods.setdefault((namespace, pod), holdings.PodResources(name=pod, namespace=namespace))
            # As kubelet does it: one entry for each device.
            devices = [holdings.ContainerDevices(resource_name=self.resource, device_ids=[each]) for each in ids]
            entry.containers.append(holdings.ContainerResources(name=container, devices=devices))
        return holdings.ListPodResourcesResponse(pod_resources=pods.values())

    async def list(
        self,
        _request: holdings.ListPodResourcesRequest,
        _context: aio.ServicerContext[holdings.ListPodResourcesRequest, holdings.ListPodResourcesResponse],
    ) -> holdings.ListPodResourcesResponse:
        if self.silent:
            await asyncio.Event().wait()
        return self._answer()


@asynccontextmanager
async def serving_pod_resources(socket: Path, script: ScriptedPodResources) -> AsyncIterator[None]:
    server = aio.server(
        handlers=[
            grpc.method_handlers_generic_handler(methods.POD_RESOURCES, dict([answering(methods.LIST, script.list)]))
        ]
    )
    server.add_insecure_port(target(socket))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


Script = Callable[[Sequence[Sequence[str]]], Awaitable[list[ContainerResponse]]]


async def visible_devices(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
    return [ContainerResponse(env={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}) for ids in containers]


class ScriptedAllocator:
    """By default it returns the ids; it prefers the cards in `wanted`."""

    def __init__(self, script: Script = visible_devices) -> None:
        self.script = script
        self.wanted: Sequence[str] | None = None
        self.fault: Exception | None = None
        """raised by `prefer`"""

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        return await self.script(containers)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        if self.fault is not None:
            raise self.fault
        return preferred(self.wanted, available=available, must_include=must_include, count=count)


WAIT_S = 60.0
"""before an event that never happens fails the test"""
CALL_S = 10.0


class ScriptedKubelet:
    """Use as `async with ScriptedKubelet(folder) as kubelet`."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "kubelet.sock"
        self.refusals: list[str] = []
        """errors for the next Register calls"""
        self.listens = True
        """whether a registration is followed by ListAndWatch"""
        self.registrations: list[messages.RegisterRequest] = []
        """those that were accepted"""
        self.options: list[messages.DevicePluginOptions] = []
        """as read during each registration"""
        self.lists: list[dict[str, messages.Device]] = []
        """devices by id, in the order in which the lists came"""
        self.latest: dict[str, dict[str, messages.Device]] = {}
        """the last list of every resource"""
        self.ended: list[grpc.StatusCode] = []
        """how streams ended"""
        self._server: aio.Server | None = None
        self._channels: dict[str, aio.Channel] = {}
        """by resource; the plugin that registered last is at the end"""
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._pin = -1

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._pin >= 0:
            os.close(self._pin)

    # -- start and stop

    async def start(self) -> None:
        """Clears the folder and serves."""
        for path in self.socket.parent.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        handlers = grpc.method_handlers_generic_handler(
            methods.REGISTRATION, dict([answering(methods.REGISTER, self._register)])
        )
        self._server = aio.server(handlers=[handlers])
        self._server.add_insecure_port(target(self.socket))
        await self._server.start()
        # While the file is open, no later one gets its inode number, as after the slower restart of a real kubelet.
        released, self._pin = self._pin, os.open(self.socket, os.O_PATH)
        if released >= 0:
            os.close(released)

    async def stop(self, *, leaving_socket: bool = False) -> None:
        """Stops serving. `leaving_socket`: as after SIGKILL, with a socket file that refuses connections."""
        await self._forget()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        if leaving_socket:
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(self.socket))

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def hang_up(self) -> None:
        """Closes the stream, as after a fault in kubelet, and forgets the plugin."""
        await self._forget()

    # -- what it saw

    async def until(self, predicate: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not predicate():
                self._news.clear()
                await self._news.wait()

    async def registered(self, times: int = 1) -> messages.RegisterRequest:
        """Waits for the registration with this number."""
        await self.until(lambda: len(self.registrations) >= times)
        return self.registrations[times - 1]

    async def listed(self, predicate: Callable[[dict[str, str]], object] = bool) -> dict[str, str]:
        """Health by device id, as soon as the latest list satisfies the predicate."""
        await self.until(lambda: self.lists and predicate(self.health))
        return self.health

    @property
    def health(self) -> dict[str, str]:
        return {name: device.health for name, device in self.lists[-1].items()}

    # -- calls

    async def allocate(self, *containers: list[str], resource: str | None = None) -> messages.AllocateResponse:
        """`resource`: whose plugin to call; by default the one that registered last."""
        requests = [messages.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        channel = self.channel if resource is None else self._channels[resource]
        return await unary(channel, methods.ALLOCATE)(
            messages.AllocateRequest(container_requests=requests), timeout=CALL_S
        )

    async def prefer(
        self, available: list[str], *, size: int, must_include: list[str] | None = None
    ) -> list[list[str]]:
        request = messages.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include or [], allocation_size=size
        )
        answer = await unary(self.channel, methods.PREFERRED_ALLOCATION)(
            messages.PreferredAllocationRequest(container_requests=[request]), timeout=CALL_S
        )
        return [list(each.deviceIDs) for each in answer.container_responses]

    @property
    def channel(self) -> aio.Channel:
        """To the plugin that registered last."""
        assert self._channels, "no plugin is registered"
        return next(reversed(self._channels.values()))

    # -- the protocol

    async def _register(
        self,
        request: messages.RegisterRequest,
        context: aio.ServicerContext[messages.RegisterRequest, messages.Empty],
    ) -> messages.Empty:
        if self.refusals:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusals.pop(0))
        channel = open_channel(self.socket.parent / request.endpoint)
        self.options.append(await unary(channel, methods.OPTIONS)(messages.Empty(), timeout=CALL_S))
        await self._forget(request.resource_name)
        self._channels[request.resource_name] = channel
        if self.listens:
            self._streams[request.resource_name] = asyncio.create_task(self._listen(channel, request.resource_name))
        self.registrations.append(request)
        self._news.set()
        return messages.Empty()

    async def _listen(self, channel: aio.Channel, resource: str) -> None:
        call = streaming(channel, methods.LIST_AND_WATCH)(messages.Empty())
        try:
            async for answer in call:
                self.latest[resource] = {device.ID: device for device in answer.devices}
                self.lists.append(self.latest[resource])
                self._news.set()
        except aio.AioRpcError as error:
            self.ended.append(error.code())
        else:
            self.ended.append(await call.code())
        self._news.set()

    async def _forget(self, *resources: str) -> None:
        """Forgets the plugins of these resources, or all."""
        for resource in resources or tuple(self._channels):
            stream = self._streams.pop(resource, None)
            if stream is not None:
                stream.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stream
            channel = self._channels.pop(resource, None)
            if channel is not None:
                await channel.close()
