"""Asks kubelet which container holds which devices, through the PodResources API.

Connects on the first call and again after every failure, because kubelet's socket is another one after a restart. What
to do about a difference between kubelet's list and what was handed out is not decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from grpc import aio

from tessera.node.kubelet import channels
from tessera.wire.kubelet import pod_resources_pb2 as messages
from tessera.wire.kubelet.methods import LIST

LIST_S = 5.0
"""for kubelet to answer"""


class PodResourcesError(Exception):
    """kubelet did not answer; the text says why."""


class ContainerName(NamedTuple):
    """A container that holds devices. kubelet does not report the pod's uid."""

    namespace: str
    pod: str
    container: str


class PodResourcesClient:
    """Lists the devices of one resource. Used from the event loop only."""

    def __init__(self, socket: Path, resource: str, *, deadline: float = LIST_S) -> None:
        self._socket = socket
        self._resource = resource
        self._deadline = deadline
        self._idle: aio.Channel | None = None
        """the last one that worked, while it is not in use"""

    async def list(self) -> Mapping[ContainerName, tuple[str, ...]]:
        """Returns the device ids of each container that holds some, in kubelet's order. Raises PodResourcesError."""
        channel = self._idle or channels.open_channel(self._socket)
        self._idle = None
        try:
            answer = await channels.unary(channel, LIST)(messages.ListPodResourcesRequest(), timeout=self._deadline)
        except channels.FAULTS as error:
            await channel.close()
            raise PodResourcesError(f"kubelet at {self._socket}: {channels.described(error)}") from error
        except asyncio.CancelledError:
            await channel.close()
            raise
        # Two concurrent calls have two channels; only one is kept.
        await self.close()
        self._idle = channel
        return _held(answer, self._resource)

    async def close(self) -> None:
        channel, self._idle = self._idle, None
        if channel is not None:
            await channel.close()


def _held(answer: messages.ListPodResourcesResponse, resource: str) -> dict[ContainerName, tuple[str, ...]]:
    found: dict[ContainerName, tuple[str, ...]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            holder = ContainerName(pod.namespace, pod.name, container.name)
            ids = [each for entry in container.devices if entry.resource_name == resource for each in entry.device_ids]
            if ids:
                found[holder] = tuple(dict.fromkeys((*found.get(holder, ()), *ids)))
    return found
