"""Answers kubelet: the five calls of the device plugin service.

Any number of streams see the same list, and each sees every change. What to hand out is decided behind `Allocator`;
here requests are checked, and every fault becomes a status: nothing that kubelet sends ends the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Protocol

import grpc
import structlog
from grpc import aio

from tessera.node.fleet import Fleet
from tessera.node.kubelet import channels
from tessera.node.kubelet import messages as encoding
from tessera.node.kubelet.device_ids import Replica, replicas
from tessera.node.modes.base import Answer, Refused
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import Current
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet import methods

log = structlog.get_logger(__name__)

ALLOCATE_S = 60.0
"""the longest an Allocate may take: kubelet itself waits for ever, and admits no other pod meanwhile"""


Counted = Current[Fleet] | Current[tuple[Replica, ...]]
"""cards, of which every one is many devices, or devices as they are"""


class Allocator(Protocol):
    """Who decides what kubelet's containers get."""

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[Answer]:
        """One answer for each container's device ids, which are known ones. Raises Refused.

        Is cancelled where kubelet goes away or it takes too long.
        """
        ...

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        """Devices that the next container should get; none where there is nothing to say. Never raises."""
        ...


class DevicePluginService:
    """One resource. Used from the event loop only."""

    def __init__(self, settings: AgentSettings, counted: Counted, allocator: Allocator) -> None:
        self._settings = settings
        self._counted = counted
        self._allocator = allocator
        self._listed: Current[tuple[Replica, ...] | None] = Current(None)
        """None while streams have to end"""
        self._known: frozenset[str] = frozenset()
        self.streams = 0
        """open now"""

    def handler(self) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        return grpc.method_handlers_generic_handler(
            methods.DEVICE_PLUGIN,
            dict(
                (
                    channels.answering(methods.OPTIONS, self._options),
                    channels.answering_with_stream(methods.LIST_AND_WATCH, self._list_and_watch),
                    channels.answering(methods.PREFERRED_ALLOCATION, self._prefer),
                    channels.answering(methods.ALLOCATE, self._allocate),
                    channels.answering(methods.PRE_START, self._pre_start),
                )
            ),
        )

    def open(self) -> None:
        """From now on there is a list to be streamed."""
        counted = self._counted.value
        listed = replicas(counted, self._settings.node) if isinstance(counted, Fleet) else counted
        self._known = frozenset(each.id for each in listed)
        self._listed.set(listed)

    def close(self) -> None:
        """All streams end well."""
        self._listed.set(None)

    async def follow(self) -> None:
        """Keep the list true to what is counted, until cancelled."""
        async for _ in self._counted.changes():
            if self._listed.value is not None:
                self.open()

    # -- the calls

    async def _options(
        self,
        _request: messages.Empty,
        _context: aio.ServicerContext[messages.Empty, messages.DevicePluginOptions],
    ) -> messages.DevicePluginOptions:
        return encoding.options(self._settings)

    async def _list_and_watch(
        self,
        _request: messages.Empty,
        _context: aio.ServicerContext[messages.Empty, messages.ListAndWatchResponse],
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        self.streams += 1
        try:
            async with aclosing(self._listed.changes()) as lists:
                async for listed in lists:
                    if listed is None:
                        return
                    yield encoding.device_list(listed)
        finally:
            self.streams -= 1

    async def _prefer(
        self,
        request: messages.PreferredAllocationRequest,
        _context: aio.ServicerContext[messages.PreferredAllocationRequest, messages.PreferredAllocationResponse],
    ) -> messages.PreferredAllocationResponse:
        # One entry for each request in any case: kubelet takes them by position.
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
            log.exception("no preference because of a fault")
            return ()

    async def _allocate(
        self,
        request: messages.AllocateRequest,
        context: aio.ServicerContext[messages.AllocateRequest, messages.AllocateResponse],
    ) -> messages.AllocateResponse:
        try:
            return encoding.allocation(await self._answers(request))
        except Refused as refusal:
            log.warning("allocation refused", reason=str(refusal))
            code, text = grpc.StatusCode.UNKNOWN, str(refusal)
        except TimeoutError:
            log.error("allocation took too long", seconds=ALLOCATE_S)
            code, text = grpc.StatusCode.INTERNAL, f"the node agent did not finish within {ALLOCATE_S:g} s"
        except Exception:
            log.exception("allocation failed")
            code, text = grpc.StatusCode.INTERNAL, "a fault in the node agent; its log says more"
        await context.abort(code, encoding.status_text(text))

    async def _answers(self, request: messages.AllocateRequest) -> list[Answer]:
        containers = [list(each.devices_ids) for each in request.container_requests]
        self._check(containers)
        async with asyncio.timeout(ALLOCATE_S):
            answers = await self._allocator.allocate(containers)
        if len(answers) != len(containers):
            raise ValueError(f"{len(answers)} answers for {len(containers)} containers")
        return answers

    def _check(self, containers: Sequence[Sequence[str]]) -> None:
        resource = self._settings.resource
        if not containers or not all(containers):
            raise Refused(f"invalid allocation request for '{resource}': no devices")
        asked = [each for ids in containers for each in ids]
        for device in asked:
            if device not in self._known:
                raise Refused(f"invalid allocation request for '{resource}': unknown device: {device}")
        if len(set(asked)) != len(asked):
            raise Refused(f"invalid allocation request for '{resource}': the same device twice")

    async def _pre_start(
        self,
        _request: messages.PreStartContainerRequest,
        _context: aio.ServicerContext[messages.PreStartContainerRequest, messages.PreStartContainerResponse],
    ) -> messages.PreStartContainerResponse:
        return messages.PreStartContainerResponse()
