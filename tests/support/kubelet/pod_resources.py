"""kubelet's PodResources API on a real socket, with a scripted response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc import aio

from tessera.node.kubelet.endpoint import answering, target
from tessera.wire.kubelet import methods
from tessera.wire.kubelet import pod_resources_pb2 as messages


class ScriptedPodResources:
    """`held`: device ids by (namespace, pod, container)."""

    def __init__(self, resource: str = "nvidia.com/gpu") -> None:
        self.resource = resource
        self.held: dict[tuple[str, str, str], list[str]] = {}
        self.response: messages.ListPodResourcesResponse | None = None
        """instead of `held`"""
        self.silent = False
        """whether it never answers"""

    def _answer(self) -> messages.ListPodResourcesResponse:
        if self.response is not None:
            return self.response
        pods: dict[tuple[str, str], messages.PodResources] = {}
        for (namespace, pod, container), ids in self.held.items():
            entry = pods.setdefault((namespace, pod), messages.PodResources(name=pod, namespace=namespace))
            # As kubelet does it: one entry for each device.
            devices = [messages.ContainerDevices(resource_name=self.resource, device_ids=[each]) for each in ids]
            entry.containers.append(messages.ContainerResources(name=container, devices=devices))
        return messages.ListPodResourcesResponse(pod_resources=pods.values())

    async def list(
        self,
        _request: messages.ListPodResourcesRequest,
        _context: aio.ServicerContext[messages.ListPodResourcesRequest, messages.ListPodResourcesResponse],
    ) -> messages.ListPodResourcesResponse:
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
