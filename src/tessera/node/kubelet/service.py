"""Answers kubelet: the five calls of the device plugin service.

Any number of ListAndWatch streams see the same list and every change. An `Allocator` decides what to hand out; the
service checks requests and turns every fault into a gRPC status, so nothing that kubelet sends ends the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

import grpc
import structlog
from grpc import aio

from tessera.node.fleet import Fleet, Replica, replicas
from tessera.node.kubelet.endpoint import Service, answering
from tessera.node.modes.base import AllocationRefused, ContainerResponse
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet import methods
from tessera.wire.kubelet.methods import HEALTHY, UNHEALTHY, VERSION

log = structlog.get_logger(__name__)

MAX_TEXT = 1024
"""characters of a status text, which is sent in a header"""

FAULT = "a fault in the node agent; its log says more"

ALLOCATE_S = 60.0
"""the limit for one Allocate: kubelet itself waits forever and admits no other pod meanwhile"""
Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Counted = WatchedValue[Fleet] | WatchedValue[tuple[Replica, ...]]
"""cards, each of which is several devices, or devices as they are"""


def plugin_options(settings: AgentSettings) -> messages.DevicePluginOptions:
    """The same for Register and GetDevicePluginOptions, because kubelets differ in which they use."""
    return messages.DevicePluginOptions(
        pre_start_required=False, get_preferred_allocation_available=settings.node.preferred_allocation
    )


def registration_request(settings: AgentSettings, *, endpoint: str) -> messages.RegisterRequest:
    return messages.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=settings.resource, options=plugin_options(settings)
    )


def device_list(replicas: Iterable[Replica]) -> messages.ListAndWatchResponse:
    return messages.ListAndWatchResponse(devices=[_device(each) for each in replicas])


def _device(replica: Replica) -> messages.Device:
    topology = None
    if replica.numa is not None:
        topology = messages.TopologyInfo(nodes=[messages.NUMANode(ID=replica.numa)])
    return messages.Device(ID=replica.id, health=HEALTHY if replica.healthy else UNHEALTHY, topology=topology)


def allocate_response(responses: Iterable[ContainerResponse]) -> messages.AllocateResponse:
    return messages.AllocateResponse(container_responses=[_container(each) for each in responses])


def _container(response: ContainerResponse) -> messages.ContainerAllocateResponse:
    return messages.ContainerAllocateResponse(
        envs=response.env,
        mounts=[
            messages.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in response.mounts
        ],
        devices=[
            messages.DeviceSpec(
                container_path=node.container_path, host_path=node.host_path, permissions=node.permissions
            )
            for node in response.devices
        ],
        annotations=response.annotations,
        cdi_devices=[messages.CDIDevice(name=name) for name in response.cdi_devices],
    )


def status_text(text: str) -> str:
    """Makes any text fit for a gRPC status."""
    readable = text.encode("utf-8", "replace").decode()
    return readable if len(readable) <= MAX_TEXT else f"{readable[: MAX_TEXT - 3]}..."


class Allocator(Protocol):
    """Decides what containers get."""

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        """Returns a response for each container's device ids, which all exist. Raises AllocationRefused.

        Is cancelled if kubelet disconnects or it takes too long.
        """
        ...

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        """Returns devices that the next container should get; none without a preference. Never raises."""
        ...


class DevicePluginService(Service):
    """The service of one resource. Used from the event loop only."""

    def __init__(self, settings: AgentSettings, counted: Counted, allocator: Allocator) -> None:
        self._settings = settings
        self._counted = counted
        self._allocator = allocator
        self._listed: WatchedValue[tuple[Replica, ...] | None] = WatchedValue(None)
        """None while streams must end"""
        self._known: frozenset[str] = frozenset()
        self.streams = 0
        """open now"""

    @property
    def probe(self) -> tuple[methods.Method[messages.Empty, messages.DevicePluginOptions], messages.Empty]:
        return methods.OPTIONS, messages.Empty()

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            methods.DEVICE_PLUGIN,
            dict(
                (
                    answering(methods.OPTIONS, self._options),
                    answering(methods.LIST_AND_WATCH, self._list_and_watch),
                    answering(methods.PREFERRED_ALLOCATION, self._prefer),
                    answering(methods.ALLOCATE, self._allocate),
                    answering(methods.PRE_START, self._pre_start),
                )
            ),
        )

    def open(self) -> None:
        """Starts streaming the list."""
        counted = self._counted.value
        listed = replicas(counted, self._settings.node) if isinstance(counted, Fleet) else counted
        self._known = frozenset(each.id for each in listed)
        self._listed.set(listed)

    def close(self) -> None:
        """Ends all streams normally."""
        self._listed.set(None)

    async def follow(self) -> None:
        """Keeps the list up to date until cancelled."""
        async for _ in self._counted.changes():
            if self._listed.value is not None:
                self.open()

    # -- the calls

    async def _options(self, _request: messages.Empty, _context: Context) -> messages.DevicePluginOptions:
        return plugin_options(self._settings)

    async def _list_and_watch(
        self, _request: messages.Empty, _context: Context
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        self.streams += 1
        try:
            async with aclosing(self._listed.changes()) as lists:
                async for listed in lists:
                    if listed is None:
                        return
                    yield device_list(listed)
        finally:
            self.streams -= 1

    async def _prefer(
        self, request: messages.PreferredAllocationRequest, _context: Context
    ) -> messages.PreferredAllocationResponse:
        # Always one entry per request: kubelet matches them by position.
        return messages.PreferredAllocationResponse(
            container_responses=[
                messages.ContainerPreferredAllocationResponse(deviceIDs=self._preferred(each))
                for each in request.container_requests
            ]
        )

    def _preferred(self, request: messages.ContainerPreferredAllocationRequest) -> Sequence[str]:
        try:
            return self._allocator.prefer(
                list(request.available_deviceIDs),
                must_include=list(request.must_include_deviceIDs),
                count=request.allocation_size,
            )
        except Exception:
            log.exception("preferred allocation failed")
            return ()

    async def _allocate(self, request: messages.AllocateRequest, context: Context) -> messages.AllocateResponse:
        try:
            return allocate_response(await self._responses(request))
        except AllocationRefused as refusal:
            log.warning("allocation refused", reason=str(refusal))
            code, text = grpc.StatusCode.UNKNOWN, str(refusal)
        except TimeoutError:
            log.error("allocation took too long", seconds=ALLOCATE_S)
            code, text = grpc.StatusCode.INTERNAL, f"the node agent did not finish within {ALLOCATE_S:g} s"
        except Exception:
            log.exception("allocation failed")
            code, text = grpc.StatusCode.INTERNAL, FAULT
        await context.abort(code, status_text(text))

    async def _responses(self, request: messages.AllocateRequest) -> list[ContainerResponse]:
        containers = [list(each.devices_ids) for each in request.container_requests]
        self._check(containers)
        async with asyncio.timeout(ALLOCATE_S):
            responses = await self._allocator.allocate(containers)
        if len(responses) != len(containers):
            raise ValueError(f"{len(responses)} responses for {len(containers)} containers")
        return responses

    def _check(self, containers: Sequence[Sequence[str]]) -> None:
        resource = self._settings.resource
        if not containers or not all(containers):
            raise AllocationRefused(f"invalid allocation request for '{resource}': no devices")
        asked = [each for ids in containers for each in ids]
        for device in asked:
            if device not in self._known:
                raise AllocationRefused(f"invalid allocation request for '{resource}': unknown device: {device}")
        if len(set(asked)) != len(asked):
            raise AllocationRefused(f"invalid allocation request for '{resource}': the same device twice")

    async def _pre_start(
        self, _request: messages.PreStartContainerRequest, _context: Context
    ) -> messages.PreStartContainerResponse:
        return messages.PreStartContainerResponse()
