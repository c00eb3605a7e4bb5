"""A kubelet as a device plugin sees it: it serves Register, calls the plugin back, and reads ListAndWatch.

Like the real one, it deletes every socket in its folder at start, and closes the older stream of a plugin that
registers again. Tests script its restarts, silences and refusals.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from tessera.node.kubelet.endpoint import answering, open_channel, target, unary
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet import methods
from tests.support.kubelet.streams import streaming

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
