"""HAMi's own device plugin: it finds its pod through the node lock, hands out one entry per call, and unlocks.

    lock names a pod -> that pod; else the first pending pod of the node in phase allocating or success
    entries left     -> phase and lock stay; none left -> success and the lock goes; any error -> failed and it goes

Like the real plugin it knows only the API: a pod that nothing points to cannot be found.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import NODES, PODS
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.node_lock import decode_node_lock
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices, encode_pod_devices
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import TO_ALLOCATE, AllocateError, slice_environment
from tessera_lab.sandbox.objects import annotations_of, containers_of, name_of, namespace_of, phase_of, version_of

RELEASES = 5
"""tries to remove the lock from a node that keeps changing"""
WORDS = ("NVIDIA", "MLU", "DCU", "GCU")
"""vendors whose devices may still have to be handed out, as far as this plugin knows"""
CONFLICT = 409


class HamiPlugin:
    """The plugin of one node."""

    def __init__(self, client: KubeClient, node: str, *, rng: random.Random) -> None:
        self._client = client
        self._node = node
        self._rng = rng

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        pod = await self._pending_pod()
        try:
            return await self._hand_out(pod, len(device_ids))
        except AllocateError:
            await self._finish(pod, keys.PHASE_FAILED)
            raise

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        """Off, as in HAMi's default."""
        return None

    def admitted(self, pod: Json) -> dict[str, str]:
        """Nothing to do: Allocate has written everything."""
        return {}

    def rejected(self, pod: Json) -> dict[str, str]:
        return {}

    async def _hand_out(self, pod: Json, count: int) -> Mapping[str, str]:
        containers = _entries(pod)
        index = next((index for index, entries in enumerate(containers) if entries), None)
        if index is None:
            raise AllocateError("no pending device allocation found")
        if index >= len(containers_of(pod)):
            raise AllocateError(f"container index {index} out of range")
        entries = containers[index]
        if len(entries) != count:
            raise AllocateError("device number not matched")
        # One entry more than was decoded, as the plugin's own codec leaves it.
        left = encode_pod_devices([() if at == index else each for at, each in enumerate(containers)]) + ";"
        try:
            await self._annotate(pod, {TO_ALLOCATE: left})
        except KubeError as error:
            raise AllocateError(f"patch of pod annotations failed: {error}") from error
        if not any(word in left for word in WORDS):
            await self._finish(pod, keys.PHASE_SUCCESS)
        return slice_environment(entries, self._rng)

    async def _pending_pod(self) -> Json:
        """The pod that this Allocate is assumed to be for."""
        try:
            node = await self._client.get(NODES.path(name=self._node), dict[str, Any])
            text = annotations_of(node).get(keys.NODE_LOCK)
            owner = decode_node_lock(text).owner if text is not None else None
            if owner is not None:
                return await self._client.get(PODS.path(*owner), dict[str, Any])
            listed = await self._client.list(PODS.path(), dict[str, Any], field_selector=f"spec.nodeName={self._node}")
        except (KubeError, WireError) as error:
            raise AllocateError(str(error)) from error
        for pod in listed.items:
            if phase_of(pod) == "Pending" and self._is_binding(annotations_of(pod)):
                return pod
        raise AllocateError(f"no binding pod found on node {self._node}")

    def _is_binding(self, annotations: Mapping[str, str]) -> bool:
        return (
            keys.BIND_TIME in annotations
            and annotations.get(keys.BIND_PHASE) in (keys.PHASE_ALLOCATING, keys.PHASE_SUCCESS)
            and annotations.get(keys.ASSIGNED_NODE) == self._node
        )

    async def _finish(self, pod: Json, phase: str) -> None:
        """Writes the phase and releases the lock; errors are ignored, as in HAMi."""
        with suppress(KubeError):
            await self._annotate(pod, {keys.BIND_PHASE: phase})
        with suppress(KubeError):
            await self._release(pod)

    async def _release(self, pod: Json) -> None:
        """Removes the lock, if it is this pod's or names no pod."""
        ours = f",{namespace_of(pod)},{name_of(pod)}"
        for _ in range(RELEASES):
            node = await self._client.get(NODES.path(name=self._node), dict[str, Any])
            text = annotations_of(node).get(keys.NODE_LOCK)
            if text is None or ("," in text and not text.endswith(ours)):
                return
            body = {"metadata": {"annotations": {keys.NODE_LOCK: None}, "resourceVersion": version_of(node)}}
            try:
                await self._client.patch(NODES.path(name=self._node), body)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
            else:
                return

    async def _annotate(self, pod: Json, annotations: Mapping[str, str]) -> None:
        path = PODS.path(namespace_of(pod), name_of(pod))
        await self._client.patch(path, {"metadata": {"annotations": annotations}})


def _entries(pod: Json) -> list[list[DeviceEntry]]:
    text = annotations_of(pod).get(TO_ALLOCATE)
    if text is None:
        raise AllocateError("device request not found")
    try:
        return decode_pod_devices(text)
    except WireError as error:
        raise AllocateError(str(error)) from error
