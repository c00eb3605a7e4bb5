"""CDI specs: what a container runtime adds to a container for each card, MIG instance or feature.

Devices are named by uuid, as in Allocate's responses. A device without device nodes is left out: a CDI device that
changes nothing would start a container without its card. The driver's libraries and programs are those of exactly the
running version, found below the driver root as the agent sees it. Links are ignored, because a link may lead into the
agent's own image. Writing the files is in `cdi_files`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from tessera.host.cards import MigInstance
from tessera.host.nvml.session import LIBRARY_DIRS
from tessera.node.fleet import Fleet
from tessera.node.modes.base import NO_DEVICES, DeviceNode, HostMount
from tessera.node.modes.device_lists import CDI_ALL, CDI_GPU, CDI_VENDOR, DeviceSpecs
from tessera.node.settings import Paths
from tessera.vendors.nvidia.downward_api import VISIBLE

PROGRAM_FOLDER = "usr/bin"
PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
_VERSION = r"([0-9]{3,}(?:\.[0-9]+)+)"
"""e.g. 580.65.06; shorter numbers are interface versions, which other libraries have too"""
_CUDA = re.compile(rf"libcuda\.so\.{_VERSION}", re.ASCII)
_MANAGEMENT = re.compile(rf"libnvidia-ml\.so\.{_VERSION}", re.ASCII)

CDI_VERSION = "0.5.0"
"""the lowest version with `hostPath` for device nodes; older runtimes refuse higher versions"""
MOUNT_OPTIONS = ("nosuid", "nodev", "bind")
"""besides `ro` or `rw`"""
FEATURE_NODES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gdrcopy": ("/dev/gdrdrv",),
        "gds": ("/dev/nvidia-fs*",),
        "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
    }
)
"""patterns of device nodes by class"""
FEATURE_MOUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType({"gds": ("/run/udev", "/etc/cufile.json")})
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Container paths are the paths below the driver root."""

    mounts: tuple[HostMount, ...] = ()
    library_folders: tuple[str, ...] = ()
    """directories that the container's loader must search"""
    hook: str = ""
    """host path of the program that updates the loader's cache; empty if there is none"""


def find_driver_files(paths: Paths) -> DriverFiles:
    """May block."""
    folders = _library_folders(paths.driver_root_here)
    version = _version(folders)
    libraries = [
        f"{folder}/{name}"
        for folder, names in folders.items()
        for name in names
        if version and name.startswith("lib") and name.endswith(f".so.{version}")
    ]
    programs = [f"{PROGRAM_FOLDER}/{name}" for name in PROGRAMS if version and _is_plain(paths, PROGRAM_FOLDER, name)]
    return DriverFiles(
        mounts=tuple(HostMount(f"/{each}", str(paths.driver_root / each)) for each in (*libraries, *programs)),
        library_folders=tuple(dict.fromkeys("/" + os.path.dirname(each) for each in libraries)),
        hook=str(paths.cdi_hook) if _has_hook(paths) else "",
    )


def _library_folders(root: Path) -> dict[str, list[str]]:
    """Returns names of regular files by directory; a directory reached twice by a link is listed once."""
    inside = os.path.realpath(root)
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for folder in LIBRARY_DIRS:
        real = os.path.realpath(root / folder)
        if real in seen or os.path.commonpath((real, inside)) != inside:
            continue
        seen.add(real)
        try:
            with os.scandir(real) as entries:
                found[folder] = sorted(each.name for each in entries if each.is_file(follow_symlinks=False))
        except OSError:
            continue
    return found


def _version(folders: dict[str, list[str]]) -> str:
    """Returns the driver version in the library names; empty if there are none or several versions."""
    for pattern in (_CUDA, _MANAGEMENT):
        versions = {m[1] for names in folders.values() for name in names if (m := pattern.fullmatch(name))}
        if len(versions) == 1:
            return versions.pop()
    return ""


def _is_plain(paths: Paths, folder: str, name: str) -> bool:
    path = paths.driver_root_here / folder / name
    return path.is_file() and not path.is_symlink()


def _has_hook(paths: Paths) -> bool:
    """Looks below the driver root, and at the same path as on the host."""
    below = paths.driver_root_here / str(paths.cdi_hook).lstrip("/")
    return below.is_file() or paths.cdi_hook.is_file()


def gpu_document(
    fleet: Fleet, instances: Iterable[MigInstance], *, specs: DeviceSpecs, driver: DriverFiles
) -> Document | None:
    """Describes all cards and instances of a node; None if none has a device node."""
    nodes: dict[str, tuple[DeviceNode, ...]] = {card.facts.uuid: specs.of_card(card.facts) for card in fleet}
    for instance in instances:
        card = fleet.card(instance.uuid)
        if card is not None and instance.mig_uuid is not None:
            nodes[instance.mig_uuid] = specs.of_instance(instance, card.facts)
    nodes = {name: own for name, own in nodes.items() if own}
    if not nodes:
        return None
    everything = {node.container_path: node for own in nodes.values() for node in own}
    nodes[CDI_ALL] = tuple(everything.values())
    common: Document = {
        # VISIBLE, because otherwise NVIDIA's runtime would add cards for the image's variable.
        **edits(specs.control(), driver.mounts, {VISIBLE: NO_DEVICES}),
        **_hooks(driver),
    }
    return _document(CDI_GPU, nodes) | {"containerEdits": common}


def feature_document(feature: str, *, specs: DeviceSpecs) -> Document | None:
    """Describes what a feature besides cards needs; None if the node does not have it."""
    nodes = tuple(node for pattern in FEATURE_NODES[feature] for node in specs.matching(pattern))
    if not nodes:
        return None
    mounts = tuple(HostMount(path, path) for path in FEATURE_MOUNTS.get(feature, ()) if specs.is_here(path))
    document = _document(feature, {CDI_ALL: nodes})
    document["devices"][0]["containerEdits"].update(edits((), mounts))
    return document


def device_names(document: Document) -> frozenset[str]:
    return frozenset(device["name"] for device in document["devices"])


def _document(device_class: str, nodes: Mapping[str, Sequence[DeviceNode]]) -> Document:
    return {
        "cdiVersion": CDI_VERSION,
        "kind": f"{CDI_VENDOR}/{device_class}",
        "devices": [{"name": name, "containerEdits": edits(own, ())} for name, own in nodes.items()],
    }


def edits(nodes: Sequence[DeviceNode], mounts: Sequence[HostMount], env: Mapping[str, str] | None = None) -> Document:
    """What is done to a container."""
    found: Document = {}
    if env:
        found["env"] = [f"{name}={value}" for name, value in env.items()]
    if nodes:
        found["deviceNodes"] = [
            {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions} for node in nodes
        ]
    if mounts:
        found["mounts"] = [
            {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": _options(mount)}
            for mount in mounts
        ]
    return found


def _options(mount: HostMount) -> list[str]:
    return ["ro" if mount.read_only else "rw", *MOUNT_OPTIONS]


def _hooks(driver: DriverFiles) -> Document:
    if not driver.hook or not driver.library_folders:
        return {}
    program = PurePosixPath(driver.hook).name
    # The hooks are a program of their own or a subcommand of nvidia-ctk.
    called = [program, "hook"] if program == "nvidia-ctk" else [program]
    folders = [word for folder in driver.library_folders for word in ("--folder", folder)]
    return {
        "hooks": [
            {"hookName": "createContainer", "path": driver.hook, "args": [*called, "update-ldcache", *folders]},
        ]
    }
