"""Whether a container's environment is exactly its slice, from what it printed and what its pod was granted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tessera.node.modes.hami_core import LIBRARY_HOME
from tessera.wire.pod_devices import DeviceEntry
from tessera.wire.quantity import Whole, read
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, slices_of
from tessera_lab.sandbox.objects import containers_of, key_of, uid_of
from tests.support.ledger_replay import in_visible_order

Environment = Mapping[str, str]
Seen = Mapping[tuple[str, str], Environment]
"""what containers printed, by the uid of their pod and their name"""

OF_THE_SLICE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_")
"""how the names of all variables begin that could have to do with one"""
ALL_THREADS = 100


def read_environment(log: str) -> Environment:
    return dict(line.split("=", 1) for line in log.splitlines() if "=" in line)


def wrong_environments(pods: Sequence[Json], seen: Seen, *, hook: Path) -> Iterator[str]:
    """Containers that were granted, or see, anything but what they asked for."""
    for pod in pods:
        granted = dict(slices_of(pod, ALLOCATED))
        for position, container in enumerate(containers_of(pod)):
            where, slice_ = f"{key_of(pod)} {container['name']}", granted.get(position, ())
            asked = _asked(container)
            if [(entry.memory, entry.cores) for entry in slice_] != asked:
                yield f"{where}: asked for {asked}, was granted {slice_}"
            environment = seen[uid_of(pod), container["name"]]
            found = {name: value for name, value in environment.items() if name.startswith(OF_THE_SLICE)}
            slice_ = in_visible_order(slice_, environment.get("NVIDIA_VISIBLE_DEVICES", ""))
            expected = _expected(slice_, uid_of(pod), container["name"], hook) if slice_ else {}
            if found != expected:
                yield f"{where}: sees {found}, not {expected}"


def _expected(slice_: Sequence[DeviceEntry], uid: str, container: str, hook: Path) -> Environment:
    cores = slice_[0].cores
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(entry.uuid for entry in slice_),
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{number}": f"{entry.memory}m" for number, entry in enumerate(slice_)},
        "CUDA_DEVICE_SM_LIMIT": f"{cores}",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{hook}/vgpu/{uid}_{container}.cache",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{entry.uuid}={entry.memory}M" for entry in slice_),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{cores or ALL_THREADS}",
        # The same in every container of the node, unless the library is where it looks for itself.
        **({"CUDA_REDIRECT": f"{hook}/vgpu/libvgpu.so"} if hook != LIBRARY_HOME else {}),
    }


def _asked(container: Json) -> list[tuple[int, int]]:
    """Memory and cores of each card; every shape says how much memory."""
    limits = (container.get("resources") or {}).get("limits") or {}
    count, memory, cores = (_whole(limits.get(f"nvidia.com/{name}", 0)) for name in ("gpu", "gpumem", "gpucores"))
    return [(memory, cores)] * count


def _whole(text: str | int) -> int:
    """The apiserver writes 3000 as 3k."""
    found = read(text)
    assert isinstance(found, Whole)
    return found.value
