"""What a simulated node's device plugin answers to Allocate, and what it writes afterwards.

kubelet chooses freely among the free and healthy ids of a card, `<uuid>-<number>`, so the card of an id says nothing
about the slice. It does not say which container an Allocate is for either. Tessera's own agents look for the pods that
it could be for, by binding order and number of devices, and refuse if different slices are possible:

    env       containers that use the downward API get no devices from Allocate; the others as with `answer`
    answer    the response of Allocate holds the slice

HAMi's plugin finds its pod through the node lock, hands out one entry per call, and unlocks:

    lock names a pod -> that pod; else the first pending pod of the node in phase allocating or success
    entries left     -> phase and lock stay; none left -> success and the lock goes; any error -> failed and it goes
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.core.model.devices import Device
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import NODES, PODS
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices, encode_pod_devices
from tessera.wire.registration import decode_node_lock
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import (
    annotations_of,
    containers_of,
    name_of,
    namespace_of,
    phase_of,
    uid_of,
    version_of,
)

Preference = Callable[[Sequence[str], int], Sequence[str] | None]
"""the plugin's choice among these ids, or None if it has no preference"""


class Unavailable(Exception):
    """Fewer devices are free than a container requests."""


class DeviceIds:
    """The ids of one node and which pods hold them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._offered: list[str] = []
        self._held: dict[str, str] = {}
        """id -> pod"""
        self._reusable: dict[str, list[str]] = {}
        """pod -> ids that its init containers no longer need"""

    def offer(self, cards: Iterable[Device]) -> None:
        """Sets what the plugin lists now; nothing if it is down."""
        self._offered = [replica for card in cards if card.healthy for replica in replicas(card)]

    @property
    def offered(self) -> int:
        return len(self._offered)

    def take(self, uid: str, count: int, *, resource: str, prefer: Preference, init: bool = False) -> tuple[str, ...]:
        """Ids for one container of the pod."""
        reused = self._reusable.get(uid, [])[:count]
        free = [each for each in self._offered if each not in self._held]
        wanted = count - len(reused)
        if wanted > len(free):
            raise Unavailable(
                f"requested number of devices unavailable for {resource}. Requested: {wanted}, Available: {len(free)}"
            )
        chosen = list(prefer(free, wanted) or ()) if wanted and not reused else []
        if len(chosen) != wanted:
            chosen = self._rng.sample(free, wanted)
        self._held.update(dict.fromkeys(chosen, uid))
        taken = (*reused, *chosen)
        again = [each for each in self._reusable.get(uid, ()) if each not in reused]
        self._reusable[uid] = [*again, *taken] if init else again
        return taken

    def release(self, uid: str) -> None:
        """Frees the ids of a pod that has ended."""
        self._reusable.pop(uid, None)
        self._held = {each: holder for each, holder in self._held.items() if holder != uid}


def replicas(card: Device) -> list[str]:
    return [f"{card.uuid}-{number}" for number in range(card.slots)]


def card_of(replica: str) -> str:
    """The card's uuid."""
    return replica.rpartition("-")[0]


TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "void"
"""for a container that gets its devices through the downward API, and otherwise sees none"""
HOOK_PATH = "/usr/local"

Slice = tuple[DeviceEntry, ...]


class AllocateError(Exception):
    """Allocate answered with an error; the text is gRPC's description."""


class SimulatedPlugin(Protocol):
    """What the simulated kubelet calls."""

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        """The environment for one container."""
        ...

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        """GetPreferredAllocation."""
        ...

    def admitted(self, pod: Json) -> dict[str, str]:
        """All containers of the pod have their devices. Returns annotations to write on it."""
        ...

    def rejected(self, pod: Json) -> dict[str, str]:
        """kubelet did not admit the pod. Returns annotations to write on it."""
        ...


@dataclass(frozen=True, slots=True)
class _Candidate:
    uid: str
    slice: Slice
    uses_downward_api: bool


