"""Images made of one static busybox, as archives that containerd imports: nothing is pulled from anywhere."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass
from pathlib import Path

END = "-- end of environment"
"""what a container prints last; its log is complete then"""
PRINTING = f"env; echo '{END}'"
WAITING = 'trap "exit 0" TERM; sleep 2147483647 & wait'
"""ends at once when it is told to"""
APPLETS = ("cat", "echo", "env", "ls", "sh", "sleep")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """What it is called, and what its containers do."""

    name: str
    script: str

    def write(self, path: Path, busybox: Path) -> None:
        """The archive."""
        layer = _layer(busybox)
        config = json.dumps(
            {
                "architecture": MACHINES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh", "-c", self.script]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            }
        ).encode()
        manifest = [{"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}]
        with tarfile.open(path, "w") as archive:
            _add(archive, "manifest.json", json.dumps(manifest).encode())
            _add(archive, "config.json", config)
            _add(archive, "layer.tar", layer)


PAUSE = Image("e2e.local/pause:1", WAITING)
"""holds the namespaces of a pod"""
TALKER = Image("e2e.local/talker:1", f"{PRINTING}; {WAITING}")
"""prints its environment and stays"""
IMAGES = (PAUSE, TALKER)


def _layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in ("bin", "etc", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
