"""What of the driver a container needs from the host: libraries and programs of exactly the running version.

Found below the driver's folder as the agent sees it, named as host and container see them. Only what is there is
named, and only regular files inside that folder: a link may lead out of it into the agent's own image.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tessera.node.modes.base import Mount
from tessera.node.settings import Paths

LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
PROGRAM_FOLDER = "usr/bin"
PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
_VERSION = r"([0-9]{3,}(?:\.[0-9]+)+)"
"""e.g. 580.65.06; anything shorter is the number of an interface, which other libraries have too"""
_CUDA = re.compile(rf"libcuda\.so\.{_VERSION}", re.ASCII)
_MANAGEMENT = re.compile(rf"libnvidia-ml\.so\.{_VERSION}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """By path in the container, which is the path below the driver's root."""

    mounts: tuple[Mount, ...] = ()
    library_folders: tuple[str, ...] = ()
    """that the container's loader must know"""
    hook: str = ""
    """path on the host of the program that tells it; empty = there is none"""


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
        mounts=tuple(Mount(f"/{each}", str(paths.driver_root / each)) for each in (*libraries, *programs)),
        library_folders=tuple(dict.fromkeys("/" + os.path.dirname(each) for each in libraries)),
        hook=str(paths.cdi_hook) if _has_hook(paths) else "",
    )


def _library_folders(root: Path) -> dict[str, list[str]]:
    """Names of regular files by folder; a folder that is another by a link is listed once."""
    inside = os.path.realpath(root)
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for folder in LIBRARY_FOLDERS:
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
    """Of the driver, as its libraries' names have it; empty where there are none, or of several versions at once."""
    for pattern in (_CUDA, _MANAGEMENT):
        versions = {m[1] for names in folders.values() for name in names if (m := pattern.fullmatch(name))}
        if len(versions) == 1:
            return versions.pop()
    return ""


def _is_plain(paths: Paths, folder: str, name: str) -> bool:
    path = paths.driver_root_here / folder / name
    return path.is_file() and not path.is_symlink()


def _has_hook(paths: Paths) -> bool:
    """Seen below the driver's folder, or where the host has it if the agent sees the same path."""
    below = paths.driver_root_here / str(paths.cdi_hook).lstrip("/")
    return below.is_file() or paths.cdi_hook.is_file()
