"""A proxy between kubelet and the real agent that answers Allocate with the slice of another pod.

Every container gets a slice, and a card, that it was not granted. All other calls pass unchanged: to the agent the
proxy looks like kubelet, and to kubelet like the agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
from grpc import aio

from tessera.node.kubelet.endpoint import FAULTS, answering, open_channel, target, unary
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet import methods
from tests.e2e.node.agent import PLUGINS
from tests.e2e.node.control_plane import NodeControlPlane
from tests.support.kubelet import streaming

SOCKET = "misleading.sock"
MARK = "ANOTHER_PODS_ANSWER"
ANOTHERS = {
    "NVIDIA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "77777m",
    "CUDA_DEVICE_SM_LIMIT": "77",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/anothers.cache",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=77777M",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "77",
    MARK: "yes",
}
"""what another pod's container would be told"""


class SwappingPluginProxy:
    """Use `serving` around the agent, which must look for kubelet in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._agent: aio.Channel | None = None
        self.answered = 0
        """containers that got the wrong answer"""

    @asynccontextmanager
    async def serving(self, _plane: NodeControlPlane) -> AsyncIterator[Path]:
        self._folder.mkdir()
        to_kubelet = grpc.method_handlers_generic_handler(
            methods.DEVICE_PLUGIN,
            dict(
                (
                    answering(methods.OPTIONS, self._options),
                    answering(methods.LIST_AND_WATCH, self._list_and_watch),
                    answering(methods.PREFERRED_ALLOCATION, self._prefer),
                    answering(methods.ALLOCATE, self._allocate),
                )
            ),
        )
        to_agent = grpc.method_handlers_generic_handler(
            methods.REGISTRATION, dict([answering(methods.REGISTER, self._register)])
        )
        servers = [aio.server(handlers=[each]) for each in (to_kubelet, to_agent)]
        for server, socket in zip(servers, (PLUGINS / SOCKET, self._folder / "kubelet.sock"), strict=True):
            server.add_insecure_port(target(socket))
            await server.start()
        try:
            yield self._folder
        finally:
            for server in servers:
                await server.stop(None)
            if self._agent is not None:
                await self._agent.close()

    async def _register(
        self, request: messages.RegisterRequest, _context: aio.ServicerContext[messages.RegisterRequest, messages.Empty]
    ) -> messages.Empty:
        """Of the agent: passed on to kubelet under the name of this socket."""
        self._agent = open_channel(self._folder / request.endpoint)
        ours = messages.RegisterRequest()
        ours.CopyFrom(request)
        ours.endpoint = SOCKET
        async with open_channel(PLUGINS / "kubelet.sock") as kubelet:
            return await unary(kubelet, methods.REGISTER)(ours)

    async def _options(
        self, request: messages.Empty, _context: aio.ServicerContext[messages.Empty, messages.DevicePluginOptions]
    ) -> messages.DevicePluginOptions:
        return await unary(self._channel, methods.OPTIONS)(request)

    async def _list_and_watch(
        self, request: messages.Empty, _context: aio.ServicerContext[messages.Empty, messages.ListAndWatchResponse]
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        # An agent that was killed ends the stream, as it does without the proxy.
        with suppress(*FAULTS):
            async for listed in streaming(self._channel, methods.LIST_AND_WATCH)(request):
                yield listed

    async def _prefer(
        self,
        request: messages.PreferredAllocationRequest,
        _context: aio.ServicerContext[messages.PreferredAllocationRequest, messages.PreferredAllocationResponse],
    ) -> messages.PreferredAllocationResponse:
        return await unary(self._channel, methods.PREFERRED_ALLOCATION)(request)

    async def _allocate(
        self,
        request: messages.AllocateRequest,
        _context: aio.ServicerContext[messages.AllocateRequest, messages.AllocateResponse],
    ) -> messages.AllocateResponse:
        answer = await unary(self._channel, methods.ALLOCATE)(request)
        for each in answer.container_responses:
            each.envs.update(ANOTHERS)
            self.answered += 1
        return answer

    @property
    def _channel(self) -> aio.Channel:
        assert self._agent is not None, "the agent has not registered"
        return self._agent
