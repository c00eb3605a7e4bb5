"""A container as far as the check needs one: a mount namespace with exactly an Allocate answer's mounts.

    python -m scripts.gpu_check.container MOUNTS COMMAND...

Sources are opened before anything is mounted, as a container runtime resolves them on the host: the answer mounts the
container's own directory over the one that the library comes from. Only system calls, because every program that is
started after `ld.so.preload` is mounted would load the library.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tessera.node.modes.base import HostMount

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
"""from <sched.h> and <sys/mount.h>"""


def command(mounts: Iterable[HostMount]) -> list[str]:
    """The words in front of a command that run it in a container."""
    told = [[each.container_path, each.host_path, each.read_only] for each in mounts]
    return [sys.executable, "-m", "scripts.gpu_check.container", json.dumps(told)]


def leave_host() -> None:
    """Gives this process mounts of its own. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise _fault("unshare")
    mount("none", "/", MS_REC | MS_PRIVATE)


def mount(source: str, target: str, flags: int, kind: str | None = None) -> None:
    """mount(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), kind.encode() if kind else None, flags, None) != 0:
        raise _fault(f"mount on {target}")


def bind_all(mounts: Sequence[HostMount]) -> None:
    """Mounts all of them, in their order. Raises OSError."""
    opened = [os.open(each.host_path, os.O_PATH | os.O_CLOEXEC) for each in mounts]
    for each, source in zip(mounts, opened, strict=True):
        target = Path(each.container_path)
        if stat.S_ISDIR(os.fstat(source).st_mode):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        mount(f"/proc/self/fd/{source}", str(target), MS_BIND)
        if each.read_only:
            mount("none", str(target), MS_BIND | MS_REMOUNT | MS_RDONLY)
        os.close(source)


def _fault(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def main(arguments: Sequence[str]) -> None:
    mounts = [HostMount(*each) for each in json.loads(arguments[0])]
    leave_host()
    bind_all(mounts)
    os.execvp(arguments[1], list(arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
