"""Asks kubelet which container holds which devices, through the PodResources API.

Connects on the first call and again after every failure, because kubelet's socket is another one after a restart. What
to do about a difference between kubelet's list and what was handed out is not decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from grpc import aio

from tessera.node.kubelet.endpoint import FAULTS, described, open_channel, unary
from tessera.wire.kubelet import pod_resources_pb2 as messages
from tessera.wire.kubelet.methods import LIST

LIST_S = 5.0
"""for kubelet to answer"""


class PodResourcesError(Exception):
    """kubelet did not answer; the text says why."""


Holder = tuple[str, str, str]
"""namespace, pod and container; kubelet does not report the pod's uid"""


class PodResourcesClient:
    """Lists the devices of one resource. Used from the event loop only."""

    def __init__(self, *, deadline: float = LIST_S) -> None:
        self._socket: Path | None = None
        self._resource = ""
        self._deadline = deadline
        self._idle: aio.Channel | None = None
        """the last one that worked, while it is not in use"""

    async def use(self, socket: Path | None, resource: str) -> None:
        """Must be called first; later calls take effect from the next question on."""
        self._socket, self._resource = socket, resource
        await self.close()

    async def list(self) -> dict[Holder, tuple[str, ...]]:
        """Returns the device ids of each container that holds some, in kubelet's order. Raises PodResourcesError."""
        socket, resource = self._socket, self._resource
        if socket is None:
            raise PodResourcesError("no socket is configured (--pod-resources-socket)")
        channel = self._idle or open_channel(socket)
        self._idle = None
        try:
            answer = await unary(channel, LIST)(messages.ListPodResourcesRequest(), timeout=self._deadline)
        except FAULTS as error:
            await channel.close()
            raise PodResourcesError(f"kubelet at {socket}: {described(error)}") from error
        except asyncio.CancelledError:
            await channel.close()
            raise
        # Two concurrent calls have two channels; only one is kept.
        await self.close()
        if socket == self._socket:
            self._idle = channel
        else:
            await channel.close()
        return _held(answer, resource)

    async def held(self) -> Collection[Collection[str]] | None:
        """Returns the device ids of each container that holds some; None if they are unknown."""
        try:
            return list((await self.list()).values())
        except PodResourcesError:
            return None

    async def close(self) -> None:
        channel, self._idle = self._idle, None
        if channel is not None:
            await channel.close()


def _held(answer: messages.ListPodResourcesResponse, resource: str) -> dict[Holder, tuple[str, ...]]:
    found: dict[Holder, tuple[str, ...]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            holder = (pod.namespace, pod.name, container.name)
            ids = [each for entry in container.devices if entry.resource_name == resource for each in entry.device_ids]
            if ids:
                found[holder] = tuple(dict.fromkeys((*found.get(holder, ()), *ids)))
    return found
