"""Whether this machine can run a kubelet of its own, and where it keeps what that takes.

Every obstacle is found and said at once, with what helps. Nothing is changed, and nothing stays behind.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.node import cgroups

CNI_FOLDERS = tuple(Path(name) for name in ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"))
CNI_PLUGINS = ("ptp", "host-local", "loopback")
PROGRAMS = ("unshare", "mount", "ip")
PLACES_OF_PROGRAMS = ("/usr/sbin", "/sbin")
"""beside those of PATH; only root's has them"""
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private")
"""for unshare: all that a kubelet touches and that must not be seen outside"""
PACKAGES = "`make packages` installs it on Debian and Ubuntu, as root"

_PT_INTERP = 3
"""of ELF: the program header that names a dynamic linker"""


@dataclass(frozen=True)
class Machine:
    """Programs that come with the system."""

    runc: Path
    busybox: Path
    """a static one: it is all that there is in an image"""
    cni: Path
    """folder with the network plugins"""


def machine() -> Machine:
    """Where there is no obstacle."""
    runc, busybox, cni = _program("runc"), _program("busybox"), _cni()
    assert runc is not None
    assert busybox is not None
    assert cni is not None
    return Machine(runc, busybox, cni)


def obstacles() -> list[str]:
    """Why not, in words; empty where a kubelet can run here."""
    if sys.platform != "linux":
        return ["kubelet runs on Linux only"]
    found = [f"no {name} here" for name in PROGRAMS if _program(name) is None]
    if _program("runc") is None:
        found.append(f"no runc here: {PACKAGES}")
    if _cni() is None:
        found.append(f"no network plugins {', '.join(CNI_PLUGINS)} here: {PACKAGES}")
    busybox = _program("busybox")
    if busybox is None or not is_static(busybox):
        found.append(f"no static busybox here: {PACKAGES}")
    if os.geteuid() != 0:
        return [*found, "containers need root"]
    if _program("unshare") is not None and _program("ip") is not None:
        found += _of_namespaces()
    return found + cgroups.obstacles()


def is_static(program: Path) -> bool:
    """Whether it runs in a folder that has nothing else."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return False
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(start)
        headers = file.read(size * count)
    return all(struct.unpack_from("<I", headers, size * each)[0] != _PT_INTERP for each in range(count))


def _of_namespaces() -> list[str]:
    done = subprocess.run(
        ["unshare", *NAMESPACES, "ip", "link", "set", "lo", "up"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return [f"namespaces cannot be made: {done.stderr.strip()}"] if done.returncode else []


def _program(name: str) -> Path | None:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES_OF_PROGRAMS)))
    return Path(found) if found else None


def _cni() -> Path | None:
    return next(
        (folder for folder in CNI_FOLDERS if all(os.access(folder / name, os.X_OK) for name in CNI_PLUGINS)), None
    )
