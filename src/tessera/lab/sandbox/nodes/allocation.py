"""The agent of a simulated node: what Allocate answers, and what it writes down afterwards.

kubelet does not say whose container an Allocate is for. Tessera's own agents look for the pods that could be meant, by
binding order and number of devices, and refuse where different slices are possible:

    env       containers that refer to their own annotations get a harmless answer; the others as with `answer`
    answer    the answer carries the slice

HAMi's plugin is in `hami_plugin`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.lab.sandbox.api.kinds import Json
from tessera.lab.sandbox.nodes.device_ids import card_of
from tessera.lab.sandbox.objects import annotations_of, containers_of, uid_of
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices, encode_pod_devices

TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "void"
"""a container that does not say itself which devices it gets sees none"""
HOOK_PATH = "/usr/local"

Slice = tuple[DeviceEntry, ...]


class AllocateError(Exception):
    """Allocate answered with an error; the text is gRPC's description."""


class SimulatedPlugin(Protocol):
    """What kubelet needs of a plugin, and the plugin of kubelet's PodResources."""

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        """The environment for one container."""
        ...

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        """GetPreferredAllocation."""
        ...

    def admitted(self, pod: Json) -> dict[str, str]:
        """All containers of the pod have their devices: what to write on it, if anything."""
        ...

    def rejected(self, pod: Json) -> dict[str, str]:
        """kubelet did not admit the pod: what to write on it, if anything."""
        ...


@dataclass(frozen=True, slots=True)
class _Candidate:
    uid: str
    slice: Slice
    carried: bool
    """whether the container finds its slice in its own pod"""


class TesseraAgent:
    """`pods` are those on this node that are not admitted yet, in the order of binding."""

    def __init__(
        self,
        node: str,
        *,
        by_environment: bool,
        pods: Callable[[], Iterable[Json]],
        everybody: Callable[[], Iterable[Json]],
        wrong_pod: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        self._node = node
        self._by_environment = by_environment
        self._pods = pods
        self._everybody = everybody
        self._wrong_pod = wrong_pod
        self._rng = rng
        self._handed: dict[str, int] = {}
        """pod -> containers with devices that it was given, as far as can be known"""

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        found = self._meant(len(device_ids))
        if not found:
            raise AllocateError(f"no pod on {self._node} waits for {len(device_ids)} devices")
        first, wrong = found[0], self._wrong_pod()
        if first.carried and not wrong:
            return {VISIBLE: NO_DEVICES}
        if any(each.slice != first.slice for each in found) and not wrong:
            raise AllocateError(f"{len(found)} pods wait for {len(device_ids)} devices with different slices")
        if not first.carried:
            self._handed[first.uid] = self._handed.get(first.uid, 0) + 1
        return slice_environment(self._somebody_elses(first) if wrong else first.slice, self._rng)

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        found = self._meant(count)
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
        # kubelet admits one pod at a time, so whatever was counted for other pods was meant for this one.
        self._handed.clear()
        return ended(pod, keys.PHASE_SUCCESS)

    def rejected(self, pod: Json) -> dict[str, str]:
        self._handed.clear()
        return ended(pod, keys.PHASE_FAILED, blank=False)

    def _meant(self, count: int) -> list[_Candidate]:
        """Pods whose next container gets this many devices; those that depend on the answer come alone."""
        found = [each for pod in self._pods() for each in self._next(pod) if len(each.slice) == count]
        dependent = [each for each in found if not each.carried]
        return dependent or found

    def _next(self, pod: Json) -> list[_Candidate]:
        containers = containers_of(pod)
        candidates = [
            _Candidate(uid_of(pod), entries, self._by_environment and refers_to_itself(containers[position], position))
            for position, entries in slices_of(pod, TO_ALLOCATE)
            if position < len(containers)
        ]
        dependent = [each for each in candidates if not each.carried]
        # Containers that carry their slice leave no trace here, so any of them may be next.
        return [each for each in candidates if each.carried] + dependent[self._handed.get(uid_of(pod), 0) :][:1]

    def _somebody_elses(self, right: _Candidate) -> Slice:
        others = (entries for pod in self._everybody() for _, entries in slices_of(pod, ALLOCATED))
        return next((entries for entries in others if entries != right.slice), right.slice)


def slices_of(pod: Json, key: str) -> list[tuple[int, Slice]]:
    """Positions of containers with devices, and what they get; nothing where the annotation cannot be read."""
    try:
        containers = decode_pod_devices(annotations_of(pod).get(key, ""))
    except WireError:
        return []
    return [(position, tuple(entries)) for position, entries in enumerate(containers) if entries]


def refers_to_itself(container: Json, position: int) -> bool:
    """Whether the container takes its devices from its pod's annotation, whatever Allocate says."""
    path = f"metadata.annotations['{keys.visible_devices(position)}']"
    sources = [entry.get("valueFrom") or {} for entry in container.get("env") or () if entry.get("name") == VISIBLE]
    return bool(sources) and (sources[-1].get("fieldRef") or {}).get("fieldPath") == path


def slice_environment(entries: Sequence[DeviceEntry], rng: random.Random) -> dict[str, str]:
    """How HAMi's library is told its limits."""
    cache = uuid.UUID(int=rng.getrandbits(128), version=4)
    return {
        VISIBLE: ",".join(dict.fromkeys(entry.uuid for entry in entries)),
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{entry.memory}m" for index, entry in enumerate(entries)},
        "CUDA_DEVICE_SM_LIMIT": str(entries[0].cores),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{HOOK_PATH}/vgpu/{cache}.cache",
    }


def ended(pod: Json, phase: str, *, blank: bool = True) -> dict[str, str]:
    """The annotations that end a handover; none for a pod without one."""
    annotations = annotations_of(pod)
    if TO_ALLOCATE not in annotations or annotations.get(keys.BIND_PHASE) == phase:
        return {}
    blanked = {TO_ALLOCATE: encode_pod_devices([()] * len(containers_of(pod)))} if blank else {}
    return {keys.BIND_PHASE: phase, **blanked}