class TesseraAgent:
    """`pods`: those on this node that are not admitted yet, in the order of binding; `all_pods`: all on this node."""

    def __init__(
        self,
        node: str,
        *,
        downward_api: bool,
        pods: Callable[[], Iterable[Json]],
        all_pods: Callable[[], Iterable[Json]],
        wrong_pod: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        self._node = node
        self._downward_api = downward_api
        self._pods = pods
        self._all_pods = all_pods
        self._wrong_pod = wrong_pod
        self._rng = rng
        self._handed: dict[str, int] = {}
        """pod -> how many of its containers have got devices, as far as known"""

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        found = self._candidates(len(device_ids))
        if not found:
            raise AllocateError(f"no pod on {self._node} waits for {len(device_ids)} devices")
        first, wrong = found[0], self._wrong_pod()
        if first.uses_downward_api and not wrong:
            return {VISIBLE: NO_DEVICES}
        if any(each.slice != first.slice for each in found) and not wrong:
            raise AllocateError(f"{len(found)} pods wait for {len(device_ids)} devices with different slices")
        if not first.uses_downward_api:
            self._handed[first.uid] = self._handed.get(first.uid, 0) + 1
        return slice_environment(self._another_slice(first) if wrong else first.slice, self._rng)

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        found = self._candidates(count)
        if not found or any(each.slice != found[0].slice for each in found):
            return None
        chosen: list[str] = []
        for entry in found[0].slice:
            replica = next((each for each in available if card_of(each) == entry.uuid and each not in chosen), None)
            if replica is None:
                return None
            chosen.append(replica)
        return chosen

    def admitted(self, pod: Json) -> dict[str, str]:
        # kubelet admits one pod at a time, so every Allocate counted for other pods was for this one.
        self._handed.clear()
        return ended(pod, keys.PHASE_SUCCESS)

    def rejected(self, pod: Json) -> dict[str, str]:
        self._handed.clear()
        return ended(pod, keys.PHASE_FAILED, blank=False)

    def _candidates(self, count: int) -> list[_Candidate]:
        """Candidates whose next container gets this many devices; those that depend on Allocate, if there are any."""
        found = [each for pod in self._pods() for each in self._next(pod) if len(each.slice) == count]
        dependent = [each for each in found if not each.uses_downward_api]
        return dependent or found

    def _next(self, pod: Json) -> list[_Candidate]:
        containers = containers_of(pod)
        candidates = [
            _Candidate(uid_of(pod), entries, self._downward_api and uses_downward_api(containers[position], position))
            for position, entries in slices_of(pod, TO_ALLOCATE)
            if position < len(containers)
        ]
        dependent = [each for each in candidates if not each.uses_downward_api]
        # Containers that use the downward API are not counted, so any of them may be next.
        return [each for each in candidates if each.uses_downward_api] + dependent[self._handed.get(uid_of(pod), 0) :][
            :1
        ]

    def _another_slice(self, right: _Candidate) -> Slice:
        others = (entries for pod in self._all_pods() for _, entries in slices_of(pod, ALLOCATED))
        return next((entries for entries in others if entries != right.slice), right.slice)


def slices_of(pod: Json, key: str) -> list[tuple[int, Slice]]:
    """Positions of containers with devices, and what they get; nothing if the annotation cannot be read."""
    try:
        containers = decode_pod_devices(annotations_of(pod).get(key, ""))
    except WireError:
        return []
    return [(position, tuple(entries)) for position, entries in enumerate(containers) if entries]


def uses_downward_api(container: Json, position: int) -> bool:
    """Whether the container gets its devices from its own pod's annotation, whatever Allocate answers."""
    path = f"metadata.annotations['{keys.visible_devices(position)}']"
    sources = [entry.get("valueFrom") or {} for entry in container.get("env") or () if entry.get("name") == VISIBLE]
    return bool(sources) and (sources[-1].get("fieldRef") or {}).get("fieldPath") == path


def slice_environment(entries: Sequence[DeviceEntry], rng: random.Random) -> dict[str, str]:
    """The variables that tell HAMi's library its limits."""
    cache = uuid.UUID(int=rng.getrandbits(128), version=4)
    return {
        VISIBLE: ",".join(dict.fromkeys(entry.uuid for entry in entries)),
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{entry.memory}m" for index, entry in enumerate(entries)},
        "CUDA_DEVICE_SM_LIMIT": str(entries[0].cores),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{HOOK_PATH}/vgpu/{cache}.cache",
    }


def ended(pod: Json, phase: str, *, blank: bool = True) -> dict[str, str]:
    """The annotations that end a handover; empty for a pod without one."""
    annotations = annotations_of(pod)
    if TO_ALLOCATE not in annotations or annotations.get(keys.BIND_PHASE) == phase:
        return {}
    blanked = {TO_ALLOCATE: encode_pod_devices([()] * len(containers_of(pod)))} if blank else {}
    return {keys.BIND_PHASE: phase, **blanked}


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
