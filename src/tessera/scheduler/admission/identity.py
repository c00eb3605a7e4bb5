"""Slices that travel with their pod: environment variables that refer to the pod's own annotations.

kubelet's Allocate does not say which pod it is for, but a container's own environment wins over Allocate's answer. So
the webhook puts the variables of a slice into the container (`identity_env`) and the binding writes what they refer to
(`identity_annotations`). No annotation means an empty variable, and that means no device: a mistake here fails closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tessera.core.devices import MIG
from tessera.core.grants import Placement
from tessera.core.requests import PodRequest, Request
from tessera.wire import keys
from tessera.wire.gobool import parse_bool
from tessera.wire.objects import Pod

MAX_DEVICES = 16
"""devices that HAMi-core knows in one container; it reads no limit of any further one"""

POD_UID = "TESSERA_POD_UID"
"""helper variable, for paths that hold the pod's uid"""

DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"

ALL_THREADS = 100
"""per cent"""


@dataclass(frozen=True, slots=True)
class Variables:
    """How one vendor's slices are told to a container."""

    visible: str
    memory_limit: str
    """stem; the number of the device follows"""
    core_limit: str
    region: str
    """path of the file in which the processes of a container count together"""
    mps_memory_limit: str
    mps_thread_percentage: str
    """both for nodes that share cards through MPS; without its daemon nobody reads them"""
    owned: re.Pattern[str]
    """names that decide what a container gets: a tenant's own values for them go"""


CARRIED: Mapping[str, Variables] = MappingProxyType(
    {
        "NVIDIA": Variables(
            visible="NVIDIA_VISIBLE_DEVICES",
            memory_limit="CUDA_DEVICE_MEMORY_LIMIT_",
            core_limit="CUDA_DEVICE_SM_LIMIT",
            region="CUDA_DEVICE_MEMORY_SHARED_CACHE",
            mps_memory_limit="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            mps_thread_percentage="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            owned=re.compile(
                r"NVIDIA_VISIBLE_DEVICES|CUDA_DEVICE_(MEMORY|SM)_LIMIT(_[0-9]+)?|CUDA_DEVICE_MEMORY_SHARED_CACHE"
                rf"|CUDA_MPS_PINNED_DEVICE_MEM_LIMIT|CUDA_MPS_ACTIVE_THREAD_PERCENTAGE|{POD_UID}",
                re.ASCII,
            ),
        )
    }
)
"""by vendor key; slices of all other vendors reach their container through Allocate alone"""

_SLICE = re.compile(r"metadata\.annotations\['tessera\.io/c(?P<position>[0-9]{1,9})\..*'\]", re.ASCII)


def identity_env(
    vendor: str, *, container: int, name: str, devices: int, hook_path: str = "/usr/local"
) -> list[dict[str, Any]]:
    """The variables of one container in the order in which they must stand; none for a vendor that is not carried."""
    variables = CARRIED.get(vendor)
    if variables is None:
        return []
    references = (_variable(variable, path) for variable, path in _references(variables, container, devices))
    region = {"name": variables.region, "value": f"{hook_path.rstrip('/')}/vgpu/$({POD_UID})_{name}.cache"}
    # `$(...)` sees only what stands before it.
    return [_variable(POD_UID, "metadata.uid"), *references, region]


def identity_annotations(placement: Placement) -> dict[str, str]:
    """What the variables of a pod refer to, for its binding.

    A container with a MIG instance gets nothing: the instance has no name before Allocate has made it.
    """
    written: dict[str, str] = {}
    for vendor, containers in placement.grants.items():
        if vendor not in CARRIED:
            continue
        for position, given in enumerate(containers):
            if not given or [grant for grant in given if grant.mig is not None]:
                continue
            # Inside the container cards are numbered as the node numbers them, whatever order they were chosen in.
            grants = given if len(given) == 1 else sorted(given, key=lambda grant: grant.index)
            visible, pinned = [], []
            for index, grant in enumerate(grants):
                visible.append(grant.uuid)
                pinned.append(f"{grant.uuid}={grant.memory}M")
                if index < MAX_DEVICES:
                    written[keys.memory_limit(position, index)] = f"{grant.memory}m"
            written[keys.visible_devices(position)] = ",".join(visible)
            written[keys.core_limit(position)] = str(grants[0].cores)
            # MPS takes an empty text for "no limit", so there is always a number.
            written[keys.mps_memory_limit(position)] = ",".join(pinned)
            written[keys.mps_thread_percentage(position)] = str(_threads(grants[0].cores))
    return written


