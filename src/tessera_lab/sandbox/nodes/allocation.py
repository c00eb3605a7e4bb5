"""The agent of a simulated node: what Allocate answers, and what the agent writes afterwards.

kubelet does not say which container an Allocate is for. Tessera's own agents look for the pods that it could be for, by
binding order and number of devices, and refuse if different slices are possible:

    env       containers that use the downward API get no devices from Allocate; the others as with `answer`
    answer    the response of Allocate holds the slice

HAMi's plugin is in `hami_plugin`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices, encode_pod_devices
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.device_ids import card_of
from tessera_lab.sandbox.objects import annotations_of, containers_of, uid_of

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
