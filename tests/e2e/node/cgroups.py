"""One control group for everything that a kubelet starts, in every hierarchy of this machine.

Namespaces do not hide these, so that they are made and removed by hand. Never touches another group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
UNIFIED = Path("/sys/fs/cgroup")
NEEDED = frozenset({"cpu", "cpuset", "memory", "pids"})
"""controllers without which kubelet does not start"""
EMPTY_S = 120.0
"""for the kernel to let go of what ended in a group"""
LOOK_S = 0.05


def is_unified() -> bool:
    """Version 2, which kubelet tells by this file."""
    return (UNIFIED / "cgroup.controllers").exists()


def obstacles() -> list[str]:
    """Why no group can be made here; empty where one can."""
    try:
        with group(f"tessera-e2e-trial-{os.getpid()}"):
            pass
    except OSError as error:
        return [f"control groups cannot be made: {error}"]
    lacking = NEEDED - _controllers()
    return [f"no control groups for {', '.join(sorted(lacking))}"] if lacking else []


@contextmanager
def group(name: str) -> Iterator[None]:
    """There is such a group, and nothing of it afterwards. All that ran in it must have ended by then."""
    folders = [mount / name for mount in _hierarchies()]
    try:
        for folder in folders:
            folder.mkdir()
        if is_unified():
            _delegate(UNIFIED)
            _delegate(UNIFIED / name)
        yield
    finally:
        _remove(folders)


def _delegate(parent: Path) -> None:
    """Groups below have the controllers too."""
    there = (parent / "cgroup.controllers").read_text().split()
    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in there))


def _hierarchies() -> list[Path]:
    lines = [line.split() for line in MOUNTS.read_text().splitlines()]
    return [Path(mount) for _, mount, kind, *_ in lines if kind in ("cgroup", "cgroup2")]


def _controllers() -> set[str]:
    if is_unified():
        return set((UNIFIED / "cgroup.controllers").read_text().split())
    lines = [line.split() for line in MOUNTS.read_text().splitlines()]
    return {option for _, _, kind, options, *_ in lines if kind == "cgroup" for option in options.split(",")}


def _remove(folders: Sequence[Path]) -> None:
    """Files in them belong to the kernel and go with their folder."""
    deadline = time.monotonic() + EMPTY_S
    while left := [folder for folder in folders if folder.exists()]:
        for folder in left:
            for below, _, _ in os.walk(folder, topdown=False):
                with suppress(OSError):
                    Path(below).rmdir()
        if time.monotonic() > deadline:
            raise OSError(f"something still runs in {', '.join(map(str, left))}")
        time.sleep(LOOK_S)