def travels(request: Request, pod: PodRequest) -> bool:
    """Whether a request's slices go by environment; not where the pod accepts MIG, whose instances Allocate makes."""
    return request.vendor in CARRIED and MIG not in (pod.constraint(request.vendor).mode or "")


@dataclass(frozen=True, slots=True)
class Identity:
    """What the environment of a pod's containers says about where their slices come from."""

    refers: bool
    """some container waits for a slice's annotations: without them it sees no device, whatever Allocate says"""
    misplaced: str | None
    """the first container whose references are those of another position: containers were added after admission"""
    uncontrolled: bool
    """a container asks to be left without the enforcing library, which only Allocate's answer can do"""
    paths: tuple[Mapping[str, str | None], ...]
    """by container: the field that each variable is taken from; None for other values, and for names given twice"""

    def carries(self, request: PodRequest) -> bool:
        """Whether every container that gets devices has them by reference: the order of Allocate is all the same."""
        return not self.uncontrolled and all(
            request.vendor in CARRIED and _refers_to_all(paths, request.vendor, position, request.count)
            for position, (paths, ask) in enumerate(zip(self.paths, request.containers, strict=True))
            for request in ask.requests
        )


def identity_of(pod: Pod) -> Identity:
    """Reads every variable once."""
    refers = uncontrolled = False
    misplaced: str | None = None
    found: list[dict[str, str | None]] = []
    for position, container in enumerate((*pod.init_containers, *pod.app_containers)):
        paths: dict[str, str | None] = {}
        for entry in container.env or ():
            path = entry.field_path
            # The last entry of a name is the one that counts; the name may stand once only, to be sure.
            paths[entry.name] = path if entry.name not in paths else None
            if path is not None and (slice_ := _SLICE.fullmatch(path)) is not None:
                refers = True
                if misplaced is None and int(slice_["position"]) != position:
                    misplaced = container.name
            elif entry.name == DISABLE_CONTROL and parse_bool(entry.value) is True:
                uncontrolled = True
        found.append(paths)
    return Identity(refers, misplaced, uncontrolled, tuple(found))


def is_slice_reference(entry: Mapping[str, Any]) -> bool:
    """Whether a raw entry of an environment is one that `identity_env` could have made."""
    match entry:
        case {"valueFrom": {"fieldRef": {"fieldPath": str(path)}}}:
            return path == "metadata.uid" or _SLICE.fullmatch(path) is not None
        case {"value": str(value)}:
            return f"$({POD_UID})" in value
    return False


def _refers_to_all(paths: Mapping[str, str | None], vendor: str, container: int, devices: int) -> bool:
    return all(paths.get(name) == path for name, path in _all_references(vendor, container, min(devices, MAX_DEVICES)))


@lru_cache(maxsize=256)
def _all_references(vendor: str, container: int, devices: int) -> tuple[tuple[str, str], ...]:
    return tuple(_references(CARRIED[vendor], container, devices))


def _references(variables: Variables, container: int, devices: int) -> Iterator[tuple[str, str]]:
    """Names of variables and the paths of the fields that they take their values from."""
    yield variables.visible, _annotation(keys.visible_devices(container))
    for index in range(min(devices, MAX_DEVICES)):
        yield f"{variables.memory_limit}{index}", _annotation(keys.memory_limit(container, index))
    yield variables.core_limit, _annotation(keys.core_limit(container))
    yield variables.mps_memory_limit, _annotation(keys.mps_memory_limit(container))
    yield variables.mps_thread_percentage, _annotation(keys.mps_thread_percentage(container))


def _threads(cores: int) -> int:
    """Per cent of a card's threads; no cores asked for means all of them."""
    return min(cores, ALL_THREADS) or ALL_THREADS


def _annotation(key: str) -> str:
    return f"metadata.annotations['{key}']"


def _variable(name: str, path: str) -> dict[str, Any]:
    # The apiserver adds the version where it is missing; with it, what comes back equals what was sent.
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
